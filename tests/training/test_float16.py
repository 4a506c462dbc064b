"""Training under float16 autocast with a real gradient scaler."""

from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.device import DEVICE
from helpers.plans import attached
from helpers.table import TABLE, given
from torch import Tensor

from attendrop import SCAL, ADDrop, AttendOut, AttendropError, Method, regularize
from attendrop.attribution.finite_gradients import finite_gradients
from attendrop.attribution.gradient import gradient_attribution
from attendrop_methods import HeadMask
from attendrop_methods.learnt_dropout import OwnParameters

pytestmark = pytest.mark.gpu
HALF = {"device_type": DEVICE.type, "dtype": torch.float16}


def at_work(model: Any, method: Method, batch: zoo.Batch, scaler: torch.amp.GradScaler | None) -> Any:
    """A regularised model, and all that some method needs."""
    return regularize(model, method, scaler=scaler, **given(model, batch))


def step(reg: Any, batch: zoo.Batch, scaler: torch.amp.GradScaler) -> None:
    """Take an optimizer step as PyTorch's documentation of mixed precision does."""
    with torch.autocast(**HALF, enabled=reg.model.dtype == torch.float32 and scaler.is_enabled()):
        loss = reg.loss(batch)
    scaler.scale(loss).backward()
    scaler.step(reg.training.optimizer)
    scaler.update()
    reg.training.optimizer.zero_grad()
    reg.step()


ATTRIBUTIONS: dict[str, Method] = {
    "gradient": ADDrop(p=0.3, layers="all"),
    "integrated": ADDrop(p=0.3, attribution="integrated_gradient", steps=2, layers="all"),
    "hidden": ADDrop(p=0.3, units="hidden", layers="all"),
}


@pytest.mark.parametrize("method", ATTRIBUTIONS.values(), ids=ATTRIBUTIONS)
def test_as_much_is_dropped_as_in_full_precision(method: Method) -> None:
    batch, found = zoo.batch_of("bert", (8, 5, 3)), []
    for half in (True, False):
        scaler = torch.amp.GradScaler(DEVICE.type, enabled=half)
        with at_work(zoo.build("bert"), method, batch, None) as reg:
            step(reg, batch, scaler)
            found.append(reg.logs())
    assert found[1]["ad_drop/dropped"] > 0.05
    for key, value in found[1].items():
        assert found[0][key] == pytest.approx(value, abs=0.03), key


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_gradients_are_ranked_whatever_their_size(factor: float) -> None:
    """Neither do small ones vanish, so that rows lose their signal, nor do large ones overflow."""
    found = {}
    for half in (True, False):
        model, batch = zoo.build("bert"), zoo.batch_of("bert")
        with torch.no_grad():
            model.classifier.weight.mul_(factor)
        adapter = attached(model, batch)
        with torch.autocast(**HALF, enabled=half):
            found[half] = gradient_attribution(adapter, batch, adapter.attention_layers, "gold_label")
    for key, exact in found[False].items():
        assert ((found[True][key] != 0) == (exact != 0)).all()
        torch.testing.assert_close(found[True][key], exact, rtol=0.1, atol=2e-3 * float(exact.abs().max()))


def test_what_overflows_is_computed_again_with_a_smaller_factor() -> None:
    asked = []

    def compute(factor: float) -> dict[str, Tensor]:
        asked.append(factor)
        return {"units": torch.tensor([900.0, 3.0], dtype=torch.float16) * factor}

    assert finite_gradients(compute, torch.nn.Identity())["units"].tolist() == [900, 3]
    assert asked == sorted(asked, reverse=True) and len(asked) == 2


@pytest.mark.parametrize("method", [ATTRIBUTIONS["integrated"], HeadMask(fraction=0.5, select_by="importance"), SCAL()])
def test_attributions_that_are_not_finite_are_an_error(method: Method) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.weight[0] = torch.inf
    with regularize(model, method) as reg, pytest.raises(AttendropError, match="not finite"):
        reg.loss(batch)


@pytest.mark.parametrize("method", [m for m in TABLE.values() if m.info.needs_loss_scale][:2], ids=lambda m: m.name)
def test_a_loss_scale_that_nobody_told_of_is_refused(method: Method) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    refused = pytest.raises(AttendropError, match=r"multiplied by 65536 .*regularize\(\.\.\., scaler=scaler\)")
    with at_work(model, method, batch, None) as reg, refused:
        step(reg, batch, torch.amp.GradScaler(DEVICE.type))


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, id=name, marks=[] if method.info.needs_loss_scale or not number % 9 else pytest.mark.slow)
        for number, (name, method) in enumerate(TABLE.items())
    ],
)
def test_a_loss_scale_changes_nothing(method: Method) -> None:
    """Methods that do not say that they need to know it do not."""
    batch, found = zoo.batch_of("bert"), []
    for scale in (1.0, 2.0**16):
        model = zoo.build("bert", dtype=torch.float64)
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=scale, enabled=scale > 1)
        with at_work(model, method, batch, scaler if method.info.needs_loss_scale else None) as reg:
            for _ in range(2):
                step(reg, batch, scaler)
            found.append({name: value.clone() for name, value in model.state_dict().items()} | kept(reg))
    zoo.assert_same(*found, 1e-9)


def kept(reg: Any) -> dict[str, Tensor]:
    """What trains beside the model."""
    found = {}
    for method_state in reg.method_state.parts:
        if isinstance(method_state.method, AttendOut):
            defender = reg.method_state.players.defender.model
            found |= {f"defender.{name}": value.clone() for name, value in defender.state_dict().items()}
        if isinstance(method_state, OwnParameters):
            found |= {name: value.detach().clone() for name, value in method_state.parameters.items()}
    return found


@pytest.mark.parametrize("name", ["contextual-dropout", "attendout"])
def test_steps_that_overflow_are_skipped_and_leave_nothing_behind(name: str) -> None:
    """The scaler halves its scale until nothing overflows, and skips the steps up to then."""
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**24, growth_interval=100)
    taken = []
    with at_work(model, TABLE[name], batch, scaler) as reg:
        while taken[-1:] != [True]:
            scale = scaler.get_scale()
            step(reg, batch, scaler)
            taken.append(scaler.get_scale() == scale)
            if not taken[-1]:
                assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
            assert all(value.isfinite().all() for value in kept(reg).values())
    assert not taken[0]
    assert not torch.equal(before["classifier.weight"], model.classifier.weight)
