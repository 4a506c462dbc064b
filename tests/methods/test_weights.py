"""Mixout, Child-Tuning and super tickets: what becomes of weights and gradients."""

from __future__ import annotations

import copy
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import gated
from helpers.training import moved, take_step, trainer_of, weights
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from attendrop import ChildTuning, Compose, LayerDrop, Mixout, SuperT, regularize
from attendrop.methods import weights as weight_methods
from attendrop.methods.core.context import LabelledRows
from attendrop.methods.core.parameters import pretrained_parameters, projection_weights
from attendrop.methods.weights import fisher_information, lowest
from attendrop.training.regularization import Regularization


@pytest.mark.parametrize(("name", "unit"), [("bert", "element"), ("gpt2", "neuron")])
def test_mixout_replaces_weights_below_the_head_by_their_pretrained_values(name: str, unit: str) -> None:
    """Of a neuron all together: mixing with zero then is dropout of the layer's input."""
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    seen: dict[str, Tensor] = {}
    with regularize(model, Mixout(p=0.6, unit=unit)) as reg:
        reg.loss(batch)
        before = moved(model)
        for each in projection_weights(model):
            model.get_submodule(each.removesuffix(".weight")).register_forward_pre_hook(
                lambda module, _, each=each: seen.update({each: module.weight.detach().clone()})
            )
        reg.loss(batch)
    shares = []
    for each, value in seen.items():
        replaced = torch.isclose(value, before[each])
        kept = (model.get_parameter(each).detach() - 0.6 * before[each]) / 0.4
        torch.testing.assert_close(value, torch.where(replaced, before[each], kept))
        replaced = replaced.T if name == "gpt2" else replaced  # (in, out) to (out, in)
        assert torch.equal(replaced.all(0), replaced.any(0)) == (unit == "neuron")
        shares.append(replaced.flatten() if unit == "element" else replaced[0])
    assert float(torch.cat(shares).double().mean()) == pytest.approx(0.6, abs=0.03 if unit == "element" else 0.12)
    assert not any("classifier" in each or "lm_head" in each for each in seen)


class OwnHead(nn.Module):
    """A class as users write it: an encoder, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.query = zoo.build("bert").bert, nn.Linear(16, 3), nn.Parameter(torch.zeros(16))


def peft_own_head() -> Any:
    return get_peft_model(OwnHead(), LoraConfig(target_modules=["query"], modules_to_save=["head"]))


def clip_classifier() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = sizes | {"image_size": 8, "patch_size": 4}
    return zoo.from_class("CLIPForImageClassification", {"text_config": sizes, "vision_config": vision})


@pytest.mark.parametrize(
    ("made", "head"),
    [
        (OwnHead, ("head.", "query")),
        (peft_own_head, ("base_model.model.head.", "base_model.model.query")),
        (clip_classifier, ("classifier.",)),
        (lambda: zoo.from_class("T5ForQuestionAnswering", zoo.ZOO["t5"].options), ("qa_outputs.",)),
        (lambda: zoo.from_class("CLIPModel", clip_classifier().config.to_dict()), ()),  # its projections are not new
    ],
    ids=["own", "peft", "clip", "t5", "clip-base"],
)
def test_a_new_head_is_not_pretrained_where_the_class_has_no_base_model(made: Any, head: tuple[str, ...]) -> None:
    """As in classes of one's own, and those of transformers that are built like these."""
    model = made()
    names = {name for name, _ in model.named_parameters()}
    new = {name for name in names if name.startswith(head)}
    assert names - new == set(pretrained_parameters(model))
    assert not new & set(projection_weights(model))


def test_mixout_mixes_what_is_unfrozen_later() -> None:
    """With the values of the start; also after an interruption before it is unfrozen again."""
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    dense = model.bert.pooler.dense
    dense.weight.requires_grad_(False)
    start, seen = dense.weight.detach().clone(), list[Tensor]()
    with regularize(model, Mixout(p=0.5)) as reg:
        reg.loss(batch)
        dense.weight.requires_grad_(True)
        reg.loss(batch)
        with torch.no_grad():
            dense.weight += 1
        dense.register_forward_pre_hook(lambda module, _: seen.append(module.weight.detach().clone()))
        reg.loss(batch)
        dense.weight.requires_grad_(False)
    resumed = Regularization(zoo.training(model), Mixout()).method_state
    resumed.load_state_dict(reg.method_state.state_dict(), {})
    found = (seen[0] - start).round(decimals=6)
    assert sorted(found.unique().tolist()) == [0, 2]
    assert torch.equal(resumed.state_dict()["pretrained"]["bert.pooler.dense.weight"], start)


def test_what_is_unfrozen_later_leaves_other_methods_on_the_same_modules() -> None:
    """LayerDrop acted no more in blocks that mixout had a hook on, and was logged as if it did."""
    model, batch, ran = zoo.build("bert"), zoo.batch_of("bert"), list[int]()
    layers = model.bert.encoder.layer
    for number, layer in enumerate(layers):
        layer.attention.self.register_forward_hook(lambda *_, number=number: ran.append(number))
    layers[0].requires_grad_(False)
    with regularize(model, Compose(LayerDrop(p=1.0), Mixout())) as reg:
        for step in range(3):
            layers[0].requires_grad_(step > 0)
            reg.loss(batch)
            ran.clear()
            reg.loss(batch)
            assert ran == [] and "__getstate__" in vars(layers[1])
    assert not any({"forward", "__getstate__"} & vars(module).keys() for module in model.modules())


def masked(method: ChildTuning, steps: int = 1, **options: Any) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """The gradients before and after the mask, at each step."""
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    found = []
    with regularize(model, method, optimizer=optimizer, train_data=[batch], **options) as reg:
        for _ in range(steps):
            reg.loss(batch).backward()
            before = {name: p.grad.clone() for name, p in model.named_parameters()}
            weights = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.step()
            after = {name: (weights[name] - p.detach()) / 1e-3 for name, p in model.named_parameters()}
            found.append((before, after))
            optimizer.zero_grad()
            reg.step()
    return found


@pytest.mark.parametrize("small", [0, 1 << 14])
def test_f_draws_every_element_by_itself(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a parameter is drawn alone, with other small ones, or row by row, as word embeddings are."""
    monkeypatch.setattr(weight_methods, "_SMALL", small)
    (before, after), (_, next_step) = masked(ChildTuning(p=0.3), steps=2)
    words = "bert.embeddings.word_embeddings.weight"
    for name in (words, "bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.1.output.dense.weight"):
        rows = before[name].abs().amax(1) > 1e-7
        assert (after[name][~rows] == 0).all()
        kept = (after[name][rows].abs() > 1e-9).double()
        assert float(kept.mean()) == pytest.approx(0.3, abs=0.12)
        assert len({tuple(row) for row in kept.int().tolist()}) == len(kept)
    masks = [after[f"bert.encoder.layer.{layer}.output.dense.weight"] != 0 for layer in (0, 1)]
    assert not torch.equal(*masks)
    masks.append(next_step["bert.encoder.layer.1.output.dense.weight"] != 0)
    assert not torch.equal(*masks[1:])
    scaled = torch.where(after[words].abs() > 1e-9, before[words] / 0.3, 0.0)
    torch.testing.assert_close(after[words], scaled, atol=1e-8, rtol=1e-6)


def test_d_keeps_the_stated_share_of_the_layers_for_the_whole_run() -> None:
    found = masked(ChildTuning(variant="D", p=0.25), steps=2)
    names = [name for name, _ in zoo.build("bert").named_parameters() if ".layer." in name]
    for before, after in found:
        for name in before:
            if name not in names:  # embeddings and head are trained whole
                torch.testing.assert_close(after[name], before[name], atol=1e-8, rtol=1e-6)
    masks = [torch.cat([(after[name].abs() > 1e-12).flatten() for name in names]) for _, after in found]
    assert torch.equal(masks[0], masks[1])
    assert float(masks[0].double().mean()) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("max_norm", [0.0, 0.05])
def test_the_fisher_information_is_the_mean_squared_gradient_of_single_rows(max_norm: float) -> None:
    """As in the authors' code, the gradient of each parameter may be clipped before."""
    model = zoo.build("bert", dtype=torch.float64, dropout=0.3)
    rows = [zoo.collate([row]) for row in zoo.rows("bert", (4, 7, 5))]
    training = zoo.training(model, train_data=LabelledRows(rows, None, torch.device("cpu")))
    state = torch.get_rng_state()
    found = fisher_information(training, ChildTuning(variant="D", fisher_max_norm=max_norm))
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    expected: dict[str, Tensor] = {}
    for row in rows:
        model.zero_grad()
        logits = model(**row).logits
        loss = torch.log(logits.exp().sum()) - logits[0, row["labels"][0]]
        loss.backward()
        for name in found:
            if max_norm:
                torch.nn.utils.clip_grad_norm_(model.get_parameter(name), max_norm)
            expected[name] = expected.get(name, 0) + model.get_parameter(name).grad ** 2 / 3
    assert set(found) == {name for name, _ in model.named_parameters() if ".layer." in name}
    for name in found:
        torch.testing.assert_close(found[name].double(), expected[name], rtol=1e-5, atol=1e-9)


HALF = SuperT(fraction=0.5, search=0.5)


def ticket_of(model: nn.Module, method: SuperT = HALF, steps: int = 2, **options: Any) -> Regularization:
    """One of two steps is the search's."""
    training = {"optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1), "total_steps": steps}
    return Regularization(zoo.training(model, **(training | options)), method)


def concluded(reg: Regularization) -> dict[str, Any]:
    return json.loads(json.dumps(reg.method_state.final_report([])))["supert"]


def sensitivities(model: Any, rows: list[zoo.Batch], absolute: str) -> dict[str, dict[str, list[float]]]:
    """``E |dL/dg|`` of a BERT, a row at a time: what a gate multiplies, times the gradient there, summed."""
    found = {"heads": {f"encoder.{i}": [0.0, 0.0] for i in range(2)}}
    found["feed_forward"] = {f"encoder.{i}": [0.0] for i in range(2)}
    seen: dict[tuple[str, str], Tensor] = {}
    for i, layer in enumerate(model.bert.encoder.layer):
        heads, forward = ("heads", f"encoder.{i}"), ("feed_forward", f"encoder.{i}")
        layer.attention.output.dense.register_forward_pre_hook(lambda _, args, k=heads: seen.update({k: args[0]}))
        layer.output.dense.register_forward_hook(lambda _, args, output, k=forward: seen.update({k: output}))
    for row in rows:
        loss = model(**zoo.collate([row])).loss
        gradients = torch.autograd.grad(loss, list(seen.values()))
        for ((kind, key), unit), gradient in zip(seen.items(), gradients, strict=True):
            units = found[kind][key]
            products = (unit * gradient)[0].unflatten(-1, (len(units), -1))  # by token
            for number in range(len(units)):
                tokens = products[:, number].sum(-1)  # the gradient of one gate for each token
                units[number] += float(tokens.abs().sum() if absolute == "token" else tokens.sum().abs()) / len(rows)
    return found


@pytest.mark.parametrize(("cut", "scale", "absolute"), [(4, 1.0, "row"), (2, 256.0, "token")])
def test_importance_is_the_mean_of_absolute_gradients(cut: int, scale: float, absolute: str) -> None:
    rows = zoo.rows("bert", (8, 5, 3, 6))
    model = zoo.build("bert", dtype=torch.float64)
    expected = sensitivities(copy.deepcopy(model), rows, absolute)
    reg = ticket_of(model, SuperT(fraction=0.5, search=0.5, absolute=absolute))
    reg.loss_scale = scale
    for start in range(0, 4, cut):
        (reg.loss(zoo.collate(rows[start : start + cut])) * scale * cut / 4).backward()
    reg.step()
    found = concluded(reg)["importance"]
    reg.close()
    for key in ("encoder.0", "encoder.1"):
        assert found["heads"][key] == pytest.approx(expected["heads"][key], rel=1e-9)
        assert [found["feed_forward"][key]] == pytest.approx(expected["feed_forward"][key], rel=1e-9)


def test_heads_are_ranked_within_their_layer_and_feed_forwards_apart() -> None:
    importance = {
        "heads/encoder.0": torch.tensor([30.0, 400.0, 0.0]),
        "heads/encoder.1": torch.tensor([0.3, 0.1, 0.4]),
        "feed_forward/encoder.0": torch.tensor([9.0]),
        "feed_forward/encoder.1": torch.tensor([2.0]),
    }
    found = lowest(importance, 0.5)
    assert found["heads/encoder.0"] == [0, 2]  # 30 is 0.07 of its layer's norm, 0.1 is 0.2 of its own
    assert found["heads/encoder.1"] == [1]
    assert (found["feed_forward/encoder.0"], found["feed_forward/encoder.1"]) == ([], [0])
    assert not any(lowest(importance, 0.1).values())


def test_the_stock_model_is_the_ticket() -> None:
    """What is pruned has become zero, and nothing else has changed."""
    model, batch = zoo.build("gpt2", dtype=torch.float64), zoo.batch_of("gpt2")
    start = copy.deepcopy(model)
    reg = ticket_of(model)
    take_step(reg, batch)
    found = concluded(reg)
    reg.close()
    heads = [found["heads"][f"decoder.{i}"] for i in range(2)]
    assert sum(map(len, heads)) == start.config.num_attention_heads
    assert len(found["feed_forward"]) == 1
    changed = [key for key, value in start.state_dict().items() if not torch.equal(value, model.state_dict()[key])]
    assert 0 < len(changed) <= 4
    for key in changed:
        now = model.state_dict()[key]
        assert ((now == 0) | (now == start.state_dict()[key])).all()
    with ExitStack() as stack:
        for i, block in enumerate(start.transformer.h):
            gates = [[float(head not in heads[i]) for head in range(start.config.num_attention_heads)]]
            stack.enter_context(gated(block.attn.c_proj, gates * len(batch["input_ids"])))
            if f"decoder.{i}" in found["feed_forward"]:
                block.mlp.c_proj.register_forward_hook(lambda module, args, output: output * 0)
        torch.testing.assert_close(model.eval()(**batch).logits, start.eval()(**batch).logits)


def test_what_is_pruned_stays_zero_and_the_rest_trains() -> None:
    """Also with an optimizer that has moments."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    reg = ticket_of(model, SuperT(fraction=0.5, search=0.25), steps=4, optimizer=optimizer)
    take_step(reg, batch)
    assert reg.metrics() == {"supert/pruned/heads": 2.0, "supert/pruned/feed_forward": 1.0}
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(3):
        take_step(reg, batch)
    reg.close()
    for name, value in model.named_parameters():
        zeros = before[name] == 0
        assert (value[zeros] == 0).all()
        if "dense" in name and not zeros.all():
            assert (value != before[name])[~zeros].float().mean() > 0.9


def test_a_run_goes_on_exactly_before_and_after_the_way_back(tmp_path: Path) -> None:
    """The search takes 2 of 8 steps."""
    whole: Any = trainer_of(tmp_path, SuperT(fraction=0.5), save_strategy="steps", save_steps=1)
    whole.train()
    for step in (1, 3):
        resumed: Any = trainer_of(tmp_path, SuperT(fraction=0.5))
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        zoo.assert_same(weights(whole), weights(resumed))
        assert whole.method_state.final_report([]) == resumed.method_state.final_report([])
