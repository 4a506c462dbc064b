"""Consistency check of a method's declarations with its definitions."""

from __future__ import annotations

from attendrop.argument_checks import check_declared, defines
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodState


def check_declarations(method_state: MethodState) -> None:
    """Check that a method declares exactly the capabilities that it and its state define.

    Raises:
        AttendropError: A declaration does not match the definitions.
    """
    method = method_state.method
    owner = f"Method '{method.name}'"
    check_declared(
        owner,
        "MethodState.loss",
        "the trait DECIDES_PASSES in Method.traits",
        defined=defines(method_state, MethodState, "loss"),
        declared=method.decides_passes,
    )
    check_declared(
        owner,
        "MethodState.edit_gradients",
        "Method.edits_gradients = True",
        defined=defines(method_state, MethodState, "edit_gradients"),
        declared=method.edits_gradients,
    )
    check_declared(
        owner,
        "penalty",
        "Method.adds_penalty = True",
        defined=defines(method, Method, "penalty") or defines(method_state, MethodState, "penalty"),
        declared=method.adds_penalty,
    )


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
        if part.edits_pretrained_weights:
            raise AttendropError(
                f"Method '{part.name}' changes weights of the model itself, which an adapter is not saved with; train "
                "without an adapter, or with another method."
            )
