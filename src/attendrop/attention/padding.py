"""Training without padding: linear layers multiply only the tokens of a batch that are not padding.

In batches of 16 random rows, 30 to 60 % of the tokens are padding, and on a CPU nearly all of the time is spent in
linear layers. A model that answers with one vector a row reads no padding behind it, so the loss and the gradients are
the same up to rounding; so are random numbers, since dropout sees tensors of the same shape. Losses of tokens may read
padding: with padding on the left, the last of it predicts the first word. A GPU waits for kernels to be launched, of
which this needs more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from attendrop.attention.hooks import ModuleHooks, evaluating, forked_rng, is_compiled
from attendrop.attention.tracing import example_inputs
from attendrop.randomness.device_path import on_cpu
from attendrop.support.models import transformers_model

_NARROWEST = 64  # narrower layers, such as those of LoRA, take less time than the copies
_ROUNDING = 1e-4
logger = logging.getLogger(__name__)


@dataclass
class _Tokens:
    """The tokens of the batch that passes the model, which its mask tells; ``None`` where none is left out."""

    shape: torch.Size | None = None
    valid: Tensor | None = None  # their indices among all tokens of the batch

    def set(self, mask: Any) -> None:
        self.shape = self.valid = None
        # With padding on the left, a head may read the first position, and a recurrent layer begins with it.
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask[:, 0].all() and not mask.all():
            self.shape, self.valid = mask.shape, mask.flatten().nonzero().flatten()

    def forward_of(self, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        """Return a forward function for a layer, whose outputs at padding are 0."""

        def forward(input: Tensor) -> Tensor:  # as in torch
            if self.shape is None or self.valid is None or input.shape[:-1] != self.shape:
                return functional.linear(input, layer.weight, layer.bias)
            tokens = input.flatten(0, 1)
            product = functional.linear(tokens.index_select(0, self.valid), layer.weight, layer.bias)
            outputs = product.new_zeros(len(tokens), product.shape[-1]).index_copy_(0, self.valid, product)
            return outputs.view(*self.shape, -1)

        return forward


def leave_out_padding(model: nn.Module) -> ModuleHooks:
    """Let the linear layers of a model on a CPU leave out padding until the hooks that are returned are closed.

    Layers are those that read one vector of each token. They stay as they are in a model that is compiled, recomputes
    activations, has an encoder and a decoder, or returns vectors of tokens; and where the outputs of example rows
    change, since some models read padding, by convolution, or do not tell the rows apart, as a head of zeros, or where
    such rows are no input of the model. Copies of the model compute padding. The loss must be one of the outputs.
    """
    hooks, inner = ModuleHooks(), transformers_model(model)
    if not isinstance(inner, PreTrainedModel) or inner.main_input_name != "input_ids" or is_compiled(model):
        return hooks
    recomputes = any(getattr(module, "gradient_checkpointing", False) for module in inner.modules())
    if not on_cpu(inner.device) or recomputes or inner.config.is_encoder_decoder:
        return hooks
    try:
        if not _replace_layers(inner, hooks):
            hooks.close()
    except Exception as error:  # whatever such a pass raises, training goes on as it would have
        hooks.close()
        logger.debug("Padding is computed: %s", error)
    return hooks


def _replace_layers(model: PreTrainedModel, hooks: ModuleHooks) -> bool:
    """Replace the forward functions of layers; return whether the outputs are the same, except those at padding."""
    batch = {name: value.repeat(2, *[1] * (value.ndim - 1)) for name, value in example_inputs(model).items()}
    batch["attention_mask"][1, ..., 3:] = 0
    pad = model.config.get_text_config().pad_token_id
    batch["input_ids"][1, ..., 3:] = 0 if pad is None else pad  # by which heads of decoders find the last token
    mask, base = batch["attention_mask"].flatten(0, -2), model.base_model
    seen, tokens = dict[nn.Linear, set[torch.Size]](), _Tokens()
    linear = [each for each in base.modules() if type(each) is nn.Linear and "forward" not in vars(each)]
    wide = [layer for layer in linear if min(layer.weight.shape) >= _NARROWEST]
    if not wide:
        return False
    for module in wide:
        hooks.before(module, lambda layer, inputs: seen.setdefault(layer, set()).add(inputs[0].shape[:-1]))
    with evaluating(model), forked_rng(model), torch.no_grad():
        whole = _outputs(model(**batch))
        hooks.close()
        for each in whole:
            of_tokens = each.ndim > 2 or (each.shape == mask.shape and each.shape[1] != model.config.num_labels)
            if of_tokens or torch.allclose(each[0], each[1]):
                return False
        layers = [layer for layer, shapes in seen.items() if shapes == {mask.shape}]
        hooks.replace_forward(base, {layer: tokens.forward_of(layer) for layer in layers})
        hooks.before(base, lambda _, __, given: tokens.set(given.get("attention_mask")), with_kwargs=True)
        hooks.after(base, lambda *_: tokens.set(None), always_call=True)
        found = _outputs(model(**batch))
    same = [torch.allclose(one, other, _ROUNDING, _ROUNDING) for one, other in zip(found, whole, strict=True)]
    return all(same) and bool(layers and same)


def _outputs(outputs: Any) -> list[Tensor]:
    """List the tensors that a model returns, also those in tuples, such as all hidden states."""
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    nested = chain.from_iterable(value if isinstance(value, tuple) else (value,) for value in values)
    return [value for value in nested if isinstance(value, Tensor)]
