"""Handling of Ctrl-C: one sentence and exit code 130, at whatever moment it comes, and however often.

While a program starts, it ends at once: there is nothing to put in order, and libraries that are interrupted while they
load raise all sorts, or abort. Once a command is at work, the first Ctrl-C is a KeyboardInterrupt, so that files and
locks are put in order, and the second one ends it at once.

Little is imported here, for this is loaded before the handler is there.
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
    """Ctrl-C that a command has handled; the message says how to go on."""


def install() -> None:
    """End this program at once on Ctrl-C."""
    signal.signal(signal.SIGINT, _leave)


def interruptible() -> None:
    """Let the first Ctrl-C from here on end the command in order; a caller's own handler is kept."""
    if signal.getsignal(signal.SIGINT) is _leave:
        sys.unraisablehook = _unraisable
        signal.signal(signal.SIGINT, _interrupt)


def was_interrupted() -> bool:
    """Whether a running command was interrupted."""
    return signal.getsignal(signal.SIGINT) in (_leave_at_once, _exit)


def tell(sentence: str = _SENTENCE) -> int:
    """Print the sentence about an interruption, and return the exit code."""
    ours = was_interrupted()
    if ours:
        signal.signal(signal.SIGINT, _wait)  # not to be told twice
    if is_first_process():
        print(sentence, file=sys.stderr, flush=True)
    if ours:
        signal.signal(signal.SIGINT, _exit)
    return EXIT_CODE


def end() -> NoReturn:
    """End an interrupted program without taking the interpreter down: libraries that were cut off may abort there."""
    from contextlib import suppress

    with suppress(OSError):  # the reader of a pipe was interrupted, too
        sys.stdout.flush()
    os._exit(EXIT_CODE)


def is_first_process() -> bool:
    """Whether this process is the one of a distributed run that prints."""
    return os.environ.get("RANK", "0") == "0"


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


def _wait(number: int, frame: FrameType | None) -> None:
    pass


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_CODE)


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being loaded."""
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
    """Repeat an interrupt that came in a destructor or a callback, where it would be lost."""
    if issubclass(raised.exc_type, KeyboardInterrupt):
        _again()
    else:
        sys.__unraisablehook__(raised)
