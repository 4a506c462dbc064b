"""Custom training loops: ``regularize``, its arguments and its refusals."""

import copy
import inspect
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.checkpointing import checkpoint_activations
from torch.optim.swa_utils import AveragedModel

from attendrop import (
    SCAL,
    ADDrop,
    AttendOut,
    AttendropError,
    AutoDropout,
    Compose,
    FineTune,
    HeadMask,
    HiddenCut,
    LayerDrop,
    RDrop,
    Regularization,
    RegularizedTrainer,
    UniDrop,
    regularize,
)
from attendrop.methods.core.context import Processes
from attendrop.methods.core.registry import build_method, method_names

METHOD = ADDrop(p=0.5, q=0.5, layers="all")
RECORDED = ADDrop(p=0.4, q=0.5, layers="all", attribution="recorded")
CROSS = ADDrop(p=0.5, q=0.5, cross_tuning=True)


def test_the_loop_of_the_docstring_trains() -> None:
    assert "reg.step()" in (inspect.getdoc(regularize) or "")
    model, batches = zoo.build("bert", dropout=0.1), [zoo.batch_of("bert", seed=i) for i in range(3)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with regularize(model, ADDrop()) as reg:
        for epoch in range(10):
            reg.set_epoch(epoch)
            for batch in batches:
                loss = reg.loss(batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                reg.step()
        assert reg.steps_taken == 30
    model.eval()
    with torch.no_grad():
        assert sum(float(model(**batch).loss) for batch in batches) / 3 < 0.5


@pytest.mark.parametrize("method", [CROSS, FineTune()], ids=["cross-tuning", "finetune"])
def test_training_in_evaluation_mode_is_an_error(method: Any) -> None:
    """Models come from ``from_pretrained`` in it, and nothing would be regularised."""
    model, batch = zoo.build("bert").eval(), zoo.batch_of("bert")
    expected = model(**batch).loss
    with regularize(model, method) as reg:
        reg.set_epoch(1)
        with pytest.raises(AttendropError, match=r"call model\.train\(\)"):
            reg.loss(batch)
        for off in (torch.no_grad(), torch.inference_mode()):
            with off:
                assert reg.loss(batch) == expected
        assert reg.logs().get("ad_drop/active", 0) == 0
        model.train()
        reg.loss(batch).backward()


def test_cross_tuning_alternates_and_says_so() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    plain = model(**batch).loss
    with regularize(model, CROSS) as reg:
        for epoch in range(4):
            reg.set_epoch(epoch)
            loss, logs = reg.loss(batch), reg.logs()
            assert bool(loss == plain) == (epoch % 2 == 0)
            assert logs["ad_drop/active"] == epoch % 2
            assert ("ad_drop/dropped" in logs) == (epoch % 2 == 1)


def test_forgetting_the_epoch_is_an_error() -> None:
    with (
        regularize(zoo.build("bert"), CROSS) as reg,
        pytest.raises(AttendropError, match=r"set_epoch\(epoch\), from 0"),
    ):
        reg.loss(zoo.batch_of("bert"))


def test_plain_fine_tuning_leaves_the_model_untouched() -> None:
    model, batch = zoo.build("bert", dropout=0.2), zoo.batch_of("bert")
    torch.manual_seed(0)
    expected = model(**batch).loss
    with regularize(model, FineTune()) as reg:
        assert model.config._attn_implementation == "sdpa"
        torch.manual_seed(0)
        assert reg.loss(batch) == expected
        assert reg.logs() == {}


def test_plain_fine_tuning_takes_any_model() -> None:
    model = zoo.from_class(*zoo.REFUSED["megatron-bert"])
    with regularize(model, FineTune()) as reg:
        assert torch.isfinite(reg.loss(zoo.batch_of("bert")))


def test_a_batch_without_labels_is_an_error() -> None:
    batch = zoo.batch_of("bert", labels=False)
    with regularize(zoo.build("bert"), METHOD) as reg, pytest.raises(AttendropError, match=r"labels"):
        reg.loss(batch)


def test_a_batch_without_tensors_is_an_error() -> None:
    with regularize(zoo.build("bert"), METHOD) as reg, pytest.raises(AttendropError, match=r"no tensors"):
        reg.loss({})


@pytest.mark.gpu
def test_backward_may_follow_later_and_elsewhere() -> None:
    """The trainer calls backward after the loss was returned; recomputed layers must reuse the same masks."""
    batches = [zoo.batch_of("bert", seed=i) for i in range(2)]
    found = []
    for late in (False, True):
        model = zoo.build("bert", dropout=0.2, dtype=torch.float64)
        checkpoint_activations(model)
        torch.manual_seed(0)
        with regularize(model, METHOD) as reg:
            losses = []
            for batch in batches:
                losses.append(reg.loss(batch))
                if not late:
                    losses.pop().backward()
            for loss in reversed(losses):
                loss.backward()
        found.append(zoo.gradients(model))
    zoo.assert_same(*found, 1e-12)


@pytest.mark.gpu
def test_state_goes_on_where_it_was() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")

    def losses(reg: Regularization, count: int) -> list[torch.Tensor]:
        found = []
        for _ in range(count):
            found.append(reg.loss(batch).detach())
            reg.step()
        return found

    with regularize(model, METHOD, seed=5) as reg:
        whole, logs = losses(reg, 4), reg.logs()
    with regularize(model, METHOD, seed=5) as reg:
        first, state = losses(reg, 2), copy.deepcopy(reg.state_dict())
    with regularize(model, METHOD) as reg:
        reg.load_state_dict(state)
        second = losses(reg, 2)
        assert reg.logs() == logs
    assert first + second == whole


def test_logs_start_anew_after_they_were_read() -> None:
    with regularize(zoo.build("bert"), METHOD) as reg:
        reg.loss(zoo.batch_of("bert"))
        first = reg.logs()
        reg.step()
        assert reg.logs() == {"ad_drop/active": 0}
        reg.loss(zoo.batch_of("bert"))
        assert set(reg.logs()) == set(first)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_processes_draw_as_one(ranks: int) -> None:
    """Sequence ``i`` of the global batch is dropped alike, whichever process holds it."""
    examples = zoo.rows("bert", (9, 4, 6, 5, 8, 3, 7, 5))
    model = zoo.build("bert", dtype=torch.float64)
    with regularize(model, METHOD) as reg:
        reg.loss(zoo.collate(examples)).backward()
    expected = zoo.gradients(model)
    per_rank = 8 // ranks
    for rank in range(ranks):
        reg = Regularization(zoo.training(model, Processes(rank, ranks)), METHOD)
        (reg.loss(zoo.collate(examples[rank * per_rank : (rank + 1) * per_rank])) / ranks).backward()
        reg.close()
    zoo.assert_same(zoo.gradients(model), expected, 1e-10)


class Around(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.backbone = model

    def forward(self, **batch: Any) -> Any:
        return self.backbone(**batch)


@pytest.mark.parametrize(
    ("wrapper", "inside"), [(torch.nn.DataParallel, "module"), (AveragedModel, "module"), (Around, "backbone")]
)
def test_wrappers_are_refused_in_words(wrapper: Any, inside: str) -> None:
    model = wrapper(zoo.build("bert"))
    with (
        pytest.raises(AttendropError, match=rf"{wrapper.__name__} is a wrapper .* its \.{inside}"),
        regularize(model, FineTune()),
    ):
        pass


def test_what_acts_without_being_counted_is_not_called_idle(caplog: pytest.LogCaptureFixture) -> None:
    with regularize(zoo.build("bert"), UniDrop(structure=1e-5)) as reg:
        reg.loss(zoo.batch_of("bert")).backward()
        reg.step()
    assert "never took effect" not in caplog.text


def compiled_model(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def compiled_layers(model: Any) -> Any:
    for layer in model.base_model.encoder.layer:
        layer.compile(backend="eager")
    return model


def replaced_layers(model: Any) -> Any:
    encoder = model.base_model.encoder
    encoder.layer = torch.nn.ModuleList(torch.compile(layer, backend="eager") for layer in encoder.layer)
    return model


COMPILED = [
    ("bert", METHOD, compiled_model),
    ("bert", LayerDrop(p=0.5), compiled_model),
    ("bert", RECORDED, compiled_model),
    *(
        pytest.param(name, method, how, marks=pytest.mark.slow)
        for name in ("bert", "deberta-v3", "mpnet")
        for method in (METHOD, LayerDrop(p=0.5), RECORDED)
        for how in (compiled_model, compiled_in_place, compiled_layers)
        if (name, how) != ("bert", compiled_model)
    ),
]


@pytest.mark.parametrize(("name", "method", "how"), COMPILED)
def test_a_compiled_model_is_regularised_as_the_model_is(name: str, method: Any, how: Any) -> None:
    found = []
    for compiled in (False, True):
        model, batch = zoo.build(name), zoo.batch_of(name)
        run = how(model) if compiled else model
        with regularize(run, method) as reg:
            reg.step()
            for _ in range(2):  # recorded attributions drop from rows that were seen before
                model.zero_grad()
                reg.loss(batch, rows=range(3)).backward()
                reg.step()
            assert any("dropped" in key for key in reg.logs())
        found.append(zoo.gradients(model))
    zoo.assert_same(found[0], found[1], 1e-6)


@pytest.mark.slow
def test_layers_that_are_replaced_by_compiled_ones_drop_attention_and_are_not_skipped() -> None:
    model, batch = replaced_layers(zoo.build("bert")), zoo.batch_of("bert")
    with regularize(model, METHOD) as reg:
        found = reg.loss(batch)
    with regularize(zoo.build("bert"), METHOD) as reg:
        torch.testing.assert_close(found, reg.loss(batch))
    with pytest.raises(AttendropError, match="wrapped already"), regularize(model, LayerDrop(p=0.5)) as reg:
        reg.loss(batch)


TUPLES = {
    "ad-drop": METHOD,
    "ad-drop integrated": ADDrop(attribution="integrated_gradient", steps=2, layers="all"),
    "headmask": HeadMask(fraction=0.5, select_by="importance"),
    "r-drop": RDrop(),
    "hiddencut": HiddenCut(alpha=0.3),
    "scal": SCAL(),
    "attendout": AttendOut(dropout_step=1),
}


class Tuples(torch.nn.Module):
    """A model around another, which returns tuples."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.config, self.inner = inner.config, inner

    def forward(self, labels: Any = None, **kwargs: Any) -> Any:
        given = kwargs if labels is None else {**kwargs, "labels": labels}
        return self.inner(**given).to_tuple()


@pytest.mark.parametrize(
    ("method", "name"),
    [(method, "bert") for method in TUPLES.values()]
    + [(METHOD, name) for name in ("bart-class", "gpt2", "bert-answers")],
    ids=str,
)
def test_models_that_return_tuples_are_supported(method: Any, name: str) -> None:
    found = []
    for tuples in (False, True):
        model, batch = model_and_batch(name)
        model = Tuples(model).train() if tuples else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with regularize(model, method, optimizer=optimizer, reward_data=[batch], total_steps=1) as reg:
            found.append(reg.loss(batch))
            found[-1].backward()
            optimizer.step()
            reg.step()
    torch.testing.assert_close(*found)


def model_and_batch(name: str) -> tuple[Any, zoo.Batch]:
    if name != "bert-answers":
        return zoo.build(name), zoo.batch_of(name)
    batch = zoo.batch_of("bert", labels=False)
    batch |= {"start_positions": torch.tensor([1, 2, 0]), "end_positions": torch.tensor([3, 4, 2])}
    options = {**zoo.ZOO["bert"].options, "num_labels": 2}
    return zoo.from_class("BertForQuestionAnswering", options).train(), batch


@pytest.mark.parametrize(
    ("method", "epochs", "warned"),
    [
        (CROSS, 1, ["ad-drop"]),
        (CROSS, 2, []),
        (METHOD, 1, []),
        (FineTune(), 1, []),
        (LayerDrop(p=1e-9), 1, ["layerdrop"]),
        (RDrop(), 1, []),
        (Compose(CROSS, RDrop()), 1, ["ad-drop"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("logs", [False, True])
def test_a_method_that_never_took_effect_is_warned_of_at_the_end(
    method: Any, epochs: int, warned: list[str], logs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with regularize(model, method) as reg:
        for epoch in range(epochs):
            reg.set_epoch(epoch)
            reg.loss(batch).backward()
            reg.step()
            if logs:
                reg.logs()
        assert not caplog.messages
    assert [message.split()[1] for message in caplog.messages] == warned
    assert all("never took effect" in message for message in caplog.messages)
    assert all("cross_tuning=False" in message for message in caplog.messages if "ad-drop" in message)


def test_a_loop_that_does_not_ask_for_its_loss_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with regularize(model, METHOD) as reg:
        model(**batch).loss.backward()
        reg.step()
    assert "Method ad-drop never took effect" in caplog.text


def test_a_block_that_fails_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with pytest.raises(KeyboardInterrupt), regularize(model, CROSS) as reg:
        reg.set_epoch(0)
        reg.loss(batch)
        raise KeyboardInterrupt
    assert not caplog.messages


def test_what_took_effect_before_a_restart_counts(caplog: pytest.LogCaptureFixture) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with regularize(model, CROSS) as reg:
        reg.set_epoch(1)
        reg.loss(batch).backward()
        reg.step()
        reg.logs()
        state = json.loads(json.dumps(reg.state_dict()))
    with regularize(model, CROSS) as reg:
        reg.load_state_dict(state)
        reg.set_epoch(2)
        reg.loss(batch).backward()
        reg.step()
    assert not caplog.messages


@pytest.mark.parametrize("method", [AttendOut(dropout_step=2), AutoDropout(trials=1, search=0.6)], ids=str)
def test_a_method_that_keeps_batches_refuses_one_with_a_graph(method: Any) -> None:
    """Words that are embedded outside, as mixup does: the graph behind them is gone after the first backward pass."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    batch["inputs_embeds"] = model.get_input_embeddings()(batch.pop("input_ids"))
    options = {"optimizer": torch.optim.SGD(model.parameters(), 0.1), "reward_data": [zoo.batch_of("bert")]}
    with (
        regularize(model, method, total_steps=4, **options) as reg,
        pytest.raises(AttendropError, match="'inputs_embeds' requires a gradient"),
    ):
        reg.loss(batch)


def test_a_shallow_copy_of_the_configuration_makes_a_stock_model(tmp_path: Path) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with regularize(model, METHOD) as reg:
        reg.loss(batch)
        copied = copy.copy(model.config)
    other = type(model)(copied)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(**batch).logits, model.eval()(**batch).logits)
    other.save_pretrained(tmp_path)
    assert "attendrop" not in (tmp_path / "config.json").read_text()
    with regularize(other.train(), METHOD) as reg:
        assert reg.loss(batch).isfinite()
    assert copied._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", method_names())
def test_a_refused_block_leaves_nothing_behind(name: str) -> None:
    """Without rows, some methods are refused, also when another method has begun."""
    model = zoo.build("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(AttendropError), regularize(model, build_method(f"sam+{name}"), optimizer=optimizer):
        pass
    hooks = [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
    assert not [*hooks, *optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks]
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("given", "example"),
    [("ad-drop", "ADDrop()"), (RDrop, "RDrop()"), (0.3, "ADDrop(p=0.3)")],
)
def test_what_is_no_method_is_refused(given: Any, example: str) -> None:
    message = re.escape(f"A method is an object, such as {example}, and not {given!r}.")
    with pytest.raises(AttendropError, match=message), regularize(zoo.build("bert"), given):
        pass
    with pytest.raises(AttendropError, match=message):
        RegularizedTrainer(model=zoo.build("bert"), regularizer=given)


def test_a_batch_is_a_mapping() -> None:
    batch = zoo.batch_of("bert")
    with regularize(zoo.build("bert").train(), METHOD) as reg, pytest.raises(AttendropError, match="not a tuple: pass"):
        reg.loss((batch["input_ids"], batch["labels"]))  # type: ignore[arg-type]


def test_a_block_that_never_computes_a_loss_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = zoo.build("bert").train()
    with regularize(model, METHOD) as reg:
        model(**zoo.batch_of("bert")).loss.backward()
        reg.step()
    assert [record.getMessage() for record in caplog.records] == [
        "Method ad-drop never took effect: the model was called without it. Compute the loss by reg.loss."
    ]
