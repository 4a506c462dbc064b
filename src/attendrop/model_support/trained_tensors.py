"""The tensors of a model that training changes."""

from __future__ import annotations

from torch import Tensor, nn


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters and the saved buffers of a model by name, without copying them."""
    saved = model.state_dict(keep_vars=True).keys()
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return parameters | {name: buffer for name, buffer in model.named_buffers() if name in saved}
