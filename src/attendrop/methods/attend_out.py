"""AttendOut: an attacker, a defender, and a generator that learns which attention to drop."""

from __future__ import annotations

import math
import random
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention.layers import select_self_attention
from attendrop.attention.plan import real_tokens
from attendrop.attribution.predictions import IGNORED
from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    LAYERS,
    SCORES_ROWS,
    SECOND_MODEL,
    SWITCH,
    AttendropError,
    AttentionLayer,
    Batch,
    ComputeLoss,
    LayerRanking,
    Method,
    MethodInfo,
    MethodState,
    Preset,
    Range,
    SampleKey,
    StepContext,
    TrainingContext,
    choice,
    count,
    evaluating,
    forked_rng,
    in_full_precision,
    number_of_rows,
    option,
    positive,
    token_uniform,
    unit_interval,
)
from attendrop.methods.attend_out_networks import Attack, Micro, Players
from attendrop.methods.core.context import RunningStatistics
from attendrop.support.models import before_step, refuse_graph, to_device
from attendrop.wording import counted

# Values of options that are empty, by variant.
_DEFAULTS = {
    "dropout": {"score_on": "reward_data", "merge": "sample"},
    "pruning": {"score_on": "train", "merge": "attacker"},
}
_LOGGED = ("reward", "baseline", "generator_loss", "period_share")
_NOISE = 0.15


class GeneratorState(MethodState):
    """Algorithm 1 of both papers: periods of steps, after which both models are scored, rewarded and merged.

    The networks are created at the first batch, which is needed to trace the embeddings, or from a checkpoint.
    """

    method: AttendOut

    def __init__(self, method: AttendOut, training: TrainingContext) -> None:
        super().__init__(method)
        if training.optimizer is None:
            raise AttendropError(
                "AttendOut trains a second model and needs the optimizer: pass regularize(..., optimizer=optimizer)."
            )
        if method.score_on == "reward_data" and training.reward_data is None:
            raise AttendropError(
                "AttendOut scores its models on held-out labelled rows: pass reward_data, or use variant='pruning', "
                "which scores on the training batches."
            )
        if method.score == "metric" and training.metric is None:
            raise AttendropError(
                "score='metric' needs a trainer with compute_metrics and a metric_for_best_model that it returns, "
                "which the loss is not, and outputs that are not generated; use score='loss'."
            )
        if method.score_on == "noisy_train" and training.mask_token is None:
            raise AttendropError(
                "score_on='noisy_train' needs a tokenizer with a mask token: set the trainer's processing_class, or "
                "pass tokenizer= to regularize."
            )
        if method.generator_schedule == "linear" and training.total_steps is None:
            raise AttendropError("generator_schedule='linear' needs the number of planned steps: pass total_steps.")
        self.training = training
        self.updates = 0
        self.period: list[list[Micro]] = [[]]
        self.probabilities = RunningStatistics()  # of drop probabilities, by layer
        self.first: dict[str, Any] = {}  # what the networks are made from, should a resumed run take no further step
        self.players: Players | None = None

        def step() -> None:
            if self.players is not None:
                self.players.defender.step()

        self._hook = before_step(training.optimizer, step)  # already here: a closure may compute the first loss
        self._learnt: Mapping[str, Mapping[str, Tensor]] | None = None

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        refuse_graph(context.batch)
        if self.players is None:
            if self.method.score_on == "noisy_train" and "input_ids" not in context.batch:
                raise AttendropError(
                    f"score_on='noisy_train' masks tokens, and the batch for {type(context.model).__name__} has no "
                    "'input_ids'; use score_on='train' or 'reward_data'."
                )
            layers = [vars(layer) for layer in context.adapter.attention_layers]
            self.players = self._create(
                {"attention_layers": layers, "inputs": dict(context.inputs), "seed": context.key.seed}
            )
            if self._learnt is not None:
                if "generator" not in self._learnt:
                    raise AttendropError("The run kept no generator.safetensors, so what it drops is not known.")
                with torch.no_grad():
                    for name, parameter in self.players.generator.named_parameters():
                        parameter.copy_(self._learnt["generator"][name])
        players = self.players
        # The defender has the dropout of plain fine-tuning; the attacker then has the same.
        players.defender.backward(context, compute_loss)
        micro = Micro(dict(context.batch), dict(context.inputs), context.key)
        loss, outputs = compute_loss(context.batch, Attack(players, context, micro, self.probabilities))
        players.defender.follow(loss)
        self.period[-1].append(micro)
        return loss, outputs

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if self.players is None or not self.period[-1]:
            return {}
        self.players.defender.discard()
        if len(self.period) == self.method.dropout_step:
            return self._end_period(self.players)
        self.period.append([])
        return {}

    def finish(self) -> dict[str, float]:
        steps = [step for step in self.period if step]
        if self.players is None or not steps:
            return {}
        self.period = steps
        return self._end_period(self.players)

    def state_dict(self) -> dict[str, Any]:
        if self.players is None:
            return {}
        return {"updates": self.updates, "first": self.first, **self.players.state_dict()}

    def rank_state_dict(self) -> dict[str, Any]:
        steps = [[vars(micro) | {"key": vars(micro.key)} for micro in step] for step in self.period]
        return {"period": steps, "probabilities": self.probabilities.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        if not state:
            return
        self.updates = state["updates"]
        device = next(self.training.model.parameters()).device
        self.period = []
        for step in rank_state["period"]:
            self.period.append([])
            for found in step:
                masks = [None if mask is None else (mask[0].to(device), mask[1]) for mask in found["masks"]]
                moved = {name: to_device(found[name], device) for name in ("batch", "inputs")} | {"masks": masks}
                self.period[-1].append(Micro(**{**found, **moved, "key": SampleKey(**found["key"])}))
        self.probabilities = RunningStatistics(**rank_state["probabilities"])
        self.players = self._create({**state["first"], "inputs": to_device(state["first"]["inputs"], device)})
        self.players.load_state_dict(state)

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        if self.players is None:
            return {}
        from attendrop.extend import ModelAdapter

        with ModelAdapter(self.training.model) as adapter:
            return {"pruning": {"pi": self.players.drop_fractions(adapter, batches)}}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        if self.players is None:
            return {}
        return {"generator": {name: value.detach() for name, value in self.players.generator.named_parameters()}}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._learnt = tensors

    def close(self) -> None:
        self._hook.remove()
        if self.players is not None:
            self.players.defender.optimizer.state.clear()
            self.players.defender.discard()

    def _create(self, first: dict[str, Any]) -> Players:
        self.first = first
        layers = [AttentionLayer(**layer) for layer in first["attention_layers"]]
        return Players(self.method, self.training, layers, first["inputs"], first["seed"])

    def _end_period(self, players: Players) -> dict[str, float]:
        """Score both networks, reward and update the generator, and merge the networks."""
        chance = random.Random(f"{self.period[0][0].key.seed}/{self.updates}")
        networks = self.training.model, players.defender.model
        attacker, defender = found = scores(self.method, self.training, networks, self._items(chance.getrandbits(62)))
        rewards = attacker - defender if self.method.reward == "difference" else (attacker - defender).sign()
        metrics = {"period_share": len(self.period) / self.method.dropout_step}
        healthy: list[bool] = found.isfinite().all(1).tolist()
        if all(healthy):
            metrics |= {"reward": rewards.mean().item()} | players.learn(self.period, rewards)
            survives = self._survives(attacker - defender, chance.random())
        elif any(healthy):  # a generator that learnt from this would be lost
            survives = healthy[0]
            warnings.warn(
                "One of AttendOut's two models has a loss that is not finite: the other goes on.", stacklevel=2
            )
        else:
            raise AttendropError(
                "The loss on the rows that AttendOut scores is not finite, with both models: correct these rows, or "
                "lower the learning rate."
            )
        players.defender.merge(first_survives=survives)
        metrics["attacker_survived"] = float(survives)
        nothing = torch.zeros(2, dtype=torch.float64, device=next(self.training.model.parameters()).device)
        counted_probabilities = self.probabilities.sums
        for layer in players.attention_layers:
            pair = counted_probabilities.get(layer.key, nothing).to(nothing.device)
            total, number = self.training.processes.total(pair).tolist()
            if number:  # 0 if the layer was skipped in the whole period
                metrics[f"drop_probability/{layer.key}"] = total / number
        self.updates += 1
        self.probabilities, self.period = RunningStatistics(), [[]]
        return metrics

    def _survives(self, gaps: Tensor, chance: float) -> bool:
        """Return whether the attacker survives, given its lead on each item and a random number."""
        match self.method.merge:
            case "attacker":
                return True
            case "best":
                return bool(gaps.mean() >= 0)
            case "confidence":
                # The probability that the expectation of the gaps is above 0; one half if all gaps are 0.
                error = gaps.std(correction=min(1, len(gaps) - 1)) / len(gaps) ** 0.5
                return chance < float(torch.special.ndtr(torch.nan_to_num(gaps.mean() / error, nan=0.0)))
            case _:
                # Softmax of two numbers, without overflow.
                return bool(chance < torch.sigmoid(gaps.mean() / self.method.temperature).item())

    def _items(self, seed: int) -> list[list[Batch]]:
        """Return this process's part of the batches to score on, for each step of the period."""
        method, processes = self.method, self.training.processes
        if method.score_on == "reward_data":
            assert self.training.reward_data is not None
            sampled = self.training.reward_data.sample(seed, len(self.period), method.reward_batch_size)  # all alike
            return [[item] if i % processes.world_size == processes.rank else [] for i, item in enumerate(sampled)]
        items: list[list[Batch]] = [[micro.batch for micro in step] for step in self.period]
        if method.score_on == "noisy_train":
            assert self.training.mask_token is not None
            for step, batches in zip(self.period, items, strict=True):
                for number, micro in enumerate(step):  # whatever its padding and its part of the global batch
                    tokens = micro.batch["input_ids"]
                    valid = real_tokens(micro.batch.get("attention_mask"), tokens.view(-1, tokens.shape[-1]))
                    noise = (token_uniform(micro.key, "noise", valid) < _NOISE).view(tokens.shape)
                    for special in self.training.special_tokens:
                        noise &= tokens != special
                    noisy = tokens.masked_fill(noise, self.training.mask_token)
                    batches[number] = {**micro.batch, "input_ids": noisy}
        return items


@dataclass(frozen=True)
class AttendOut(Method):
    """Attention dropout learnt from rewards.

    Two copies of the model train on the same batches: the defender with the model's own dropout only; the attacker,
    which is the model, with additional dropout of attention, for which a generator network gives each attention score
    its probability. Every ``dropout_step`` optimizer steps, a period, both are scored, the attacker's advantage rewards
    the generator, which is trained by policy gradient, and both are merged. Takes 1.5 to 2.2 times the memory of
    fine-tuning, and a step 2.6 to 3.2 times its time on a CPU. Needs the model's optimizer and labelled rows to score
    on; both are provided by :class:`attendrop.RegularizedTrainer`.

    Example:
        >>> with regularize(model, AttendOut(), optimizer=optimizer, reward_data=loader, total_steps=500) as reg:
        ...     reg.loss(batch).backward()  # also computes the second model's gradients
        ...     optimizer.step()  # also steps the second model
        ...     optimizer.zero_grad()
        ...     reg.step()  # every ``dropout_step`` steps: score, reward, and start the next period

    Args:
        variant: ``"dropout"`` (Wu et al. 2021) or ``"pruning"`` (the self-pruning version): sets the defaults of
            ``score_on`` and ``merge``.
        score_on: Data on which both models are scored. ``"reward_data"``: items sampled from it, one per step; the
            dropout version. ``"train"``: the training batches of the period; the pruning version. ``"noisy_train"``:
            these with 15 % of their tokens masked.
        reward_data: ``"split"``: ``reward_fraction`` of the training rows, held out. ``"eval"``: the development set,
            as in the paper; results on it are then biased. In your own loop, the rows that you pass.
        reward_fraction: See ``reward_data``.
        reward_batch_size: Number of examples in an item. The paper uses 1; more give rewards of lower variance.
        score: Score of an item: ``"loss"``, the negative mean loss, or ``"metric"``, the metric of the task.
        reward: ``"difference"`` of the scores, or its ``"sign"``.
        merge: Selection of the surviving model: ``"sample"``, by softmax of the mean scores over ``temperature``, the
            default of the dropout version; ``"confidence"``, the attacker with the probability that it is better,
            estimated from the difference of the scores over its standard error; ``"best"``; ``"attacker"``, the default
            of the pruning version.
        temperature: See ``merge``.
        baseline_decay: Decay of the moving average of rewards that serves as baseline.
        credit: ``"step"``: the ``t``-th action of a period is paired with the ``t``-th reward (Eq. 5). ``"return"``:
            each action is paired with the mean reward of the period.
        granularity: Unit of dropping: a ``"score"``, the scores of a ``"head"``, or those of a ``"layer"``.
        generator_heads: Number of heads of the generator, a divisor of the model's; with ``granularity="head"``, 1
            means the model's number of heads.
        generator_feed_forward: Whether the generator has a feed-forward.
        dropout_step: Number of optimizer steps in a period, ``T``.
        init_drop_prob: Initial drop probability.
        learn_bias: Whether the logit of that probability is trained.
        generator_learning_rate: Learning rate of the generator's AdamW.
        generator_schedule: ``"constant"``, or ``"linear"`` decay to zero over the generator's updates.
        layers: Layers to drop in; of these only the encoder's self-attention, or that of a decoder-only model.
        defender_device: Device of the defender, such as ``"cuda:1"``, for parallel training of both; ``"next"`` is the
            first GPU that no process trains on, plus the rank of this process. Empty: the attacker's device.

    Source: Wu, Zhao, Zhang (2021), two manuscripts. Choices where they are not specific: a fully dropped row attends
    equally to its valid keys; the baseline is read before the period's mean reward enters it; the actions'
    probabilities are recomputed for the generator's update. Ours are ``merge="confidence"``,
    ``reward_data="split"``, a ``reward_batch_size`` above 1, and granularities, heads and feed-forward other than the
    papers' (which name these as future work).
    """

    info = MethodInfo(
        "attendout",
        "learns from rewards which attention to drop",
        "Wu, Zhao, Zhang (2021), Not All Attention Is All You Need",
        link="https://arxiv.org/abs/2104.04692",
        acts_on=("scores",),
        forward="2 + scoring",
        backward="2",
        state="a second model and its optimizer, a period of batches",
        tasks="all; encoder-decoder: the encoder's self-attention",
        traits={EXCHANGES_WEIGHTS: "", SECOND_MODEL: "", SCORES_ROWS: "score_on=reward_data"},
        self_attention_only=True,
        needs_loss_scale=True,
    )
    state_class = GeneratorState

    variant: str = option("dropout", choice("dropout", "pruning"))
    score_on: str = option("", choice("", "reward_data", "train", "noisy_train"))
    reward_data: str = option("split", choice("split", "eval"))
    reward_fraction: float = option(0.1, unit_interval())
    reward_batch_size: int = option(4, count())
    score: str = option("loss", choice("loss", "metric"))
    reward: str = option("difference", choice("difference", "sign"))
    merge: str = option("", choice("", "sample", "confidence", "best", "attacker"))
    temperature: float = option(0.1, positive())
    baseline_decay: float = option(0.9, unit_interval(zero=True))
    credit: str = option("step", choice("step", "return"))
    granularity: str = option("score", choice("score", "head", "layer"))
    generator_heads: int = option(1, count())
    generator_feed_forward: bool = option(False, SWITCH)
    dropout_step: int = option(10, count())
    init_drop_prob: float = option(0.5, unit_interval())
    learn_bias: bool = option(False, SWITCH)
    generator_learning_rate: float = option(5e-5, positive())
    generator_schedule: str = option("constant", choice("constant", "linear"))
    layers: str | int | Sequence[int] = option("all", LAYERS)
    defender_device: str = option("", Range("a device (cuda:1), next, or ''", lambda _, value: value))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in _DEFAULTS[self.variant].items():
            object.__setattr__(self, name, getattr(self, name) or default)
        try:
            known = self.defender_device in ("", "next") or torch.device(self.defender_device).type != "meta"
        except (RuntimeError, TypeError):
            known = False
        if not known:
            raise AttendropError(
                f"defender_device={self.defender_device!r} is not a device; use 'cuda:1', 'cpu', 'next', or '' for the "
                "same."
            )

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        chosen = super().selected_layers(attention_layers)
        if chosen[0] not in select_self_attention(attention_layers, "all"):
            raise AttendropError(
                f"layers={self.layers!r}: the generator reads the encoder's inputs and can only drop in the encoder's "
                "self-attention; choose layers of the encoder."
            )
        return chosen

    @classmethod
    def preset(cls, name: str, task: str | None) -> Preset:
        """Return the papers' setting: length 256, 3 epochs, rewards on rows of the development set."""
        training = {"max_length": 256, "epochs": 3, "patience": None}
        return Preset(training, {"reward_data": "eval", "reward_batch_size": 1})

    def dropout_steps(self, log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        prefix = f"{self.source}/"
        layers, survived = f"{prefix}drop_probability/", f"{prefix}attacker_survived"
        return [
            {
                "step": int(entry["step"]),
                **{name: entry[prefix + name] for name in _LOGGED if prefix + name in entry},
                **({"attacker_survived": bool(entry[survived])} if survived in entry else {}),
                "drop_probability": {k.removeprefix(layers): v for k, v in entry.items() if k.startswith(layers)},
            }
            for entry in log
            if "loss" not in entry and f"{prefix}reward" in entry
        ]

    def summary_lines(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        steps = metrics["dropout_steps"]
        if not steps:
            return {}
        survived = f"attacker survived {sum(step['attacker_survived'] for step in steps)} of {len(steps)} periods"
        first, last = (statistics.fmean(steps[i]["drop_probability"].values()) for i in (0, -1))
        return {"generator": f"{survived}; drop probability {first:.3f} at first, {last:.3f} last"}

    def layer_ranking(self, metrics: Mapping[str, Any]) -> LayerRanking | None:
        """Rank layers by the generator's ``pi``, for the pruning version only."""
        pi = metrics.get("pruning", {}).get("pi")
        if pi is None or self.variant != "pruning":
            return None
        return LayerRanking("generator", pi, significant=False)


def scores(
    method: AttendOut, training: TrainingContext, networks: Sequence[nn.Module], items: Sequence[Sequence[Batch]]
) -> Tensor:
    """Score networks on each item, ``(networks, items)``, in float64 on the CPU.

    Autocast is off, because the scores differ by less than half precision resolves. ``items`` are the batches of each
    item that this process scores; results of other processes are added. Batches without a label do not count.
    """
    sums = torch.zeros(len(networks) + 1, len(items), dtype=torch.float64)
    with torch.no_grad():
        for row, network in enumerate(networks):
            device = next(network.parameters()).device
            with evaluating(network), forked_rng(network), in_full_precision(network):
                for number, batches in enumerate(items):
                    for batch in batches:
                        labels = batch.get("labels")
                        if isinstance(labels, Tensor) and not labels.ne(IGNORED).any():
                            continue
                        weight = number_of_rows(batch)
                        sums[row, number] += weight * _score(method, training, network, to_device(batch, device))
                        sums[-1, number] += weight / len(networks)
    totals = training.processes.total(sums).cpu()
    if method.score == "metric" and not totals[:-1].any():
        warnings.warn(
            f"The metric is 0 for both models on all {len(items)} items of a period, which gives no reward. A "
            "correlation is 0 on one row, and if all predictions are the same: raise reward_batch_size, or use "
            "score='loss'.",
            stacklevel=2,
        )
    return totals[:-1] / totals[-1].clamp(min=1)


def _score(method: AttendOut, training: TrainingContext, network: nn.Module, batch: Batch) -> float:
    loss, outputs = training.evaluate(network, batch)
    if method.score == "loss":
        return -float(loss)
    assert training.metric is not None
    if "labels" not in batch:
        raise AttendropError("score='metric' compares logits with 'labels', which the batch lacks; use score='loss'.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from metrics that are ill-defined on few examples
        found = training.metric(outputs.logits.float(), batch)
    if not math.isfinite(found):
        raise AttendropError(
            f"score='metric': the metric is {found} on a batch of {counted(number_of_rows(batch), 'row')}; raise "
            "reward_batch_size, or use score='loss'."
        )
    return found
