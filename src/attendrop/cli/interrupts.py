"""Handling of Ctrl-C: one sentence and exit code 130, at any time, even if pressed repeatedly.

During startup, Ctrl-C ends the program immediately: there is nothing to clean up, and libraries that are interrupted
while they are imported raise exceptions of many types, or abort. While a command runs, the first Ctrl-C raises
KeyboardInterrupt, so that files and locks are cleaned up; the second one ends the program immediately.

This module imports little, because it is loaded before the handler is installed.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

EXIT_CODE = 130
_SENTENCE = "Error: interrupted."
_SECONDS_UNTIL_AGAIN = 0.02


class Interrupted(Exception):
    """Ctrl-C that a command has handled; the message says how to continue."""


def install() -> None:
    """End this program immediately on Ctrl-C, unless it was started to ignore it, as in the background of a script."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)


def interruptible() -> None:
    """Let the next Ctrl-C raise KeyboardInterrupt; the handler of a program that calls :func:`main` is kept."""
    if signal.getsignal(signal.SIGINT) is _leave:
        sys.unraisablehook = _unraisable
        signal.signal(signal.SIGINT, _interrupt)


def was_interrupted() -> bool:
    """Return whether a running command was interrupted."""
    return signal.getsignal(signal.SIGINT) in (_leave_at_once, _exit)


def tell(sentence: str = _SENTENCE) -> int:
    """Print that the command was interrupted, and return the exit code."""
    ours = was_interrupted()
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # so that the message is printed once
    if is_first_process():
        print(sentence, file=sys.stderr, flush=True)
    if ours:
        signal.signal(signal.SIGINT, _exit)
    return EXIT_CODE


def end() -> NoReturn:
    """End an interrupted program without finalizing the interpreter, where interrupted libraries may abort."""
    from contextlib import suppress

    with suppress(OSError):  # the reader of a pipe was interrupted, too
        sys.stdout.flush()
    os._exit(EXIT_CODE)


def is_first_process() -> bool:
    """Return whether this is the process of a distributed run that prints, or the only one."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


# Handlers -------------------------------------------------------------------------------------------------------------


def _leave(number: int, frame: FrameType | None) -> None:
    if is_first_process():
        os.write(2, f"{_SENTENCE}\n".encode())
    os._exit(EXIT_CODE)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _imports(frame):
        _again()
    else:
        signal.signal(signal.SIGINT, _leave_at_once)
        raise KeyboardInterrupt


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    _leave(number, frame)


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_CODE)


def _imports(frame: FrameType | None) -> bool:
    """Return whether a module is being imported."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _again() -> None:
    """Raise the interrupt again a little later."""
    from _thread import interrupt_main
    from threading import Timer

    signal.signal(signal.SIGINT, _interrupt)
    timer = Timer(_SECONDS_UNTIL_AGAIN, interrupt_main)
    timer.daemon = True
    timer.start()


def _unraisable(raised: Any) -> None:
    """Repeat an interrupt that was raised in a destructor or a callback, where it would be lost."""
    if issubclass(raised.exc_type, KeyboardInterrupt):
        _again()
    else:
        sys.__unraisablehook__(raised)
