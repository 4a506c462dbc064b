"""Entry point of the command line. Errors become one sentence and an exit code.

0: done. 1: the machine failed (disk, memory), or runs did. 2: the request cannot be carried out. 130: interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from attendrop.errors import AttendropError, machine_failure, one_line

INTERRUPTED = 130  # exit code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; ``arguments`` default to those of the process. Returns the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
        if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe on Windows has the letters of one language alone
            sys.stdout.reconfigure(errors="backslashreplace")
    # `--name=~/place`, which shells leave as it is, unlike `--name ~/place`.
    options = [(argument, *argument.partition("=")) for argument in arguments]
    arguments = [
        f"{name}={os.path.expanduser(value)}" if equals and name.startswith("--") else argument
        for argument, name, equals, value in options
    ] or ["--help"]
    again = "resume training with --resume" if arguments[0] == "train" else "run the command again"
    try:
        from attendrop.cli.app import command

        code: int = command()(arguments, standalone_mode=False, prog_name="attendrop") or 0
        if code == INTERRUPTED:  # typer catches a KeyboardInterrupt
            raise KeyboardInterrupt
        return code
    except KeyboardInterrupt:
        from attendrop.runs.run_folder import is_main_process

        if is_main_process():  # one of those that a terminal interrupts
            print(f"Interrupted. To go on, {again}.", file=sys.stderr, flush=True)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe closed it; flushing the buffer at exit must not raise again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        code, told = (error.exit_code, str(error)) if isinstance(error, AttendropError) else (2, None)
        if hasattr(error, "format_message"):  # an error of click, or of typer's copy of it
            told = error.format_message()
        elif isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("attendrop"):
            told = f"the command line needs {error.name}; run `pip install 'attendrop[cli]'`."
        elif isinstance(error, FileExistsError):
            from attendrop.support.files import broken_link

            told = broken_link(error.filename)
        if told is None:
            code, told = 1, machine_failure(error, again)
        if told is None:
            raise
        print(f"Error: {one_line(told)}", file=sys.stderr)
        return code
