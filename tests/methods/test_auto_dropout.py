"""AutoDropout: patterns, trials that restart from the initial state, and the search."""

from __future__ import annotations

import copy
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.one_layer import context_of
from helpers.training import examples, take_step, trainer_of, weights
from torch import Tensor, nn
from transformers import EarlyStoppingCallback

from attendrop import ADDrop, AttendropError, AutoDropout, Compose, SuperT
from attendrop.attention.edits import AttentionCall
from attendrop.attention.layers import AttentionLayer
from attendrop.methods.auto_dropout import part_of, patterned, sample_pattern
from attendrop.methods.core.context import Processes
from attendrop.training.labelled_data import labelled_data
from attendrop.training.regularization import Regularization

AUTODROPOUT = sys.modules[AutoDropout.__module__]
PATTERN = {"size": 2, "stride": 3, "p": 0.6, "share_heads": False, "share_rows": False, "part": "all"}


# --- Patterns


def dropped(valid: Tensor | None = None, shape: tuple[int, int, int, int] = (6, 4, 12, 12), **pattern: Any) -> Tensor:
    context = context_of(shape[0])
    call = AttentionCall(context.adapter.attention_layers[0], shape, valid, torch.device("cpu"))
    edit = patterned(AutoDropout(), context, PATTERN | pattern).edit(call)
    drop = edit.drop
    assert drop is not None and drop.shape == shape
    return drop


def phase_of(row: list[bool], size: int, stride: int) -> int | None:
    """Where a pattern begins that gives this row, or None if the row is empty."""
    if not any(row):
        return None
    found = [b for b in range(size + stride) if [(k - b) % (size + stride) < size for k in range(len(row))] == row]
    assert found, row
    return found[0]


@pytest.mark.parametrize(("size", "stride", "p"), [(2, 3, 0.6), (5, 2, 1.0)])
def test_a_row_has_the_pattern_or_nothing(size: int, stride: int, p: float) -> None:
    drop = dropped(shape=(20, 4, 12, 12), size=size, stride=stride, p=p)
    phases = [phase_of(row, size, stride) for row in drop.flatten(0, 2).tolist()]
    chosen = [phase for phase in phases if phase is not None]
    assert len(chosen) / len(phases) == pytest.approx(p, abs=0.06)  # 3.5 standard deviations
    for begin in range(size + stride):
        assert chosen.count(begin) / len(chosen) == pytest.approx(1 / (size + stride), abs=0.07)
    assert drop.float().mean().item() == pytest.approx(p * size / (size + stride), abs=0.05)


@pytest.mark.parametrize(("share_heads", "share_rows"), [(False, True), (True, False)])
def test_what_is_shared(share_heads: bool, share_rows: bool) -> None:
    drop = dropped(share_heads=share_heads, share_rows=share_rows)
    assert bool((drop == drop[:, :1]).all()) == share_heads
    assert bool((drop == drop[:, :, :1]).all()) == share_rows
    assert not (drop == drop[:1]).all()


@pytest.mark.parametrize("share_rows", [False, True])
def test_patterns_are_counted_from_the_first_token(share_rows: bool) -> None:
    whole = dropped(shape=(6, 4, 9, 9), share_rows=share_rows)
    for left, right in ((0, 3), (3, 0)):
        valid = torch.nn.functional.pad(torch.ones(6, 1, 1, 9, dtype=torch.bool), (left, right))
        found = dropped(valid.expand(6, 1, 12, 12), share_rows=share_rows)
        inner = slice(left, left + 9)
        assert torch.equal(found[:, :, inner, inner], whole)
        assert found.sum() == found[..., inner].sum()


@pytest.mark.parametrize(("part", "expected"), [("all", [0, 1, 2]), ("lower", [0, 1]), ("upper", [1, 2])])
def test_parts_of_the_layers(part: str, expected: list[int]) -> None:
    attention_layers = [AttentionLayer(f"{kind}.{i}", kind, i) for kind in ("encoder", "cross") for i in range(3)]
    found = part_of(attention_layers, part)
    assert [layer.index for layer in found] == expected * 2


# --- Trials


def at_work(model: nn.Module, method: AutoDropout, steps: int, **options: Any) -> Regularization:
    held = labelled_data("reward_data", [zoo.batch_of("bert", (4, 6), seed=8), zoo.batch_of("bert", (5,), seed=9)],
                         torch.device("cpu"))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    training = {"optimizer": optimizer, "total_steps": steps, "reward_data": held}
    return Regularization(zoo.training(model, **(training | options)), method)


def test_trials_begin_anew_and_the_best_pattern_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps for each of three trials, whose patterns and scores are kept beside, then four with the best."""
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    reg = at_work(model, AutoDropout(search=0.6, trials=3), 10)
    method_state: Any = reg.method_state
    patterns, values = [], []

    def mean_loss() -> float:
        trained = copy.deepcopy(model).eval()
        losses = [
            trained(**zoo.batch_of("bert", (4, 6), seed=8)).loss * 2,
            trained(**zoo.batch_of("bert", (5,), seed=9)).loss,
        ]
        return sum(losses).item() / 3  # type: ignore[attr-defined]

    score = method_state._score
    monkeypatch.setattr(method_state, "_score", lambda: values.append(mean_loss()) or score())
    for step in range(10):
        if step < 6 and step % 2 == 0:
            zoo.assert_same(start, dict(model.state_dict()))
            assert not reg.training.optimizer.state  # type: ignore[union-attr]
            patterns.append(method_state.pattern)
        take_step(reg, batch)
        if step % 2 == 1 and step < 6:
            metrics = reg.metrics()
            assert metrics["autodropout/trial"] == len(values)
            assert metrics["autodropout/trial_loss"] == pytest.approx(values[-1])
    found = json.loads(json.dumps(method_state.final_report([])))["autodropout"]
    reg.close()
    assert len({json.dumps(pattern) for pattern in patterns}) == 3
    assert [trial["pattern"] for trial in found["trials"]] == patterns
    assert [trial["value"] for trial in found["trials"]] == pytest.approx(values)
    best = values.index(min(values))
    assert found["best"]["pattern"] == patterns[best] == method_state.pattern
    # What trained on is the start, with that pattern and the draws of steps 6 to 9.
    other = zoo.build("bert", dtype=torch.float64)
    alone = at_work(other, AutoDropout(search=0.6, trials=3), 10)
    alone.method_state.pattern = patterns[best]  # type: ignore[attr-defined]
    alone.method_state.trials = found["trials"]  # type: ignore[attr-defined]
    for step in range(6, 10):
        alone.begin_step(step)
        take_step(alone, batch)
    alone.close()
    zoo.assert_same(dict(other.state_dict()), dict(model.state_dict()), 1e-12)


def trial_losses(trainer: Any) -> list[float]:
    trainer.train()
    return [entry["autodropout/trial_loss"] for entry in trainer.state.log_history if "autodropout/trial_loss" in entry]


@pytest.mark.parametrize(
    "options",
    [{"lr_scheduler_type": "linear", "warmup_steps": 4},
     {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "uncounted": True},
     {"with": ADDrop(attribution="recorded", layers="all", p=0.5)}],
    ids=["a schedule, and a batch of two rows", "micro-batches left over, averaged by the trainer", "records of rows"],
)  # fmt: skip
def test_the_same_pattern_gives_the_same_loss_in_each_trial(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials begin anywhere in an epoch and in the schedule of the run; the model has dropout of its own."""
    monkeypatch.setattr(AUTODROPOUT, "sample_pattern", lambda *_: PATTERN)
    held = list(zoo.rows("bert", [5, 7, 4, 6], seed=9))
    options = {"num_train_epochs": 12, "train_dataset": examples(count=14)} | options
    uncounted, other = options.pop("uncounted", False), options.pop("with", None)
    method = AutoDropout(trials=4) if other is None else Compose(AutoDropout(trials=4), other)
    trainer = trainer_of(tmp_path, method, reward_dataset=held, **options)
    trainer.model_accepts_loss_kwargs = not uncounted
    losses = trial_losses(trainer)
    assert len(losses) == 4
    assert losses == [losses[0]] * 4


def test_a_trial_has_the_state_of_the_optimizer_and_falling_learning_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials of three steps, in a loop whose optimizer comes with momentum, and whose rate it changes itself."""
    monkeypatch.setattr(AUTODROPOUT, "sample_pattern", lambda *_: PATTERN)
    model, other = zoo.build("bert", dropout=0.1), zoo.batch_of("bert", seed=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(**other).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    rates, losses = [], []
    reg = at_work(model, AutoDropout(trials=2), 12, optimizer=optimizer)
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    for step in range(8):
        losses.append(reg.loss(zoo.batch_of("bert", seed=step)))
        losses[-1].backward()
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**step)
        optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.zero_grad()
        reg.step()
    reg.close()
    falling = [0.1, 0.1 * 2 / 3, 0.1 / 3]
    assert rates == pytest.approx([*falling, *falling, 0.1 * 0.9**6, 0.1 * 0.9**7])
    assert losses[:3] == losses[3:6]
    assert losses[6] != losses[0]
    first, second = (trial["value"] for trial in reg.method_state.trials)  # type: ignore[attr-defined]
    assert first == second


@pytest.mark.parametrize("calls", [1, 3])
def test_another_number_of_micro_batches_is_refused(calls: int) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    reg = at_work(model, AutoDropout(trials=2), 4)

    def accumulate(count: int) -> None:
        for _ in range(count):
            reg.loss(batch).backward()
        reg.training.optimizer.step()  # type: ignore[union-attr]
        reg.step()

    accumulate(2)
    with pytest.raises(AttendropError, match=r"first trial had 2 micro-batches.*Call reg\.loss equally often"):
        accumulate(calls)
    reg.close()


def test_the_score_is_a_mean_over_the_rows_of_all_processes() -> None:
    model, parts = zoo.build("bert"), []
    whole: Any = at_work(model, AutoDropout(trials=1), 4).method_state

    def keep(sums: Tensor) -> Tensor:
        parts.append(sums)
        return sum(parts) if len(parts) == 2 else sums  # type: ignore[return-value]

    for rank in range(2):
        method_state: Any = at_work(model, AutoDropout(trials=1), 4, processes=Processes(rank, 2, keep)).method_state
        found = method_state._score()
    assert found == pytest.approx(whole._score())
    assert model.training


def test_a_loss_that_is_no_number_is_the_worst() -> None:
    model = zoo.build("bert")
    method_state: Any = at_work(model, AutoDropout(trials=2), 4).method_state
    with torch.no_grad():
        model.classifier.bias.fill_(math.nan)
    assert method_state._score() == math.inf
    method_state.trials = [{"pattern": PATTERN, "value": math.inf}]
    assert method_state._next().keys() == PATTERN.keys()


def test_a_run_goes_on_exactly_from_anywhere(tmp_path: Path) -> None:
    """Two trials of two steps each, of eight."""
    method, options = AutoDropout(trials=2), {"reward_dataset": list(zoo.rows("bert", [5, 7, 4, 6], seed=9))}
    whole: Any = trainer_of(tmp_path, method, save_strategy="steps", save_steps=1, **options)
    whole.train()
    for step in (2, 3):
        resumed: Any = trainer_of(tmp_path, method, **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        zoo.assert_same(weights(whole), weights(resumed))
        assert whole.method_state.final_report([]) == resumed.method_state.final_report([])


def test_evaluations_during_the_search_do_not_count(tmp_path: Path) -> None:
    """The search is the first of two epochs' length, in which a metric that only falls has its best value."""
    held, falling = list(zoo.rows("bert", [5, 7, 4, 6], seed=9)), iter([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    trainer = trainer_of(
        tmp_path, SuperT(fraction=0.5, search=0.5), eval_strategy="steps", eval_steps=1, save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True, metric_for_best_model="score", greater_is_better=True, eval_dataset=held,
        reward_dataset=held, compute_metrics=lambda _: {"score": next(falling)}, callbacks=[EarlyStoppingCallback(9)],
    )  # fmt: skip
    trainer.train()
    assert trainer.state.best_metric == 0.6  # after step 4, when the search was over
    assert str(trainer.state.best_model_checkpoint).endswith("checkpoint-4")


# --- The search


def test_patterns_are_sampled_from_the_whole_space_and_follow_from_seed_and_trial() -> None:
    found = [sample_pattern(3, trial, 4, 2) for trial in range(200)]
    assert found[0] == sample_pattern(3, 0, 4, 2) != sample_pattern(4, 0, 4, 2)
    assert {pattern["size"] for pattern in found} == {1, 2, 3, 4}
    assert {pattern["stride"] for pattern in found} == {1, 2}
    assert {pattern["part"] for pattern in found} == {"all", "lower", "upper"}
    assert len({(pattern["share_heads"], pattern["share_rows"]) for pattern in found}) == 4
    assert min(pattern["p"] for pattern in found) < 0.2 and max(pattern["p"] for pattern in found) > 0.9


# --- What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [({"total_steps": None}, r"pass total_steps"), ({"optimizer": None}, r"pass optimizer"),
     ({"reward_data": None}, r"held-out labelled rows: pass reward_data"),
     ({"total_steps": 15}, r"search=0\.5 of 15 steps is 7, fewer than trials=8")],
)  # fmt: skip
def test_what_is_missing_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        at_work(zoo.build("bert"), AutoDropout(), **({"steps": options.pop("total_steps", 100)} | options))
