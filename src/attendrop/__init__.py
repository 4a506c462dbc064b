"""Fine-tune pre-trained transformers on small data without overfitting, by regularising attention.

Public names are loaded when they are first asked for, so that the command line answers quickly.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from attendrop.errors import AttendropError as AttendropError
    from attendrop.methods import *  # noqa: F403 (their names stand in the registry alone)
    from attendrop.pruning import PrunedModel as PrunedModel
    from attendrop.pruning import export_onnx as export_onnx
    from attendrop.pruning import export_torch as export_torch
    from attendrop.pruning import load as load
    from attendrop.pruning import prune as prune
    from attendrop.regularization import Regularization as Regularization
    from attendrop.regularization import regularize as regularize
    from attendrop.trainer import RegularizedTrainer as RegularizedTrainer

try:
    __version__ = version("attendrop")
except PackageNotFoundError:  # running from a source tree that was not installed
    __version__ = "0.0.0"

# Where the public names are that are no methods.
_MODULES = {
    "AttendropError": "errors",
    "PrunedModel": "pruning",
    "Regularization": "regularization",
    "RegularizedTrainer": "trainer",
    "export_onnx": "pruning",
    "export_torch": "pruning",
    "load": "pruning",
    "prune": "pruning",
    "register_method": "methods",
    "regularize": "regularization",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(f"attendrop.{_MODULES[name]}"), name)
        if name == "__all__" or name[0].isupper():  # every method is a class
            methods = import_module("attendrop.methods")
            if name == "__all__":
                return sorted({*_MODULES, *methods.__all__})
            if name in methods.__all__:
                return getattr(methods, name)
        raise AttributeError(f"module 'attendrop' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
