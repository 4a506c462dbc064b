"""The entry point of the command line: what goes wrong becomes one sentence and an exit code.

0: done. 1: the machine failed (disk, memory). 2: the request cannot be carried out. 130: interrupted.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

# Module and package, where they have different names.
_NEEDED = {name: name for name in ("typer", "rich", "datasets", "accelerate", "filelock", "scipy")}
_NEEDED["sklearn"] = "scikit-learn"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; ``arguments`` default to those of the process. Returns the exit code."""
    if arguments is None:
        signal.signal(signal.SIGINT, _leave)
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return _fail("interrupted.", 130)
    except Exception:
        if signal.getsignal(signal.SIGINT) is _exit:  # modules that are interrupted while they load raise all sorts
            return _fail("interrupted.", 130)
        raise


def _run(arguments: list[str]) -> int:
    missing = [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        return _fail(f"the command line needs {', '.join(missing)}; run `pip install attendrop[cli]`.")
    import typer

    from attendrop.cli.app import app
    from attendrop.errors import AttendropError

    for module in ("train", "commands"):  # in the order of the help
        importlib.import_module(f"attendrop.cli.{module}")
    # click's UsageError, or that of the copy of click which newer versions of typer carry
    usage_error: type[Any] = typer.BadParameter.__mro__[1]
    try:
        return app(arguments or ["--help"], standalone_mode=False, prog_name="attendrop") or 0
    except AttendropError as error:
        return _fail(str(error))
    except usage_error as error:
        return _fail(error.format_message())
    except typer.Abort:
        return _fail("interrupted.", 130)
    except BrokenPipeError:  # the reader of a pipe left; what is still buffered must not raise at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(_described(error, arguments), 1)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # PyTorch's, which is not loaded for every command
            raise
        return _fail("the GPU's memory is full; lower --batch-size and raise --gradient-accumulation by as much.", 1)


def _described(error: OSError, arguments: list[str]) -> str:
    from attendrop.files import DISK_FULL

    told = (error.strerror or str(error)) + (f": {error.filename}" if error.filename else "")
    if error.errno not in DISK_FULL:
        return told
    goes_on = "training goes on with --resume" if arguments[:1] == ["train"] else "then run the command again"
    return f"{told}. Free some space; {goes_on}."


def interruptible() -> None:
    """From here on a first Ctrl-C ends the command in order: until now there was nothing to put in order."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _interrupt)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once, for libraries that are interrupted while they load raise all sorts, or abort."""
    os.write(2, b"Error: interrupted.\n")
    os._exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Let the first Ctrl-C end what is going on in order, and the second one at once."""
    signal.signal(signal.SIGINT, _exit)
    raise KeyboardInterrupt


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(130)


def _fail(message: str, code: int = 2) -> int:
    print(f"Error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
