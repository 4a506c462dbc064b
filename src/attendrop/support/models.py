"""Models, their batches and outputs, and the devices and processes on which they are trained.

A gradient scaler divides the gradients by the scale, and skips the step if one is infinite or NaN; it leaves both to an
optimizer with a fused kernel. Hooks before a step are called before either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from attendrop.errors import AttendropError

Batch = Mapping[str, Any]
# Column of question answering that models do not read, ``(batch, n)``: 1 at the tokens that can be part of an answer,
# and at the one that stands for none, if there may be none.
ANSWER_MASK = "answer_mask"
# Column with the index of each row in the training data, ``(batch,)``, which models do not read.
ROW_INDEX = "row_index"
# Columns with one entry for each row; others may serve all rows, such as positions that are given once, ``(1, n)``.
_BY_ROW = ("input_ids", "inputs_embeds", "labels")
_POSITIONS = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
# These devices have no 64-bit floating-point numbers, in which counts are multiplied by fractions, and metrics summed.
WITHOUT_DOUBLES = ("mps",)


def model_inputs(batch: Batch) -> dict[str, Any]:
    """Copy a batch without the columns that models do not read."""
    return {name: value for name, value in batch.items() if name not in (ANSWER_MASK, ROW_INDEX)}


def number_of_rows(batch: Batch) -> int:
    """Count the rows of a batch by its tokens, labels or else first tensor; raise AttendropError without tensors."""
    for value in (*map(batch.get, _BY_ROW), *batch.values()):
        if isinstance(value, Tensor) and value.ndim:
            return value.shape[0]
    raise AttendropError("The batch has no tensors; pass a batch with input tensors.")


def to_device(batch: Batch, device: torch.device) -> dict[str, Any]:
    """Move the tensors of a batch to a device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


def refuse_graph(batch: Batch) -> None:
    """Raise AttendropError for a batch with an autograd graph, which the first backward pass frees."""
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.requires_grad:
            raise AttendropError(
                f"The batch's {name!r} requires a gradient; pass the model its source (input_ids), or detach it."
            )


def loss_and_outputs(outputs: Any) -> tuple[Tensor, Any]:
    """Return the loss among the outputs of a model, and the outputs; raise AttendropError if there is no loss."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
    if loss is None or loss.ndim > 1:  # a tuple without a loss begins with logits
        raise AttendropError("The model returned no loss; the batch needs 'labels'.")
    return loss, outputs


def logits_of(outputs: Any) -> Tensor:
    """Return the logits of a model's outputs; of question answering those of start and end, ``(batch, n, 2)``."""
    if hasattr(outputs, "start_logits"):
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
    logits: Tensor = outputs.logits
    return logits


def named_outputs(outputs: Any, batch: Mapping[str, Any]) -> Any:
    """Name the outputs of a model that returns tuples (loss, logits) or dicts for ``batch``; others are unchanged."""
    from transformers.modeling_outputs import QuestionAnsweringModelOutput, SequenceClassifierOutput
    from transformers.utils.generic import ModelOutput

    if isinstance(outputs, dict) and not isinstance(outputs, ModelOutput):  # transformers.Trainer takes these, too
        return ModelOutput(outputs)  # type: ignore[no-untyped-call]
    if not isinstance(outputs, tuple):
        return outputs
    loss, rest = (outputs[0], outputs[1:]) if outputs[0].ndim == 0 else (None, outputs)
    if "start_positions" in batch:
        return QuestionAnsweringModelOutput(loss, *rest[:2])
    return SequenceClassifierOutput(loss, *rest[:1])


def has_adapter(model: Any) -> bool:
    """Return whether a model has an adapter: a ``PeftModel``, or a model of transformers after ``add_adapter``."""
    return bool(getattr(model, "peft_config", None))


def transformers_model(model: Any) -> Any:
    """Return the model of transformers in a ``PeftModel``; any other model is returned as it is."""
    return getattr(model, "get_base_model", lambda: model)()


def freeze_unsaved(model: Any) -> list[Tensor]:
    """Freeze what a model does not save, Marian's positions, which would be trained and lost; return what was not."""
    model = transformers_model(model)
    unsaved = getattr(model, "_keys_to_ignore_on_save", None) or ()
    trained = [each for name, each in model.named_parameters() if name in unsaved and each.requires_grad]
    return [parameter.requires_grad_(False) for parameter in trained]


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters and the saved buffers of a model by name, without copying them."""
    saved = model.state_dict(keep_vars=True).keys()
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return parameters | {name: buffer for name, buffer in model.named_buffers() if name in saved}


def position_limit(model: Any) -> int | None:
    """Return the maximum number of tokens that a model's position embedding allows; None without one, as for images."""
    limits = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _POSITIONS and "vis" not in name:
            # Unused rows: RoBERTa's positions start after the padding id, BART's after an offset.
            reserved = getattr(module, "offset", 0) if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - int(reserved))
    return min(limits, default=None)


def compute_device(device: str) -> torch.device:
    """Return the device that ``"auto"`` or ``"cpu"`` means on this machine; Apple's GPUs are not used."""
    if device == "cpu":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if accelerator is None or accelerator.type in WITHOUT_DOUBLES else accelerator


def before_step(optimizer: Optimizer, act: Callable[[], None]) -> RemovableHandle:
    """Call a function before each step of an optimizer, after the step's closure, if any; returns a handle."""

    def enter(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # The first argument is the optimizer; Lightning passes a closure, which computes the gradients.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            act()
            return None

        def acting() -> Any:
            loss = closure()
            act()
            return loss

        return args[:1], {**kwargs, "closure": acting}

    return optimizer.register_step_pre_hook(enter)


def skips_step(optimizer: Optimizer) -> bool:
    """Return, in a hook before a step, whether the optimizer will skip it. May wait for the device."""
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def sharding_mesh(model: nn.Module) -> Any:
    """Return the device mesh over which a model's parameters are divided; None for a model that is whole.

    Raises AttendropError if it has several dimensions, or they are divided by other means than ``fully_shard``.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    mesh = next((each.device_mesh for each in model.parameters() if isinstance(each, DTensor)), None)
    if mesh is not None and (mesh.ndim > 1 or not any(isinstance(module, FSDPModule) for module in model.modules())):
        raise AttendropError(
            f"{type(model).__name__} is divided otherwise than by fully_shard (FSDP2) over a mesh of one dimension."
        )
    return mesh


def true_everywhere(model: nn.Module, value: bool) -> bool:
    """Return whether a value is true in all processes among which a model is divided, and which run it together."""
    mesh = sharding_mesh(model)
    return value if mesh is None else all(gathered(value, mesh.get_group()))


def gathered(value: Any, group: Any = None) -> list[Any]:
    """Return what the processes of a group pass, in the order of their ranks; of a single process, its own."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, value, group=group)
    return found
