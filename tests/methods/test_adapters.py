"""Models with adapters of PEFT: every method acts on what is trained, or says why it cannot."""

from __future__ import annotations

import copy
from typing import Any

import peft
import pytest
import torch
from helpers import zoo
from helpers.table import FIRST_STEP, ON_MOVED_WEIGHTS, PLAIN, TABLE, TERMS, given
from peft import LoraConfig, PeftConfig, get_peft_model
from torch import Tensor, nn

from attendrop import ADDrop, AttendropError, ChildTuning, Compose, FineTune, Method, Mixout, RDrop, SuperT, regularize
from attendrop_methods import SAM, DropConnect, LayerReinit

_TASKS = {"class": "SEQ_CLS", "lm": "CAUSAL_LM", "tokens": "TOKEN_CLS", "seq2seq": "SEQ_2_SEQ_LM"}


def lora(**options: Any) -> LoraConfig:
    """Options of LoRA of rank 2 on all linear layers but the head."""
    return LoraConfig(**({"r": 2, "lora_alpha": 4, "target_modules": "all-linear"} | options))


def adapted(name: str, config: PeftConfig | None = None, *, trained: bool = True, **options: Any) -> Any:
    """Make a model of the zoo with an adapter, LoRA if not given, whose weights are as after training."""
    config = config or lora()
    config.task_type = config.task_type or _TASKS[zoo.ZOO[name].task]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        model = get_peft_model(zoo.build(name, **options), config)
        for key, parameter in model.named_parameters():
            if trained and "modules_to_save" not in key and parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.train()


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def frozen(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}


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
    "dora": lora(use_dora=True),
    "embeddings": lora(target_modules=["query", "word_embeddings"]),
    "ia3": peft.IA3Config(target_modules=["key", "output.dense"], feedforward_modules=["output.dense"]),
    "loha": peft.LoHaConfig(r=2, target_modules=["query"]),
    "lokr": peft.LoKrConfig(r=2, target_modules=["query"]),
    "oft": peft.OFTConfig(oft_block_size=4, target_modules=["query"]),
    "vera": peft.VeraConfig(r=2, target_modules=["query"]),
    "norms": peft.LNTuningConfig(target_modules=["LayerNorm"]),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_adapters_of_every_kind_train(kind: str) -> None:
    model = adapted("bert", copy.deepcopy(CONFIGS[kind]))
    before = frozen(model)
    _, found = steps(model, Compose(ALWAYS, ChildTuning()), 2, rate=0.1)
    assert found.isfinite().all()
    assert found.any()
    zoo.assert_same(frozen(model), before)


def test_virtual_tokens_are_refused() -> None:
    model = adapted("bert", peft.PromptTuningConfig(num_virtual_tokens=3))
    with pytest.raises(AttendropError, match="prepends 3 virtual tokens"), regularize(model, ALWAYS):
        pass
