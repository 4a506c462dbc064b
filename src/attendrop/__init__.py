"""Fine-tune pre-trained transformers on small data without overfitting, by regularising attention.

Public names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing would have to be loaded
if TYPE_CHECKING:  # for type checkers and editors
    from typing import Any

    from attendrop.errors import AttendropError as AttendropError
    from attendrop.methods.builtin import *  # noqa: F403 (their names stand there alone)
    from attendrop.methods.core.base import Compose as Compose
    from attendrop.methods.core.base import Method as Method
    from attendrop.methods.core.registry import register_method as register_method
    from attendrop.pruning.export import export_onnx as export_onnx
    from attendrop.pruning.export import export_torch as export_torch
    from attendrop.pruning.pruned_model import PrunedModel as PrunedModel
    from attendrop.pruning.selection import prune as prune
    from attendrop.runs.load import load as load
    from attendrop.studies.compare import compare as compare
    from attendrop.training.regularization import Regularization as Regularization
    from attendrop.training.regularization import regularize as regularize
    from attendrop.training.trainer import RegularizedTrainer as RegularizedTrainer
    from attendrop.training.trainer import regularized as regularized

    __version__: str

# Modules of the public names that are not methods.
_MODULES = {
    "AttendropError": "errors",
    "Compose": "methods.core.base",
    "Method": "methods.core.base",
    "PrunedModel": "pruning.pruned_model",
    "Regularization": "training.regularization",
    "RegularizedTrainer": "training.trainer",
    "compare": "studies.compare",
    "export_onnx": "pruning.export",
    "export_torch": "pruning.export",
    "load": "runs.load",
    "prune": "pruning.selection",
    "register_method": "methods.core.registry",
    "regularize": "training.regularization",
    "regularized": "training.trainer",
}
# The one that needs the packages of the command line.
_OF_COMMAND_LINE = "compare"

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from importlib import import_module
        from importlib.util import find_spec

        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("attendrop")
            except PackageNotFoundError:  # running from a source tree that was not installed
                return "0.0.0"
        if name in _MODULES:
            try:
                return getattr(import_module(f"attendrop.{_MODULES[name]}"), name)
            except ModuleNotFoundError as error:
                if name != _OF_COMMAND_LINE:
                    raise
                message = f"attendrop.{name} needs {error.name}; run `pip install 'attendrop[cli]'`."
                raise __getattr__("AttendropError")(message) from None
        if name == "__all__" or name[0].isupper():  # every method is a class
            builtin = import_module("attendrop.methods.builtin")
            methods = {known: value for known, value in vars(builtin).items() if isinstance(value, type)}
            if name == "__all__":
                absent = {_OF_COMMAND_LINE} if find_spec("datasets") is None else set()
                return sorted({*_MODULES, *methods} - absent)
            if name in methods:
                return methods[name]
        raise AttributeError(f"module 'attendrop' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
