"""Attention modules that compute softmax themselves, instead of calling transformers' attention interface.

Their own forward runs, and three of its operations are intercepted, in which edits act: softmax of the scores, dropout
of the weights, and the product of the weights with the values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from attendrop.attention.blocks import SEPARATE
from attendrop.attention.plan import AttentionCall, AttentionEdit, Plan, after_drop, hidden_keys, visible_keys
from attendrop.errors import AttendropError

# The modules, and how each reads its argument ``attention_mask``: True where a key is valid.
_VALID_KEYS: dict[str, Callable[[Tensor], Tensor]] = {
    "transformers.models.deberta.modeling_deberta.DisentangledSelfAttention": Tensor.bool,
    "transformers.models.deberta_v2.modeling_deberta_v2.DisentangledSelfAttention": Tensor.bool,
    "transformers.models.mpnet.modeling_mpnet.MPNetSelfAttention": visible_keys,
}
_SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax}
_DROPOUT = {functional.dropout, torch.dropout}
_PRODUCT = {torch.bmm, torch.matmul, Tensor.bmm, Tensor.matmul, Tensor.__matmul__}


def computes_softmax(module: nn.Module) -> bool:
    """Return whether a module is an attention module that is known to compute softmax itself."""
    return f"{type(module).__module__}.{type(module).__qualname__}" in _VALID_KEYS


@torch.compiler.disable  # type: ignore[untyped-decorator]
def follow(plan: Plan, module: Any, stock: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run an attention module, whose own forward function is ``stock``, under a plan."""
    layer = plan.locate(module)
    if layer is None or not plan.wants(layer):
        return stock(*args, **kwargs)
    given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
    states, mask = given["hidden_states"], given.get("attention_mask")
    shape = (states.shape[0], module.num_attention_heads, states.shape[1], states.shape[1])
    read = _VALID_KEYS[f"{type(module).__module__}.{type(module).__qualname__}"]
    call = AttentionCall(layer, shape, None if mask is None else read(mask), states.device)
    watch = _SoftmaxWatch(call, plan.edit(call) or AttentionEdit())
    with watch.changed_inputs(module, states), watch:
        output = stock(*args, **kwargs)
    if watch.expected or watch.unread:
        raise AttendropError(
            f"{type(module).__name__} is not supported in transformers {transformers.__version__}: softmax of scores "
            f"{shape}, dropout and the product with the values do not follow one another, so nothing could be dropped "
            "there. The project's docs/models.md names the tested version."
        )
    return output


class _SoftmaxWatch(TorchFunctionMode):
    """Watch on one call of an attention module, which applies an edit; an empty edit changes nothing, bit for bit.

    Attributes:
        expected: The operations that the module has still to perform, each with what is done in its place.
        unread: The changed queries, keys and values that the module has still to read.
    """

    def __init__(self, call: AttentionCall, edit: AttentionEdit) -> None:
        super().__init__()
        self.call = call
        self.edit = edit
        self.expected = [(_PRODUCT, self._product), (_DROPOUT, self._dropout), (_SOFTMAX, self._softmax)]
        self._weights: Tensor | None = None
        self.unread: dict[str, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, tensor = kwargs or {}, next(iter(args), None)
        if not self.expected or func not in self.expected[-1][0] or not isinstance(tensor, Tensor):
            return func(*args, **kwargs)
        if self._weights is None:  # it is softmax, of the scores
            is_next = tensor.shape == self.call.shape
        else:  # on the weights from the last step
            is_next = tensor.data_ptr() == self._weights.data_ptr() and tensor.numel() == self._weights.numel()
        if not is_next:
            return func(*args, **kwargs)
        _, step = self.expected.pop()
        self._weights = step(partial(func, **kwargs), *args)
        return self._weights

    @contextmanager
    def changed_inputs(self, module: Any, states: Tensor) -> Iterator[None]:
        """Let the module read queries, keys and values as the edit changes them."""
        if self.edit.inputs is None:
            yield
            return
        names = next((names for names in SEPARATE if all(hasattr(module, name) for name in names)), ())
        if not names:
            raise AttendropError(
                f"{type(module).__name__} makes queries, keys and values in one projection, so they cannot be changed "
                "one by one; let the method act elsewhere, if it can."
            )
        heads = self.call.shape[1]
        made = [getattr(module, name)(states).unflatten(-1, (heads, -1)).transpose(1, 2) for name in names]
        changed = (each.transpose(1, 2).flatten(2) for each in self.edit.inputs(*made))
        self.unread = dict(zip(names, changed, strict=True))
        # Attributes of the instance take precedence over the projections until they are called.
        vars(module).update({name: partial(self._read, module, name) for name in names})
        try:
            yield
        finally:
            for name in self.unread:
                del vars(module)[name]

    def _read(self, module: nn.Module, name: str, states: Tensor) -> Tensor:
        del vars(module)[name]
        return self.unread.pop(name)

    def _softmax(self, function: Callable[..., Tensor], scores: Tensor, *args: Any) -> Tensor:
        drop = self.edit.drop
        if self.edit.constant:
            drop = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=scores.device)
        if drop is not None:
            kept, whole = after_drop(self.call.valid, drop)
            hidden = hidden_keys(kept, self.call.valid)
            scores = scores.masked_fill(whole, 0).masked_fill(hidden, -torch.inf)
        return function(scores, *args)

    def _dropout(self, function: Callable[..., Tensor], weights: Tensor, *args: Any) -> Tensor:
        return self.edit.drop_weights(weights, lambda weights: function(weights, *args))

    def _product(self, function: Callable[..., Tensor], weights: Tensor, value: Tensor) -> Tensor:
        output = function(weights, value)
        batch, heads, queries, keys = self.call.shape
        if self.edit.values is not None:
            self.edit.values(value.reshape(batch, heads, keys, -1))
        if self.edit.output is None:
            return output
        changed = self.edit.output(output.view(batch, heads, queries, -1).transpose(1, 2).contiguous())
        return changed.transpose(1, 2).contiguous().view(output.shape)
