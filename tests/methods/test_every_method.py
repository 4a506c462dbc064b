"""What holds for each method in the table: evaluation, detaching, resuming, accumulation, half precision."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.checkpointing import checkpoint_activations
from helpers.table import BY_MICRO_BATCH, SAMPLED_ROWS, TABLE, given
from helpers.training import Gradients, trainer_of, weights

from attendrop import Method, regularize
from attendrop.methods.core.registry import method_names

METHODS = {name: method for name, method in TABLE.items() if name != "finetune"}
pytestmark = pytest.mark.sampled(4, SAMPLED_ROWS)
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


# Each method with one of the models in turn; with the other, slow.
CELLS = [
    pytest.param(method, name, id=f"{row}-{name}", marks=[pytest.mark.slow] * ((i + j) % 2))
    for i, (row, method) in enumerate(METHODS.items())
    for j, name in enumerate(("bert", "bart-class"))
]


def trace_of(model: torch.nn.Module) -> dict[str, Any]:
    """All that can be put on modules."""
    found: dict[str, Any] = {"implementation": model.config._attn_implementation}  # type: ignore[union-attr]
    for name, module in model.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        found[name] = [len(each) for each in hooks], set(vars(module)) & {"forward", "weight", "__getstate__"}
    return found


def test_every_registered_method_is_in_the_table() -> None:
    assert set(method_names()) == {method.name for method in TABLE.values() if method.parts == (method,)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("method", "name"), CELLS)
def test_evaluation_is_that_of_the_stock_model(method: Method, name: str) -> None:
    model, batch = zoo.build(name, dropout=0.1), zoo.batch_of(name)
    needed = given(model, batch)
    with regularize(model, method, **needed) as reg:
        reg.set_epoch(1)
        reg.loss(batch).backward()
        needed["optimizer"].step()
        reg.step()
        stock = zoo.build(name, dropout=0.1)
        stock.load_state_dict(model.state_dict())
        assert torch.equal(model.eval()(**batch).logits, stock.eval()(**batch).logits)
    stock.load_state_dict(model.state_dict())  # a method that works in periods has completed the last one
    assert torch.equal(model(**batch).logits, stock(**batch).logits)


@pytest.mark.sampled(3)
@every_method
def test_nothing_stays_on_the_model_when_training_is_interrupted(method: Method) -> None:
    model, batch = zoo.build("bert", dropout=0.1), zoo.batch_of("bert")
    before, names = trace_of(model), list(model.state_dict())
    needed = given(model, batch)
    with pytest.raises(KeyboardInterrupt), regularize(model, method, **needed) as reg:
        reg.loss(batch)
        assert list(model.state_dict()) == names
        raise KeyboardInterrupt
    assert trace_of(model) == before
    assert not needed["optimizer"]._optimizer_step_pre_hooks


# One without a state, and one of each kind of state that no test of its own resumes; the others are slow.
RESUMED = ("vanilla", "mixout", "child-tuning driven", "concrete-dropout", "contextual-dropout", "edropout")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "method", [pytest.param(m, id=row, marks=[] if row in RESUMED else pytest.mark.slow) for row, m in METHODS.items()]
)
def test_a_run_that_is_resumed_goes_on_exactly(method: Method, tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 3, "logging_strategy": "steps", "logging_steps": 1}
    options["reward_dataset"] = list(zoo.rows("bert", [5, 7, 4, 6], seed=9))
    whole = trainer_of(tmp_path, method, **options)
    whole.train()
    resumed = trainer_of(tmp_path, method, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    zoo.assert_same(weights(whole), weights(resumed))
    assert _logged(resumed.state.log_history) == _logged(whole.state.log_history)
    json.dumps(resumed.state.log_history)


def _logged(history: list[dict[str, float]]) -> list[dict[str, float]]:
    timed = ("runtime", "per_second", "flos", "train_loss", "steps_per")
    return [{k: v for k, v in entry.items() if not any(word in k for word in timed)} for entry in history]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", [name for name in METHODS if name not in BY_MICRO_BATCH])
def test_accumulation_equals_the_whole_batch(name: str, tmp_path: Path) -> None:
    found = []
    for size, steps in ((8, 1), (2, 4)):
        kept = Gradients()
        trainer = trainer_of(
            tmp_path, METHODS[name], model=zoo.build("bert", dtype=torch.float64), callbacks=[kept],
            per_device_train_batch_size=size, gradient_accumulation_steps=steps, max_steps=4, optim="sgd",
            max_grad_norm=0.0, reward_dataset=list(zoo.rows("bert", [5, 7, 4, 6], seed=9)),
        )  # fmt: skip
        trainer.train()
        found.append((kept.steps, weights(trainer)))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        zoo.assert_same(one, other, 1e-7)
    zoo.assert_same(found[0][1], found[1][1], 1e-7)


@pytest.mark.parametrize("row", [row for row in METHODS if row not in BY_MICRO_BATCH])
@pytest.mark.parametrize(
    ("name", "left"), [("bert", False), pytest.param("llama-class", True, marks=pytest.mark.sampled(4))]
)
def test_padding_changes_nothing(name: str, left: bool, row: str) -> None:
    found, logs = [], []
    for extra in (0, 5):
        model = zoo.build(name, dtype=torch.float64)
        batch = zoo.batch_of(name, extra=extra, left=left)
        with regularize(model, METHODS[row], **given(model, batch)) as reg:
            loss = reg.loss(batch)
            loss.backward()
            logs.append(reg.logs())
        found.append(zoo.gradients(model) | {"loss": loss.detach()})
    zoo.assert_same(found[0], found[1], 2e-5 if left else 1e-8)  # Llama computes its norms in float32
    assert logs[0] == pytest.approx(logs[1], rel=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.gpu
@every_method
def test_activation_checkpointing_changes_nothing(method: Method) -> None:
    found = []
    for checkpointing in (False, True):
        model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert")
        if checkpointing:
            checkpoint_activations(model)
        with regularize(model, method, **given(model, batch)) as reg:
            reg.loss(batch).backward()
            found.append((zoo.gradients(model), reg.logs()))
    zoo.assert_same(found[0][0], found[1][0], 1e-9)
    assert found[0][1] == pytest.approx(found[1][1])


@every_method
def test_the_models_own_dropout_is_that_of_plain_fine_tuning(method: Method) -> None:
    """The global random state after a step is the one that a plain step leaves, unless rows are repeated."""
    exempt = {"inputs", "weights", "layers"}
    if exempt & {place for part in method.parts for place in part.info.acts_on}:
        pytest.skip("runs more or fewer rows or layers than plain fine-tuning does, or has dropout of its own instead")
    states = []
    for regularizer in (None, method):
        model, batch = zoo.build("bert", dropout=0.1), zoo.batch_of("bert")
        copied = copy.deepcopy(batch)
        torch.manual_seed(5)
        if regularizer is None:
            model(**batch)
        else:
            with regularize(model, regularizer, **given(model, batch)) as reg:
                reg.loss(batch)
        assert all(torch.equal(copied[key], batch[key]) for key in batch)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
