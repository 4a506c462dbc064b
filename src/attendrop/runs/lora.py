"""LoRA adapters of runs: their options, and the model that has one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError
from attendrop.methods.core.options import Range, check_options, count, option, optional, positive, unit_interval

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attendrop.tasks.types.base import TaskType

ALL_LINEAR = "all-linear"


def _targets(name: str, value: str | Sequence[str] | None) -> str | None:
    """Write targets as one text, with commas."""
    names = value.split(",") if isinstance(value, str) else value
    if names is not None and not (names and all(str(each).strip() for each in names)):
        raise AttendropError(f"{name}={value!r} must name modules, such as 'query,value', or be '{ALL_LINEAR}'.")
    return None if names is None else ",".join(str(each).strip() for each in names)


@dataclass(frozen=True)
class LoraOptions:
    """Options of a LoRA adapter (Hu et al., 2022, https://arxiv.org/abs/2106.09685).

    A targeted layer computes ``W x + (alpha / r) B A x``, where only ``A`` and ``B`` are trained.

    Attributes:
        r: Rank of the adapter, 1 or more; 8 is PEFT's default, and the paper's for GLUE.
        alpha: Scaling of the adapter, above 0. None: ``r``, so that the factor is 1.
        dropout: Dropout of the adapter's inputs, at least 0 and below 1; 0 is PEFT's default.
        targets: Names of the layers with an adapter, comma-separated, or ``"all-linear"``. None: PEFT's choice for the
            architecture, mostly the projections to queries and values.

    Raises:
        AttendropError: An option is out of its range.
    """

    r: int = option(8, count())
    alpha: float | None = option(None, optional(positive()))
    dropout: float = option(0.0, unit_interval(zero=True))
    targets: str | None = option(None, Range(f"names of layers, or {ALL_LINEAR}", _targets))

    def __post_init__(self) -> None:
        check_options(self)
        if self.alpha is None:
            object.__setattr__(self, "alpha", float(self.r))


def add_adapter(model: PreTrainedModel, new: Collection[str], task_type: TaskType, options: LoraOptions) -> Any:
    """Make a ``PeftModel``, of which only the adapter, the head and what no file has (``new``) are trained and saved.

    Raises AttendropError if PEFT is not installed, or the model has no such targets.
    """
    from attendrop.pruning.pruned_model import quiet_peft

    targets = options.targets
    modules = {name.rpartition(".")[0] for name in new}
    if task_type.generates and any(
        key.startswith(f"{each}.") for key in model.all_tied_weights_keys for each in modules
    ):
        raise AttendropError(
            f"The model has no trained head for {task_type.predicts}, and a new one, which shares weights with the "
            "embeddings, is not saved with an adapter; omit lora, or use a model that has the head."
        )
    children = [] if task_type.generates or model.base_model is model else list(model.named_children())
    heads = [name for name, child in children if child is not model.base_model and list(child.parameters())]
    try:
        with quiet_peft() as peft:
            config = peft.LoraConfig(
                task_type=task_type.peft_task_type,
                r=options.r,
                lora_alpha=options.alpha,
                lora_dropout=options.dropout,
                target_modules=targets if targets in (None, ALL_LINEAR) else targets.split(","),
                modules_to_save=[*heads, *sorted(each for each in modules if each.partition(".")[0] not in heads)],
            )
            return peft.get_peft_model(model, config)
    except ValueError as error:
        raise AttendropError(
            f"{type(model).__name__} takes no adapter with targets={targets!r} ({str(error).splitlines()[0]}) Name "
            f"layers of it, or '{ALL_LINEAR}': --lora targets={ALL_LINEAR}."
        ) from None
