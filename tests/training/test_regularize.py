"""Custom training loops: ``regularize``, its arguments and its refusals."""

import json
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from helpers import zoo
from helpers.training import take_step
from torch.optim.swa_utils import AveragedModel

from attendrop import (
    SCAL,
    ADDrop,
    AttendOut,
    AttendropError,
    ChildTuning,
    Compose,
    FineTune,
    HiddenCut,
    LayerDrop,
    Method,
    Mixout,
    RDrop,
    Regularization,
    SuperT,
    Vanilla,
    regularize,
)
from attendrop.attention import graphs
from attendrop.attention.plan import keywords
from attendrop.methods.core.context import Processes
from attendrop_methods import (
    L2SP,
    R3F,
    SAM,
    AdversarialDropout,
    ConcreteDropout,
    ContextualDropout,
    DropConnect,
    HeadMask,
    LearnableBernoulli,
    TokenCutoff,
    UniDrop,
)

METHOD = ADDrop(p=0.5, q=0.5, layers="all")
RECORDED = ADDrop(p=0.4, q=0.5, layers="all", attribution="recorded")
CROSS = ADDrop(p=0.5, q=0.5, cross_tuning=True)


def test_training_in_evaluation_mode_is_an_error() -> None:
    """Models come from ``from_pretrained`` in it, and nothing would be regularised."""
    model, batch = zoo.build("bert").eval(), zoo.batch_of("bert")
    expected = model(**batch).loss
    with regularize(model, CROSS) as reg:
        reg.set_epoch(1)
        with pytest.raises(AttendropError, match=r"call model\.train\(\)"):
            reg.loss(batch)
        for off in (torch.no_grad(), torch.inference_mode()):
            with off:
                assert reg.loss(batch) == expected
        assert reg.logs().get("ad_drop/active", 0) == 0
        model.train()
        reg.loss(batch).backward()


def test_processes_draw_as_one() -> None:
    """Sequence ``i`` of the global batch is dropped alike, whichever process holds it."""
    examples = zoo.rows("bert", (9, 4, 6, 5, 8, 3, 7, 5))
    model = zoo.build("bert", dtype=torch.float64)
    with regularize(model, METHOD) as reg:
        reg.loss(zoo.collate(examples)).backward()
    expected = zoo.gradients(model)
    for rank in range(4):
        reg = Regularization(zoo.training(model, Processes(rank, 4)), METHOD)
        (reg.loss(zoo.collate(examples[rank * 2 : rank * 2 + 2])) / 4).backward()
        reg.close()
    zoo.assert_same(zoo.gradients(model), expected, 1e-10)


class OwnHead(torch.nn.Module):
    """A class as users write it: an encoder and a head, and outputs that are a dict or a tuple."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.encoder, self.kind = zoo.build("bert").bert, kind
        torch.manual_seed(0)
        self.task_type = torch.nn.Linear(16, zoo.LABELS)

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any = None, **kwargs: Any) -> Any:
        states = self.encoder(input_ids, attention_mask=attention_mask, **kwargs).last_hidden_state
        logits = self.task_type(states[:, 0])
        found = {} if labels is None else {"loss": torch.nn.functional.cross_entropy(logits, labels)}
        return found | {"logits": logits} if self.kind is dict else (*found.values(), logits)


class Pair(OwnHead):
    """A class that encodes two texts of a row one after the other."""

    def __init__(self) -> None:
        super().__init__(dict)

    def forward(self, input_ids: Any, mask: Any, other: Any, other_mask: Any, labels: Any = None, **kwargs: Any) -> Any:
        texts = ((input_ids, mask), (other, other_mask))
        read = [self.encoder(ids, attention_mask=mask, **kwargs).last_hidden_state[:, 0] for ids, mask in texts]
        logits = self.task_type(read[0] * read[1])
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Deaf(OwnHead):
    """The same, with a forward pass that keeps keyword arguments to itself."""

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any = None, **_: Any) -> Any:
        return super().forward(input_ids, attention_mask, labels)


@pytest.mark.parametrize(
    "models", [lambda: (OwnHead(tuple), OwnHead(dict)), lambda: (Wrapper(zoo.build("bert"), "bone"), zoo.build("bert"))]
)
def test_a_class_of_the_user(models: Any) -> None:
    """With a head of its own, or around a whole model, to change its loss."""
    found = []
    for model in models():
        with regularize(model.train(), METHOD) as reg:
            reg.loss(zoo.batch_of("bert")).backward()
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        found.append({name.removeprefix("bone."): gradient for name, gradient in gradients.items()})
    zoo.assert_same(*found)


class Wrapper(torch.nn.Module):
    """Names the parameters as ``torch.compile`` (``_orig_mod``) and Lightning Fabric (``_forward_module``) do."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        setattr(self, name, model)
        self.name = name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.name)(*args, **kwargs)


@pytest.mark.parametrize("method", [AttendOut(dropout_step=1), UniDrop()], ids=lambda m: m.name)
def test_a_class_of_the_user_needs_no_configuration(method: Method) -> None:
    model, batch = OwnHead(dict).train(), zoo.batch_of("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with regularize(model, method, optimizer=optimizer, reward_data=[batch]) as reg:
        take_step(reg, batch)


@pytest.mark.parametrize("method", [Mixout(), DropConnect(), ChildTuning()], ids=lambda m: m.name)
def test_a_wrapped_model_is_trained_as_the_bare_one(method: Any, monkeypatch: Any) -> None:
    """Masks are keyed by the names of parameters and modules."""
    monkeypatch.setattr("attendrop.methods.weights._SMALL", 0)  # each parameter has its own mask
    found = []
    for wrapped in (False, True):
        model, batch = zoo.build("bert"), zoo.batch_of("bert")
        run = Wrapper(Wrapper(model, "_orig_mod"), "_forward_module") if wrapped else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with regularize(run, method, optimizer=optimizer) as reg:
            take_step(reg, batch)
        found.append({str(number): weight.detach() for number, weight in enumerate(model.parameters())})
    zoo.assert_same(*found)


@pytest.mark.slow
def test_what_was_compiled_before_a_method_notices_its_hooks() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        compiled(**batch).loss.backward()
        model.zero_grad()
    losses = []
    for run in (model, compiled):
        with regularize(run, SAM(rho=0.5)) as reg:
            losses.append(reg.loss(batch))
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(compiled(**batch).loss, model(**batch).loss)
    assert losses[0] > model(**batch).loss + 1e-3


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("bert", RECORDED),
        pytest.param("bert", RDrop(), marks=pytest.mark.slow),
        *(pytest.param(name, Vanilla(p=0.3), marks=pytest.mark.slow) for name in ("bert", "modernbert", "llama")),
        *(pytest.param(name, METHOD, marks=pytest.mark.slow) for name in ("roberta", "llama")),
    ],
)
def test_a_compiled_model_stays_one_graph(name: str, method: Method) -> None:
    found = []
    for compiled in (False, True):
        model, batch = zoo.build(name), zoo.batch_of(name)
        torch.compiler.reset()
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        with regularize(run, method) as reg:
            losses = []
            for _ in range(3):
                model.zero_grad()
                losses.append(reg.loss(batch, rows=range(len(batch["input_ids"]))))
                losses[-1].backward()
                reg.step()
            found.append([torch.stack(losses).detach(), zoo.gradients(model), reg.logs()])
        assert not any("attendrop_place" in vars(module) for module in model.modules())
    assert found[0].pop() == found[1].pop()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert not graphs._COMPUTED


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        SuperT(fraction=0.5, search=0.5),
        ConcreteDropout(num_train_rows=9),
        LearnableBernoulli(num_train_rows=9),
        ContextualDropout(),
        AdversarialDropout(p=0.3, delta=0.3),
        *(SCAL(where=where) for where in ("attention", "embeddings")),
    ],
    ids=lambda method: f"{method.name}-{getattr(method, 'where', '')}",
)
def test_what_edits_read_beside_attention_has_gradients_in_a_compiled_model_too(method: Method) -> None:
    found = []
    for compiled in (False, True):
        model, batch = zoo.build("bert"), zoo.batch_of("bert")
        torch.compiler.reset()
        run = torch.compile(model, backend="eager") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with regularize(run, method, optimizer=optimizer, total_steps=4) as reg:
            loss = reg.loss(batch, rows=range(len(batch["input_ids"])))
            loss.backward()
            state = reg.method_state
            own = [each.grad for each in getattr(state, "parameters", {}).values()]
            own += [gate.grad for gates in getattr(state, "_gates", ()) for gate in gates.gates.values()]
            found.append([loss.detach(), *own, *(zoo.gradients(model).values())])
    assert not own or sum(each.abs().sum() for each in own) > 0
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert not graphs._COMPUTED


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "deberta-v3"])
def test_a_compiled_model_is_regularised_as_the_model_is(name: str) -> None:
    for method in (METHOD, RECORDED, LayerDrop(p=0.5), HiddenCut(alpha=0.5)):
        found = []
        for compiled in (False, True):
            model, batch = zoo.build(name), zoo.batch_of(name)
            with regularize(torch.compile(model, backend="eager") if compiled else model, method) as reg:
                reg.step()
                for _ in range(2):  # recorded attributions drop from rows that were seen before
                    model.zero_grad()
                    reg.loss(batch, rows=range(3)).backward()
                    reg.step()
                assert any("dropped" in key for key in reg.logs())
            found.append(zoo.gradients(model))
        zoo.assert_same(*found, 1e-6)


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
    [
        (HeadMask(fraction=0.5, select_by="importance"), "bert"),
        (RDrop(), "bert"),
        (AttendOut(dropout_step=1), "bert"),
        (METHOD, "bert-answers"),
    ],
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
    if name == "bert":
        return zoo.build(name), zoo.batch_of(name)
    batch = zoo.batch_of("bert", labels=False)
    batch |= {"start_positions": torch.tensor([1, 2, 0]), "end_positions": torch.tensor([3, 4, 2])}
    return zoo.from_class("BertForQuestionAnswering", {**zoo.ZOO["bert"].options, "num_labels": 2}).train(), batch


@pytest.mark.parametrize(
    ("method", "epochs", "warned"),
    [
        (CROSS, 2, []),
        (LayerDrop(p=1e-9), 1, ["layerdrop"]),
        (LayerDrop(p=0.5), 1, []),  # of one block of two
        (UniDrop(structure=1e-5), 1, []),  # it acts without being counted
        (Compose(CROSS, RDrop()), 1, ["ad-drop"]),
    ],
    ids=str,
)
def test_a_method_that_never_took_effect_is_warned_of_at_the_end(
    method: Any, epochs: int, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with regularize(model, method) as reg:
        for epoch in range(epochs):
            reg.set_epoch(epoch)
            reg.loss(batch).backward()
            reg.step()
            if epoch:
                reg.logs()
        assert not caplog.messages
    assert [message.split()[1] for message in caplog.messages] == warned
    assert all("never took effect" in message for message in caplog.messages)


@pytest.mark.parametrize("trains", [True, False])
def test_a_model_that_was_trained_without_the_method_is_told_of(trains: bool, caplog: pytest.LogCaptureFixture) -> None:
    """By a loop that calls the model instead of ``reg.loss``; one that only evaluates is silent."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    optimizer = torch.optim.AdamW(model.parameters())
    with regularize(model, METHOD):
        model(**batch).loss.backward()
        if trains:
            optimizer.step()
    told = "Method ad-drop never took effect: the model was called without it; compute the loss by reg.loss."
    assert caplog.messages == [told] * trains


def test_the_loss_of_the_loop_is_attributed() -> None:
    """Not that of the model, where ``reg.compute`` gets another."""
    model, found = zoo.build("bert"), []

    def weighted(given: Any, plan: Any = None, other: Any = None) -> Any:
        found.append(torch.is_grad_enabled())
        outputs = (other or model)(given["input_ids"], given["attention_mask"], **keywords(plan))
        return torch.nn.functional.cross_entropy(outputs.logits, torch.zeros(3, dtype=torch.long)), outputs

    with regularize(model, ADDrop(target="loss", layers="all")) as reg:
        reg.compute(zoo.batch_of("bert", labels=False), weighted)
    assert len(found) == 2


@pytest.mark.parametrize("method", [R3F(), TokenCutoff()], ids=str)
def test_methods_on_words_refuse_two_texts_of_a_row(method: Method) -> None:
    batch = zoo.batch_of("bert")
    texts = {"input_ids": batch["input_ids"], "other": batch["input_ids"], "labels": batch["labels"]}
    masks = {"mask": batch["attention_mask"], "other_mask": torch.ones_like(batch["attention_mask"])}
    with regularize(Pair().train(), method) as reg, pytest.raises(AttendropError, match="embeds words twice"):
        reg.loss(texts | masks)


@pytest.mark.parametrize("names", [("mask", "other_mask"), ("attention_mask", "other_mask")])
def test_recorded_attributions_act_on_both_texts_of_a_row(names: tuple[str, str]) -> None:
    """Also if they are padded to the same length, and differ in how much of it they fill."""

    class Named(Pair):
        def forward(self, **given: Any) -> Any:
            given["mask"], given["other_mask"] = (given.pop(name) for name in names)
            return super().forward(**given)

    batch, dropped = zoo.batch_of("bert", (8, 8)), []
    short = (torch.arange(8) < 3).long().expand(2, 8)
    texts = {"input_ids": batch["input_ids"], "other": batch["input_ids"], "labels": batch["labels"]}
    masks = {names[0]: short, names[1]: torch.ones_like(short)}
    with regularize(Named().train(), ADDrop(p=0.5, q=1.0, layers="all", attribution="recorded")) as reg:
        for _ in range(2):
            reg.loss(texts | masks, rows=[0, 1]).backward()
            reg.step()
        recorder = reg.method_state.parts[0].recorder  # type: ignore[attr-defined]
        recorder.flush()
        for layer, mask in sorted(recorder.rows[0].items()):
            dropped.append(int(mask.of(layer).any((0, 2)).sum()))
    assert dropped[0] == 3 < dropped[2]  # queries of the first layer


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


def test_a_second_block_around_a_model_is_refused() -> None:
    """Else one of two methods that replace weights would have no effect."""
    model, other = zoo.build("bert"), zoo.build("bert")
    with regularize(model, Mixout()):
        refusal = pytest.raises(AttendropError, match="already regularised; leave the other block first")
        with refusal, regularize(model, SAM()):
            pass
        with regularize(other, SAM()):
            pass
    with regularize(model, SAM()):
        pass


def test_a_refused_block_leaves_the_model_as_the_other_needs_it() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    with regularize(run, METHOD) as reg:
        with pytest.raises(AttendropError, match="already regularised"), regularize(run, METHOD):
            pass
        reg.loss(batch).backward()


@pytest.mark.parametrize("method", [RDrop(), Mixout(p=0.5)], ids=str)
def test_a_cache_is_refused_unless_the_model_runs_once(method: Any) -> None:
    """Each pass extends it, also the one that looks for attention layers."""
    model, batch = zoo.build("gpt2"), zoo.batch_of("gpt2", (8, 8))
    cache = model(batch["input_ids"], use_cache=True).past_key_values
    once = method.name == "mixout"
    refused = pytest.raises(AttendropError, match="'past_key_values' is a cache")
    with regularize(model, method) as reg, nullcontext() if once else refused:
        reg.loss({"input_ids": batch["input_ids"], "labels": batch["labels"], "past_key_values": cache}, rows=[0, 1])
    assert cache.get_seq_length() == 8 + 8 * once


def test_the_second_model_of_a_method_is_clipped_alike() -> None:
    moved = []
    for norm in (None, 1e-6):
        model, batch = zoo.build("bert"), zoo.batch_of("bert")
        options: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "reward_data": [batch]}
        with regularize(model, AttendOut(dropout_step=4), max_grad_norm=norm, **options) as reg:
            reg.loss(batch).backward()
            weight = reg.method_state.players.defender.model.classifier.weight  # type: ignore[attr-defined]
            before = weight.detach().clone()
            options["optimizer"].step()
            moved.append(float((weight.detach() - before).norm()))
    assert moved[0] > 1e-3 and 0 < moved[1] < 1e-6


@pytest.mark.parametrize(("method", "closes"), [(Mixout(), True), (DropConnect(p=0.5), False), (SAM(), False)], ids=str)
def test_an_interrupt_within_a_pass_leaves_no_changed_weights(
    method: Any, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop button of a notebook: torch calls no hooks after a module that it interrupts."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    expected = deepcopy(model).eval()(**batch).logits

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    with regularize(model, method, total_steps=8) as reg:
        reg.loss(batch)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(torch.nn.functional, "linear", stopped)
            reg.loss(batch)
        if not closes:
            assert torch.equal(model.eval()(**batch).logits, expected)
    assert not [module for module in model.modules() if "weight" in vars(module)]
    assert torch.equal(deepcopy(model).eval()(**batch).logits, expected)


def test_a_search_that_never_ended_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """As where micro-batches were counted for total_steps."""
    for total in (4, 40):
        model, batch = zoo.build("bert"), zoo.batch_of("bert")
        options: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "reward_data": [batch]}
        assert "planned steps" not in caplog.text
        with regularize(model, Compose(L2SP(), SuperT(fraction=0.5)), total_steps=total, **options) as reg:
            for _ in range(4):
                take_step(reg, batch)
    assert "ended after 4 of 40 planned steps, within the search of method supert" in caplog.text


@pytest.mark.parametrize("method", [L2SP(), AttendOut(dropout_step=3)])
def test_a_step_may_compute_its_gradients_in_a_closure(method: Any) -> None:
    """As in Lightning; what acts on gradients, or steps with the optimizer, waits for them."""
    found = []
    batch, other = zoo.batch_of("bert"), zoo.batch_of("bert", (6, 7), seed=5)
    for step in ("plain", "positional", "named"):
        model = zoo.build("bert", dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        given = Accelerator(cpu=True).prepare(optimizer) if step == "plain" else optimizer  # whose wrapper is known
        with regularize(model, method, optimizer=given, reward_data=[batch]) as reg:

            def closure(model: Any = model, reg: Any = reg) -> Any:
                model.zero_grad()
                loss = reg.loss(other)
                loss.backward()
                return loss

            for _ in range(2):
                if step == "plain":
                    closure()
                arguments, named = [closure] * (step == "positional"), {"closure": closure} if step == "named" else {}
                optimizer.step(*arguments, **named)
                reg.step()
            trained = reg.method_state.players.defender.model if method.name == "attendout" else model
            found.append({name: value.clone() for name, value in trained.state_dict().items()})
    zoo.assert_same(found[0], found[1])
    zoo.assert_same(found[0], found[2])


REFUSED: dict[str, dict[str, Any]] = {
    "output_attentions on": {"model": lambda: zoo.build("bert", "eager", output_attentions=True)},
    "needs 'labels'": {"model": lambda: zoo.build("bert", return_dict=False), "labels": False},
    r"DataParallel is a wrapper .* its \.module": {"model": lambda: torch.nn.DataParallel(zoo.build("bert"))},
    r"AveragedModel is a wrapper .* its \.module": {
        "model": lambda: Wrapper(AveragedModel(zoo.build("bert")), "_forward_module"), "method": FineTune(),
    },
    r"let forward take \*\*kwargs": {"model": lambda: Deaf(dict).train()},
    "A method is an object": {"method": RDrop},
    "takes one optimizer, not 2": {"optimizer": ["one", "two"], "method": FineTune()},
    "a list of as many integers": {"rows": [0.0, 1.0, 2.0]},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    given = dict(REFUSED[message])
    model, method = given.pop("model", partial(zoo.build, "bert"))(), given.pop("method", METHOD)
    batch, rows = zoo.batch_of("bert", labels=given.pop("labels", True)), given.pop("rows", None)
    with pytest.raises(AttendropError, match=message), regularize(model, method, **given) as reg:
        reg.loss(batch, rows=rows)


def test_a_batch_that_calls_the_encoder_more_often_than_the_first_is_refused() -> None:
    class Windows(OwnHead):
        def forward(self, input_ids: Any, attention_mask: Any, labels: Any, **kwargs: Any) -> Any:
            for ids, mask in zip(input_ids.split(4, 1), attention_mask.split(4, 1), strict=True):
                found = super().forward(ids, mask, labels, **kwargs)
            return found

    with regularize(Windows(dict).train(), METHOD) as reg:
        reg.loss(zoo.batch_of("bert", (8, 8)))
        with pytest.raises(AttendropError, match=r"more than 2 times in one pass\. Either an earlier"):
            reg.loss(zoo.batch_of("bert", (12, 8)))


def test_what_is_refused_or_told_after_the_block(caplog: pytest.LogCaptureFixture) -> None:
    """Attention would no longer be regularised; and all losses were taken as one step."""
    with regularize(zoo.build("bert"), RECORDED) as reg:
        for epoch in range(2):
            reg.set_epoch(epoch)
            reg.loss(zoo.batch_of("bert", (6, 4)), rows=[0, 1])
    with pytest.raises(AttendropError, match="block of regularize has ended"):
        reg.loss(zoo.batch_of("bert"))
    assert "reg.step() was never called, so method ad-drop took all losses as one optimizer step." in caplog.text
