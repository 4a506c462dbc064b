"""Results that the runs of one process share, such as the frozen encoder's features of the same evaluation rows.

Nothing is shared until a process that runs many of them asks for it. A key holds everything that a result depends on,
so that a run with shared results ends with the same scores, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

# How much is kept at most.
MOST_BYTES = 256 * 2**20
Result = TypeVar("Result")

# The results by key, with their sizes, the one that was used least recently first; None where nothing is shared.
_results: OrderedDict[str, tuple[Any, int]] | None = None


def share_results() -> None:
    """Share results between the runs of this process from now on."""
    global _results
    if _results is None:
        _results = OrderedDict()


def forget_results() -> None:
    """Forget all results, and share none any longer."""
    global _results
    _results = None


def cached(
    key: Callable[[], Any], compute: Callable[[], Result], size: Callable[[Result], int], *, kind: str
) -> Result:
    """Return a result that this process has computed before, or compute it; nobody may change it afterwards.

    ``key`` returns everything that the result depends on, as JSON values; it is called only where results are shared.
    ``size`` returns the size of a result in bytes; ``kind`` names the computation.
    """
    if _results is None:
        return compute()
    digest = hashlib.sha256(json.dumps([kind, key()], sort_keys=True).encode()).hexdigest()
    result, needed = _results.pop(digest, None) or ((found := compute()), size(found))
    if needed <= MOST_BYTES:
        _results[digest] = result, needed  # as the newest
    while sum(kept for _, kept in _results.values()) > MOST_BYTES:
        _results.popitem(last=False)
    return result


def digest_of_model(model: nn.Module, *, without: nn.Module | None = None) -> str:
    """Hash the class, the configuration and the weights of a model, except those of one of its modules."""
    left_out = set() if without is None else {id(tensor) for tensor in without.parameters()}
    digest = hashlib.sha256(f"{type(model).__name__} {getattr(model, 'config', None)}".encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if id(tensor) not in left_out:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
