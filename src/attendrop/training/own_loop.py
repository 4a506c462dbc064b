"""Context manager for custom training loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from attendrop.attention.model_outputs import loss_and_outputs
from attendrop.attention.plan import PLAN_KEYWORD, Plan
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import Processes, TrainingContext, tokens_of
from attendrop.methods.core.registry import check_method
from attendrop.model_support.batches import Batch
from attendrop.model_support.devices import gathered, sharding_mesh
from attendrop.training.labelled_data import labelled_data
from attendrop.training.regularization import Regularization

# The names of the model in the wrappers of torch.compile and of Lightning Fabric.
_WRAPPED = ("_orig_mod", "_forward_module")


@contextmanager
def regularize(
    model: nn.Module,
    method: Method,
    *,
    seed: int = 0,
    total_steps: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    max_grad_norm: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    reward_data: Any = None,
    train_data: Any = None,
    tokenizer: Any = None,
) -> Iterator[Regularization]:
    """Regularise the training of ``model`` by ``method`` within a ``with`` block.

    At the end of the block, even after an exception, the model is exactly as it would be without the library, except
    for what training did to its weights. Within it, parameters that the model's class leaves out of its files, Marian's
    computed positions, are not trained: the saved model would lose what they learnt.

    Example:
        >>> model.train()  # models come from ``from_pretrained`` in evaluation mode
        >>> with regularize(model, ADDrop()) as reg:
        ...     for epoch in range(4):
        ...         reg.set_epoch(epoch)
        ...         for batch in loader:
        ...             loss = reg.loss(batch)
        ...             loss.backward()
        ...             optimizer.step()
        ...             optimizer.zero_grad()
        ...             reg.step()

    Args:
        model: A transformers model, or a class of your own whose forward pass hands ``**kwargs`` on to one in it;
            compiled or not, set up by Lightning Fabric for one device or not; without wrappers such as
            DistributedDataParallel. A model that ``fully_shard`` (FSDP2) has
            divided among processes is trained by all of them: each passes its own part of a batch, with the same number
            of rows, and calls the same functions of the regularised model, including :meth:`Regularization.logs`.
        method: The method, such as ``ADDrop()``.
        seed: Seed of the method's random numbers. They do not touch torch's global random state.
        total_steps: Number of optimizer steps planned. Methods that follow a schedule need it.
        optimizer: The model's optimizer. Needed by methods that act on gradients (if you have several, pass the one
            that steps first, before which a gradient scaler must ``unscale_`` the others), restart training, or train a
            second model with another optimizer like it.
        max_grad_norm: Norm to which you clip the model's gradients; also used for those of a method's second model.
        scaler: The gradient scaler, if you train in float16 with one. Methods that read gradients themselves need it.
        reward_data: Rows on which methods score models during training: a ``DataLoader`` over labelled rows that are
            not trained on, or a list of batches, which are used as they are, whatever batch size the method asks for.
        train_data: The training rows, in the same forms, for methods that look at them beforehand.
        tokenizer: The tokenizer of the model, for methods that change tokens and have to know which are special.

    Raises:
        AttendropError: The model is not supported by the method, or the method needs something that is not given; or
            the method needs the whole model, and its parameters are divided among processes; or it cannot be combined
            with that of another block around the same model.
    """
    check_method(method)
    run = model
    # The wrappers of torch.compile and of Lightning Fabric run the training pass, and methods act on the model in them:
    # the names of its parameters, which key random masks, are then the same with and without.
    while inner := next((model._modules[name] for name in _WRAPPED if name in model._modules), None):
        model = inner
    _refuse_wrapper(model)
    if isinstance(optimizer, Sequence):
        raise AttendropError(
            f"regularize takes one optimizer, not {len(optimizer)}: pass one with all parameters that are trained; a "
            "method that only edits gradients can do with the one that steps first."
        )
    device = next(model.parameters()).device

    def evaluate(model: nn.Module, batch: Batch, plan: Plan | None = None) -> tuple[Tensor, Any]:
        return loss_and_outputs(model(**batch, **({} if plan is None else {PLAN_KEYWORD: plan})))

    training = TrainingContext(
        model=model,
        evaluate=evaluate,
        seed=seed,
        processes=_processes(model, device),
        total_steps=total_steps,
        optimizer=getattr(optimizer, "optimizer", optimizer),  # of Accelerate
        max_grad_norm=max_grad_norm,
        scaler=scaler,
        reward_data=labelled_data("reward_data", reward_data, device),
        train_data=labelled_data("train_data", train_data, device),
        **tokens_of(tokenizer),
    )
    regularization = Regularization(training, method, run)
    try:
        yield regularization
        regularization.finish()
        regularization.warn_of_no_effect()
    finally:
        regularization.close()


def _refuse_wrapper(model: nn.Module) -> None:
    children = [name for name, _ in model.named_children()]
    if children in (["module"], ["_fsdp_wrapped_module"]):
        raise AttendropError(
            f"{type(model).__name__} is a wrapper around the model; pass the model itself, its .{children[0]}, and "
            "take one device. RegularizedTrainer trains on several (torchrun), and so does a loop of your own with a "
            "model that fully_shard (FSDP2) has divided."
        )


def _processes(model: nn.Module, device: torch.device) -> Processes:
    """Return the processes among which a model is divided; a single one for a model that is whole."""
    mesh = sharding_mesh(model)
    if mesh is None:
        return Processes()

    def total(tensor: Tensor) -> Tensor:
        found = tensor.to(device, copy=True)
        distributed.all_reduce(found, group=mesh.get_group())
        return found

    return Processes(mesh.get_local_rank(), mesh.size(), total, lambda value: gathered(value, mesh.get_group()))
