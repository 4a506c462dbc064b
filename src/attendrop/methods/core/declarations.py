"""Refusal of methods whose declarations are not true, or that a model cannot train with."""

from __future__ import annotations

from attendrop.argument_checks import check_declared, defines
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodState


def check_declarations(state: MethodState) -> None:
    """Raise AttendropError unless a method declares exactly the capabilities that it and its state define."""
    method = state.method
    for name, declaration, declared in (
        ("loss", "the trait DECIDES_PASSES in MethodInfo.traits", method.decides_passes),
        ("edit_gradients", "MethodInfo.edits_gradients = True", method.info.edits_gradients),
        ("penalty", "MethodInfo.adds_penalty = True", method.info.adds_penalty),
    ):
        defined = defines(state, MethodState, name) or (hasattr(Method, name) and defines(method, Method, name))
        function = f"MethodState.{name}" if name == "edit_gradients" else name
        check_declared(f"Method '{method.name}'", function, declaration, defined=defined, declared=declared)


def refuse_sharded(method: Method) -> None:
    """Raise AttendropError if a method cannot act on a model whose parameters are divided among processes."""
    for part in method.parts:
        if part.needs_whole_model:
            raise AttendropError(
                f"Method '{part.name}' needs the whole model in each process, and fully_shard (FSDP2) divides its "
                "parameters; train with RegularizedTrainer and DDP (torchrun), or with another method."
            )


def refuse_with_adapter(method: Method) -> None:
    """Raise AttendropError if a method cannot act on a model with an adapter."""
    for part in method.parts:
        if part.info.edits_pretrained_weights:
            raise AttendropError(
                f"Method '{part.name}' changes weights of the model itself, which an adapter is not saved with; train "
                "without an adapter, or with another method."
            )
