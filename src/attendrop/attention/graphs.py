"""Plans within compiled models: the attention of a layer as one operation of the graph, so that no graph breaks there.

A plan is an ordinary Python object, new in each pass, that makes masks and keeps records. So the graph holds an
operation that calls it when the graph runs, and computes the layer with a graph of its own; another differentiates it.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attendrop.attention.computation import Inputs, follow
from attendrop.attention.plan import Plan
from attendrop.errors import AttendropError

# Keywords of attention functions that the operation passes on; with others that are tensors, the graph breaks.
_PASSED_ON = ("dropout", "scaling", "is_causal", "softcap")
_LIBRARY = torch.library.Library("attendrop", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "attend(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor plan, str place, bool differentiable, "
    "float? dropout, float? scaling, bool? is_causal, float? softcap) -> (Tensor, Tensor)"
)
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "attend_backward(Tensor gradient, Tensor number, Tensor query, Tensor key, Tensor value) "
    "-> (Tensor, Tensor, Tensor)"
)
# What operations have computed and is still to be differentiated, by number: the leaves of its graph, and the output.
_COMPUTED: dict[int, tuple[list[Tensor], Tensor]] = {}
_numbers = itertools.count()


def fits_a_graph(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Return whether :func:`follow_in_graph` can compute a layer: it is being compiled, and has no bias of its own."""
    tensors = any(isinstance(value, Tensor) and name != "position_ids" for name, value in kwargs.items())
    return torch.compiler.is_compiling() and not tensors and hasattr(module, "attendrop_place")


def follow_in_graph(plan: Plan, module: nn.Module, tensors: Inputs, kwargs: dict[str, Any]) -> Tensor:
    """Compute one SDPA layer under the plan by one operation of the graph, or as stock does if it changes nothing."""
    differentiable = torch.is_grad_enabled() and any(each.requires_grad for each in tensors[:3])
    given = (kwargs.get(name) for name in _PASSED_ON)
    output: Tensor = _Attend.apply(*tensors, plan.number, module.attendrop_place, differentiable, *given)  # type: ignore[no-untyped-call]
    return output


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *given: Any) -> Tensor:
        output, number = torch.ops.attendrop.attend(query, key, value, *given)
        ctx.save_for_backward(number, query, key, value)
        ctx.others = len(given)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = torch.ops.attendrop.attend_backward(*gradients, *ctx.saved_tensors)
        return (*found, *(None for _ in range(ctx.others)))


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, number: Tensor, *given: Any
) -> tuple[Tensor, Tensor]:
    plan, (place, differentiable, *options) = Plan.running[int(number)], given
    module = next(module for module in plan.modules if module.attendrop_place == place)
    leaves = [each.detach().requires_grad_(differentiable) for each in (query, key, value)]
    kwargs = {name: value for name, value in zip(_PASSED_ON, options, strict=True) if value is not None}
    with _above_autograd(), torch.set_grad_enabled(differentiable):
        tensors = leaves[0], leaves[1], leaves[2], mask
        found = follow(plan, module, tensors, kwargs, eager=False)
        output = (ALL_ATTENTION_FUNCTIONS["sdpa"](module, *tensors, **kwargs) if found is None else found)[0]
        output = output.to(query.dtype).contiguous()
    own = next(_numbers)
    key_of_graph = torch.tensor(own)
    if differentiable:
        _COMPUTED[own] = leaves, output
        weakref.finalize(key_of_graph, _COMPUTED.pop, own, None)  # where no backward pass comes
    return output.detach(), key_of_graph


def _attend_backward(gradient: Tensor, number: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    if int(number) not in _COMPUTED:
        raise AttendropError(
            "A compiled, regularised model was differentiated twice, and the first backward pass freed its graph; "
            "differentiate it once, or do not compile it."
        )
    leaves, output = _COMPUTED.pop(int(number))
    with _above_autograd(), torch.enable_grad():
        # What an edit reads besides, such as gates or learnt probabilities, gets its gradient here, layer by layer.
        torch.autograd.backward(output, gradient, retain_graph=True)
    return tuple(
        torch.zeros_like(leaf, memory_format=torch.contiguous_format) if leaf.grad is None else leaf.grad.contiguous()
        for leaf in leaves
    )


def _above_autograd() -> Any:
    """Let operations within an operation be differentiated, which those that check a graph's operations prevent."""
    hidden = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradFunctionality", "AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView"):
        hidden = hidden.remove(getattr(torch._C.DispatchKey, name))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), hidden)


def _fake_attend(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    shape = query.shape[0], query.shape[2], query.shape[1], value.shape[3]
    return query.new_empty(shape), torch.empty((), dtype=torch.long)


_LIBRARY.impl("attend", _attend, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_LIBRARY.impl("attend_backward", _attend_backward, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("attendrop::attend", _fake_attend)
torch.library.register_fake(
    "attendrop::attend_backward", lambda _, __, *tensors: tuple(each.new_empty(each.shape) for each in tensors)
)
