"""Super tickets: importances, what is pruned, and stays pruned, and the rewinding to the initial weights."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.training import take_step, trainer_of, weights
from torch import Tensor, nn

from attendrop import SuperT
from attendrop.methods.supert import lowest
from attendrop.training.regularization import Regularization

HALF = SuperT(fraction=0.5, search=0.5)


def at_work(model: nn.Module, method: SuperT = HALF, steps: int = 2, **options: Any) -> Regularization:
    """One of two steps is the search's."""
    training = {"optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1), "total_steps": steps}
    return Regularization(zoo.training(model, **(training | options)), method)


def concluded(reg: Regularization) -> dict[str, Any]:
    return json.loads(json.dumps(reg.method_state.final_report([])))["supert"]


# --- What is important


def magnitude(products: Tensor, absolute: str) -> float:
    """Of ``(n, units)``, for one row: the gradient of one gate, or of one for each token, and its absolute value."""
    return sum(abs(token.sum().item()) for token in products) if absolute == "token" else abs(products.sum().item())


def sensitivities(model: Any, rows: list[zoo.Batch], absolute: str) -> dict[str, Any]:
    """``E |dL/dg|`` of a BERT, a row at a time: what a gate multiplies, times the gradient there, summed."""
    heads = {f"encoder.{i}": [0.0, 0.0] for i in range(2)}
    forwards = {f"encoder.{i}": 0.0 for i in range(2)}
    for row in rows:
        seen: dict[Any, Tensor] = {}
        hooks = []
        for i, layer in enumerate(model.bert.encoder.layer):

            def before(module: nn.Module, args: Any, i: int = i, seen: Any = seen) -> None:
                args[0].retain_grad()
                seen[i, "heads"] = args[0]

            def after(module: nn.Module, args: Any, output: Tensor, i: int = i, seen: Any = seen) -> None:
                output.retain_grad()
                seen[i, "feed_forward"] = output

            hooks.append(layer.attention.output.dense.register_forward_pre_hook(before))
            hooks.append(layer.output.dense.register_forward_hook(after))
        model(**zoo.collate([row])).loss.backward()
        for hook in hooks:
            hook.remove()
        for i in range(2):
            product = (seen[i, "heads"] * seen[i, "heads"].grad).view(-1, 2, 8)
            for head in range(2):
                heads[f"encoder.{i}"][head] += magnitude(product[:, head], absolute) / len(rows)
            output = seen[i, "feed_forward"][0]
            forwards[f"encoder.{i}"] += magnitude(output * seen[i, "feed_forward"].grad[0], absolute) / len(rows)
    model.zero_grad()
    return {"heads": heads, "feed_forward": forwards}


@pytest.mark.parametrize(("cut", "scale", "absolute"), [(4, 1.0, "row"), (2, 256.0, "token")])
def test_importance_is_the_mean_of_absolute_gradients(cut: int, scale: float, absolute: str) -> None:
    rows = zoo.rows("bert", (8, 5, 3, 6))
    model = zoo.build("bert", dtype=torch.float64)
    expected = sensitivities(copy.deepcopy(model), rows, absolute)
    reg = at_work(model, SuperT(fraction=0.5, search=0.5, absolute=absolute))
    reg.loss_scale = scale
    for start in range(0, 4, cut):
        (reg.loss(zoo.collate(rows[start : start + cut])) * scale * cut / 4).backward()
    reg.step()
    found = concluded(reg)["importance"]
    reg.close()
    for key in ("encoder.0", "encoder.1"):
        assert found["heads"][key] == pytest.approx(expected["heads"][key], rel=1e-9)
        assert found["feed_forward"][key] == pytest.approx(expected["feed_forward"][key], rel=1e-9)


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


# --- The ticket


def without(model: Any, found: dict[str, Any], batch: zoo.Batch) -> Tensor:
    """The logits of a model whose pruned heads and feed-forwards put out zeros."""
    places = {
        "gpt2": lambda i: (model.transformer.h[i].attn.c_proj, model.transformer.h[i].mlp.c_proj),
        "llama": lambda i: (model.model.layers[i].self_attn.o_proj, model.model.layers[i].mlp.down_proj),
    }[model.config.model_type]
    hooks = []
    for key, numbers in found["heads"].items():

        def mask(module: nn.Module, args: Any, key: str = key, numbers: Any = numbers) -> Any:
            heads = len(found["importance"]["heads"][key])
            split = args[0].unflatten(-1, (heads, -1)).clone()
            split[..., numbers, :] = 0
            return (split.flatten(-2),)

        hooks.append(places(int(key[-1]))[0].register_forward_pre_hook(mask))
    for key in found["feed_forward"]:
        hooks.append(places(int(key[-1]))[1].register_forward_hook(lambda m, a, output: output * 0))
    logits: Tensor = model.eval()(**batch).logits
    for hook in hooks:
        hook.remove()
    return logits


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_stock_model_is_the_ticket(name: str) -> None:
    model, batch = zoo.build(name, dtype=torch.float64), zoo.batch_of(name)
    start = copy.deepcopy(model)
    reg = at_work(model)
    take_step(reg, batch)
    found = concluded(reg)
    reg.close()
    heads = start.config.num_attention_heads * 2
    assert sum(map(len, found["heads"].values())) == heads // 2
    assert len(found["feed_forward"]) == 1
    torch.testing.assert_close(model.eval()(**batch).logits, without(start, found, batch))
    changed = [key for key, value in start.state_dict().items() if not torch.equal(value, model.state_dict()[key])]
    assert 0 < len(changed) <= 4
    for key in changed:
        now = model.state_dict()[key]
        assert ((now == 0) | (now == start.state_dict()[key])).all()


@pytest.mark.parametrize("used", [False, True], ids=["a new optimizer", "one that has moments"])
def test_what_is_pruned_stays_zero_and_the_rest_trains(used: bool) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    if used:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    reg = at_work(model, SuperT(fraction=0.5, search=0.25), steps=4, optimizer=optimizer)
    take_step(reg, batch)
    assert reg.metrics() == {"supert/pruned/heads": 2.0, "supert/pruned/feed_forward": 1.0}
    assert bool(optimizer.state) == used
    zeros = {name: value == 0 for name, value in model.named_parameters()}
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(3):
        take_step(reg, batch)
    reg.close()
    pruned = 0
    for name, value in model.named_parameters():
        assert (value[zeros[name]] == 0).all()
        pruned += int(zeros[name].sum())
        if "dense" in name and not zeros[name].all():
            assert (value != before[name])[~zeros[name]].float().mean() > 0.9
    assert pruned >= 2 * 8 * 16 + 16 * 16 + 16


def test_a_run_goes_on_exactly_before_and_after_the_way_back(tmp_path: Path) -> None:
    """The search takes 2 of 8 steps."""
    whole: Any = trainer_of(tmp_path, SuperT(fraction=0.5), save_strategy="steps", save_steps=1)
    whole.train()
    for step in (1, 3):
        resumed: Any = trainer_of(tmp_path, SuperT(fraction=0.5))
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        zoo.assert_same(weights(whole), weights(resumed))
        assert whole.method_state.final_report([]) == resumed.method_state.final_report([])


# --- What is refused
