"""Output for people: messages and progress on stderr, results on stdout."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from attendrop.errors import one_line, printable
from attendrop.runs.run_folder import is_main_process
from attendrop.wording import aligned


class PlainConsole(Console):
    """Console that prints texts as they are: names and labels of users are neither markup nor control sequences."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text, which may be the cell of a table."""
        return super().render_str(printable(text), **options)


class MessageConsole(PlainConsole):
    """Console that remembers the warnings of files, and of the runs of a study, so that each is shown once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.warned: set[str] = set()


@contextmanager
def messages(*, quiet: bool) -> Iterator[MessageConsole]:
    """Show the library's messages and all warnings on stderr, only warnings if ``quiet``; yield the console.

    Only the main process of a distributed run prints.
    """
    import datasets
    import transformers

    console = MessageConsole(stderr=True, soft_wrap=True, quiet=not is_main_process())

    def warn_once(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in console.warned:  # a command may read the same file more than once
            console.warned.add(str(message))
            _warn(console, str(message))

    root, handler = logging.getLogger("attendrop"), _Handler(console)
    level, show = root.level, warnings.showwarning
    root.addHandler(handler)
    root.setLevel(logging.WARNING if quiet else logging.INFO)
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.disable_progress_bars()
    warnings.showwarning = warn_once
    try:
        yield console
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        warnings.showwarning = show


class _Handler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            _warn(self.console, record.getMessage())
        else:
            self.console.print(record.getMessage())


def _warn(console: Console, message: str) -> None:
    console.print(Text.assemble(("Warning: ", "yellow"), one_line(message)))


def lines_of(values: Mapping[str, str]) -> str:
    """Format captions and values in two aligned columns."""
    return "\n".join(aligned(list(values.items())))


def size(count: int) -> str:
    """Format a number of bytes with its unit."""
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"
