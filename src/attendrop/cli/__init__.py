"""Entry point of the command line. Errors become one sentence and an exit code.

0: done. 1: the machine failed (disk, memory). 2: the request cannot be carried out. 130: interrupted.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # that of typing would have to be loaded
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

INTERRUPTED = 130  # exit code
# Module and package, where they have different names.
_IMPORTED = ("typer", "rich", "datasets", "accelerate", "filelock", "pandas", "scipy", "seqeval", "sacrebleu")
_NEEDED = {name: name for name in _IMPORTED}
_NEEDED["sklearn"] = "scikit-learn"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; ``arguments`` default to those of the process. Returns the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
        if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows has the letters of one language alone
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(list(arguments))
    except KeyboardInterrupt:
        return _interrupted()


def _run(arguments: list[str]) -> int:
    import importlib.util

    missing = [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        return _fail(f"the command line needs {', '.join(missing)}; run `pip install 'attendrop[cli]'`.")
    import typer

    from attendrop.cli.app import command
    from attendrop.cli.console import Interrupted
    from attendrop.errors import AttendropError, machine_failure
    from attendrop.files.output_files import broken_link

    arguments = [_at_home(argument) for argument in arguments]
    # UsageError of click, or of the copy of click in newer versions of typer
    usage_error: type[Any] = typer.BadParameter.__mro__[1]
    try:
        code: int = command()(arguments or ["--help"], standalone_mode=False, prog_name="attendrop") or 0
        return code if code != INTERRUPTED else _interrupted()  # typer catches a KeyboardInterrupt
    except Interrupted as error:
        return _interrupted(str(error))
    except AttendropError as error:
        return _fail(str(error))
    except usage_error as error:
        return _fail(error.format_message())
    except typer.Abort:
        return _interrupted()
    except BrokenPipeError:  # the reader of a pipe closed it; flushing the buffer at exit must not raise again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if isinstance(error, FileExistsError) and (link := broken_link(error.filename)) is not None:
            return _fail(link)
        again = "resume training with --resume" if arguments[:1] == ["train"] else "run the command again"
        if (told := machine_failure(error, again)) is None:
            raise
        return _fail(told, 1)


def _at_home(argument: str) -> str:
    """Replace the ``~`` of ``--name=~/place`` by the home folder, as shells do in ``--name ~/place``."""
    name, equals, value = argument.partition("=")
    return f"{name}={os.path.expanduser(value)}" if equals and name.startswith("--") else argument


def _interrupted(sentence: str = "Error: interrupted.") -> int:
    """Print the sentence in one of the processes that a terminal interrupts; return the exit code."""
    from attendrop.runs.run_folder import is_main_process

    if is_main_process():
        print(sentence, file=sys.stderr, flush=True)
    return INTERRUPTED


def _fail(message: str, code: int = 2) -> int:
    from attendrop.errors import one_line

    print(f"Error: {one_line(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
