"""Models with adapters of PEFT: every method acts on what is trained, or says why it cannot."""

from __future__ import annotations

import copy
from typing import Any

import peft
import pytest
import torch
from helpers import zoo
from helpers.adapters import adapted, frozen, lora, trained
from helpers.table import FIRST_STEP, ON_MOVED_WEIGHTS, PLAIN, TABLE, TERMS, given
from torch import Tensor, nn
from transformers.integrations.peft import MIN_PEFT_VERSION

from attendrop import (
    L2SP,
    SAM,
    ADDrop,
    AttendOut,
    AttendropError,
    ChildTuning,
    Compose,
    ConcreteDropout,
    DropConnect,
    FineTune,
    HiddenCut,
    LayerReinit,
    Method,
    Mixout,
    RDrop,
    SuperT,
    regularize,
)

MODELS = ("bert", "llama-class")
ALWAYS = ADDrop(p=0.5, q=0.5, layers="all")
# Methods that see the parameters, for which an adapter and its sum with the model are not the same.
OF_PARAMETERS = (Mixout, DropConnect, ChildTuning, SAM, SuperT, LayerReinit)
ROWS = [
    pytest.param(name, row, marks=() if (7 * i + j) % 14 == 0 else pytest.mark.slow)
    for i, name in enumerate(MODELS)
    for j, row in enumerate(TABLE | TERMS)
    if row not in ON_MOVED_WEIGHTS
]


def steps(model: Any, method: Method, count: int, *, rate: float) -> tuple[Tensor, Tensor]:
    """The loss and the gradients of what is trained, in the last of some steps on the same batch."""
    batch, seen = zoo.batch_of("bert"), []
    needed = given(model, batch) | {"optimizer": torch.optim.SGD(trained(model), lr=rate)}
    with regularize(model, method, **needed) as reg:
        needed["optimizer"].register_step_pre_hook(lambda *_: seen.append(gradients(model)))
        for _ in range(count):
            model.zero_grad()
            torch.manual_seed(5)
            loss = reg.loss(batch)
            loss.backward()
            needed["optimizer"].step()
            reg.step()
    return loss.detach(), seen[-1]


def gradients(model: nn.Module) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained(model)])


def shared(first: nn.Module, second: nn.Module) -> tuple[int, int]:
    """Count the elements of the second model that are the first's, and those of its own."""
    theirs = {parameter.data_ptr() for parameter in first.parameters()}
    counts = {True: 0, False: 0}
    for parameter in second.parameters():
        counts[parameter.data_ptr() in theirs] += parameter.numel()
    return counts[True], counts[False]


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_every_method_acts_on_the_adapter_and_changes_nothing_else(name: str, row: str) -> None:
    method, dropout = (TABLE | TERMS)[row], {"dropout": 0.1} if row.startswith("r-drop") else {}
    model = adapted(name, **dropout)
    before = frozen(model)
    if method.info.edits_pretrained_weights:
        with pytest.raises(AttendropError, match="are not saved with an adapter"):
            steps(model, method, 1, rate=0.0)
        return
    _, found = steps(model, method, FIRST_STEP.get(row, 1), rate=0.0)
    _, plain = steps(adapted(name, **dropout), FineTune(), 1, rate=0.0)
    assert ((found / found.norm() - plain / plain.norm()).norm() > 1e-3) == (row not in PLAIN)
    steps(model, method, 2, rate=0.1)
    assert frozen(model).keys() == before.keys()
    zoo.assert_same(frozen(model), before)


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_a_method_does_to_an_adapter_what_it_does_to_the_merged_model(name: str, row: str) -> None:
    """Blocks, feed-forwards and heads are those of the model, not the matrices within an adapter."""
    method = (TABLE | TERMS)[row]
    if isinstance(method, OF_PARAMETERS):
        pytest.skip("the parameters are other ones")
    model = adapted(name, dtype=torch.float64)
    merged = copy.deepcopy(model).merge_and_unload().train().requires_grad_()
    found = [steps(each, method, 1, rate=0.0)[0] for each in (model, merged)]
    torch.testing.assert_close(*found, rtol=1e-9, atol=0)


def test_a_part_of_a_composition_must_not_change_the_model_under_an_adapter() -> None:
    method = Compose(LayerReinit(), RDrop())
    with pytest.raises(AttendropError, match="'layer-reinit' changes weights"), regularize(adapted("bert"), method):
        pass


CONFIGS = {
    "lora": lora(),
    "lora on queries": lora(target_modules=["query", "value"]),
    "dora": lora(use_dora=True),
    "embeddings": lora(target_modules=["query", "word_embeddings"]),
    "ia3": peft.IA3Config(target_modules=["key", "output.dense"], feedforward_modules=["output.dense"]),
    "loha": peft.LoHaConfig(target_modules=["query", "value"]),
    "lokr": peft.LoKrConfig(target_modules=["query", "value"]),
    "oft": peft.OFTConfig(target_modules=["query", "value"], oft_block_size=4),
    "layer norms": peft.LNTuningConfig(target_modules=["LayerNorm"]),
    "vera": peft.VeraConfig(target_modules=["query", "value"], r=2),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "method", [ALWAYS, HiddenCut(alpha=0.3, where="feed_forward"), ChildTuning()], ids=lambda method: method.name
)
@pytest.mark.parametrize("kind", CONFIGS)
def test_adapters_of_every_kind_train(kind: str, method: Method) -> None:
    model = adapted("bert", copy.deepcopy(CONFIGS[kind]))
    before = frozen(model)
    _, found = steps(model, method, 2, rate=0.1)
    assert found.isfinite().all()
    assert found.any()
    zoo.assert_same(frozen(model), before)


@pytest.mark.parametrize("kind", ["oft", "vera"])
def test_an_adapter_whose_weight_is_not_known_is_refused(kind: str) -> None:
    """OFT multiplies the weight, and its matrix may have the weight's shape."""
    model, method = adapted("bert", copy.deepcopy(CONFIGS[kind])), ConcreteDropout(num_train_rows=8)
    with pytest.raises(AttendropError, match="is not known; use LoRA"), regularize(model, method) as reg:
        reg.loss(zoo.batch_of("bert"))


def test_an_adapter_that_transformers_added_trains() -> None:
    pytest.importorskip("peft", minversion=MIN_PEFT_VERSION)
    model = zoo.build("bert")
    model.add_adapter(lora())
    _, found = steps(model, HiddenCut(alpha=0.3, where="feed_forward"), 1, rate=0.1)
    assert found.any()


VIRTUAL = {
    "prompt": (peft.PromptTuningConfig, {}),
    "prefix": (peft.PrefixTuningConfig, {}),
    "p-tuning": (peft.PromptEncoderConfig, {"encoder_hidden_size": 4}),
}


@pytest.mark.parametrize(("kind", "name"), [("prompt", "bert"), ("prefix", "llama"), ("p-tuning", "bert")])
def test_virtual_tokens_are_refused(kind: str, name: str) -> None:
    config, options = VIRTUAL[kind]
    model = adapted(name, config(num_virtual_tokens=3, **options))
    with (
        pytest.raises(AttendropError, match=r"prepends 3 virtual tokens .* Use an adapter without them, such as LoRA"),
        regularize(model, ALWAYS),
    ):
        pass


def test_attention_that_an_adapter_computes_itself_is_refused() -> None:
    model = adapted("llama", peft.AdaptionPromptConfig(adapter_len=2, adapter_layers=1))
    with pytest.raises(AttendropError, match="computes attention itself"), regularize(model, ALWAYS) as reg:
        reg.loss(zoo.batch_of("llama"))


# --- What methods do to parameters


def test_mixout_takes_an_adapter_back_to_its_start() -> None:
    model = adapted("bert")
    start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    with regularize(model, Mixout(p=0.999999), **given(model, zoo.batch_of("bert"))) as reg:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(1.0 if "lora_" in name else 0.0)
        mixed = reg.loss(zoo.batch_of("bert"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in start:
                parameter.copy_(start[name])
    torch.testing.assert_close(mixed, model(**zoo.batch_of("bert")).loss)


def test_l2_sp_pulls_an_adapter_back_to_its_start() -> None:
    """A step of the size that undoes all of the penalty."""
    model = adapted("bert")
    start = {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" in name}
    optimizer = torch.optim.SGD(trained(model), lr=0.5)
    with regularize(model, L2SP(alpha=2.0), optimizer=optimizer) as reg:
        (reg.loss(zoo.batch_of("bert")) * 0).backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(1.0 if name in start else 0.0)
        optimizer.step()
    zoo.assert_same({name: p for name, p in model.named_parameters() if name in start}, start, 1e-6)


def test_child_tuning_says_what_a_new_adapter_leaves_untrained(caplog: pytest.LogCaptureFixture) -> None:
    steps(adapted("bert", trained=False), ChildTuning(variant="D"), 1, rate=0.0)
    assert "no Fisher information in 12 of 24 parameters at the start (base_model.model" in caplog.text
    caplog.clear()
    steps(adapted("bert"), ChildTuning(variant="D"), 1, rate=0.0)
    assert not caplog.text


# --- Two models


def test_attendout_has_two_adapters_on_one_model() -> None:
    model, method = adapted("bert"), AttendOut(dropout_step=1)
    with regularize(model, method, **given(model, zoo.batch_of("bert"))) as reg:
        reg.loss(zoo.batch_of("bert")).backward()
        state: Any = reg.method_state
        found = shared(model, state.players.defender.model)
    own = sum(parameter.numel() for parameter in trained(model))
    assert found == (sum(parameter.numel() for parameter in model.parameters()) - own, own)
