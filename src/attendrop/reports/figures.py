"""Figures of matplotlib in one style: described once, rendered as files for papers and as pictures for a page."""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len

from attendrop.errors import AttendropError
from attendrop.reports.results import ReportedSetting, Results
from attendrop.support.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Text, lines and the first two of a series as in templates/page.css.
TEXT, MUTED, LINE = "#1b1f24", "#59636e", "#d1d6dc"
SERIES = ("#0b62b5", "#c4480c", "#1f7d4d", "#8a3ab9", "#a16a00", "#007a87", "#b3186b", "#5b6470")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":")
WIDTH = 4.4  # inches: its text can be read on a phone
# Characters that XML cannot hold.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff￾￿]")
_LONGEST, _SHORT = 50, 20
_TITLE_WIDTH, _MOST_LINES, _LINE_HEIGHT = 46, 4, 0.15  # characters; lines; inches
_STYLE: Any = {
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": TEXT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.dpi": 72,  # that of SVG, so that positions of marks are those of the SVG
    "font.size": 9.0,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "attendrop",  # the same file each time
    "text.color": TEXT,
    "text.parse_math": False,  # names are not formulas
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


class Mark(NamedTuple):
    """Point of a figure with a tooltip: its coordinates in the axes, and the text."""

    axes: Axes
    x: float
    y: float
    text: str


class Picture(NamedTuple):
    """Figure in a page: an SVG image as a ``data:`` address, its size, and its marks as ``(x, y, text)`` within it."""

    source: str
    width: float
    height: float
    marks: list[tuple[float, float, str]]


@dataclass(frozen=True)
class Chart:
    """Figure with its values.

    Attributes:
        kind: What it shows, for the name of its files, such as "losses".
        setting: Name of the setting that it is about; empty for several.
        title: Its title, which does not name the setting.
        caption: How to read it.
        header, rows: The values, as a table of texts.
        marks: Points to hover over.
        detail: How it differs from others of its kind and setting, such as a method; it is part of the title.
    """

    kind: str
    setting: str
    title: str
    caption: str
    figure: Figure
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    marks: Sequence[Mark] = field(default=())
    detail: str = ""

    def png(self) -> bytes:
        """Return the figure with its title as a PNG file, on white."""
        with self._titled():
            return self._saved("png", dpi=200, facecolor="white")

    def svg(self) -> bytes:
        """Return the figure with its title as an SVG file, on white."""
        with self._titled():
            return self._saved("svg", facecolor="white", metadata={"Date": None})

    def picture(self) -> Picture:
        """Return the figure without its title for a page, which shows the text of a mark next to the pointer."""
        svg = self._saved("svg", transparent=True, metadata={"Date": None})  # also lays the figure out
        width, height = (72 * float(inches) for inches in self.figure.get_size_inches())
        to_figure = self.figure.transFigure.inverted()
        marks = []
        for mark in self.marks:
            across, up = to_figure.transform(mark.axes.transData.transform((mark.x, mark.y)))
            marks.append((round(float(across) * width, 1), round(float(1 - up) * height, 1), clean(mark.text)))
        return Picture(f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}", width, height, marks)

    @contextmanager
    def _titled(self) -> Iterator[None]:
        """Show the title and the setting above the figure, which grows by their lines."""
        lines = [*wrapped(self.title), *wrapped(self.setting)]
        width, height = self.figure.get_size_inches()
        with styled():
            title = self.figure.suptitle("\n".join(lines), x=0.02, ha="left", fontsize="medium")
        title.set(visible=True, in_layout=True)  # matplotlib keeps one title, which was hidden before
        self.figure.set_size_inches(width, height + _LINE_HEIGHT * len(lines))
        yield
        title.set(visible=False, in_layout=False)
        self.figure.set_size_inches(width, height)

    def _saved(self, kind: str, **options: Any) -> bytes:
        file = io.BytesIO()
        with styled():
            save_figure(self.figure, file, format=kind, **options)
        return file.getvalue()


def save_figure(figure: Figure, file: IO[bytes], **options: Any) -> None:
    """Save a figure by ``Figure.savefig``, without a warning for each character that its font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, **options)


@contextmanager
def picture_file(path: Path, size: tuple[float, float]) -> Iterator[Axes]:
    """Draw on axes, and write them as a PNG file of a size in inches."""
    with _matplotlib().rc_context({"text.parse_math": False}):  # names are not formulas
        figure = _matplotlib().figure.Figure(figsize=size, layout="constrained")
        yield figure.subplots()
        content = io.BytesIO()
        save_figure(figure, content, format="png", dpi=150)
        write_bytes(path, content.getvalue())


def run_title(metrics: Mapping[str, Any]) -> str:
    """Make a title with a run's method, model and data, given its ``metrics.json``."""
    return f"{Path(metrics['model']).name} on {metrics['task']}, seed {metrics['seed']}"


def _matplotlib() -> ModuleType:
    """Import matplotlib.

    Raises:
        AttendropError: It is not installed.
    """
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise AttendropError("A picture needs matplotlib; run `pip install 'attendrop[plots]'`.") from None
    return matplotlib


def styled() -> AbstractContextManager[None]:
    """Use the style of all charts."""
    found: AbstractContextManager[None] = _matplotlib().rc_context(_STYLE)
    return found


@dataclass(frozen=True)
class Drawing:
    """A chart in the making.

    Attributes:
        panels: Its axes, one above the other.
        entries: The artist of each label in the legend.
        marks, rows: What :meth:`tell` collected.
    """

    figure: Figure
    panels: list[Axes]
    entries: dict[str, Any] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    @property
    def axes(self) -> Axes:
        """The last panel, which is the only one of most charts."""
        return self.panels[-1]

    def tell(self, x: float, y: float, text: str, *row: str) -> None:
        """Describe a point of the last panel: in a tooltip, and in a row of values."""
        self.marks.append(Mark(self.axes, x, y, text))
        self.rows.append(list(row))

    def chart(
        self, kind: str, setting: str, title: str, caption: str, header: Sequence[str], detail: str = ""
    ) -> Chart:
        """Make the chart; see its attributes."""
        return Chart(kind, setting, title, caption, self.figure, header, self.rows, self.marks, detail)


@contextmanager
def drawing(height: float, labels: Collection[str] = (), panels: int = 1) -> Iterator[Drawing]:
    """Draw a chart in the style of all of them; its legend is added at the end.

    The panels, each of a height in inches, have a common x axis. Below them is space for a legend of ``labels``.
    """
    with styled():
        rows = -(-len(labels) // _columns(labels))
        figure = _matplotlib().figure.Figure(figsize=(WIDTH, height * panels + 0.2 * rows), layout="constrained")
        axes = figure.subplots(panels, sharex=True, squeeze=False)
        drawn = Drawing(figure, [row[0] for row in axes])
        yield drawn
        if entries := drawn.entries:
            texts = [shown(label) for label in entries]
            figure.legend(list(entries.values()), texts, loc="outside lower left", ncols=_columns(entries))


def label_axes(axes: Axes, x: str, y: str) -> None:
    """Name the axes; an empty name is left out."""
    axes.set(xlabel=shown(x), ylabel=shown(y))


def _columns(labels: Collection[str]) -> int:
    return 2 if max(map(cell_len, labels), default=0) <= _SHORT else 1


def shown(label: str) -> str:
    """Return a name for use in a figure: short, on one line; matplotlib hides names that begin with ``_``."""
    text = clean(" ".join(label.split()))
    longest = _LONGEST * len(text) // max(1, cell_len(text))  # letters of Chinese, Japanese or Korean are wide
    if len(text) > longest:  # names of settings differ at their ends
        text = f"{text[: longest // 3]}…{text[longest // 3 + 1 - longest :]}"
    return f" {text}" if text.startswith("_") else text


def wrapped(text: str, inches: float = WIDTH) -> list[str]:
    """Break a text into a few lines that fit the width of a figure."""
    is_wide = any(unicodedata.east_asian_width(character) in "FW" for character in text)
    width = int(_TITLE_WIDTH * inches / WIDTH) // (2 if is_wide else 1)
    return textwrap.wrap(clean(text), width, max_lines=_MOST_LINES, placeholder=" …", break_on_hyphens=False)


def clean(text: str) -> str:
    """Replace characters that XML cannot hold."""
    return _CONTROL.sub("�", text)


# Which methods a chart shows, and how -------------------------------------------------------------------------------


# The arguments of ``Axes.plot`` for each method by its label, see :func:`every_method`.
Looks = Mapping[str, Mapping[str, Any]]


def every_method(results: Results) -> Looks:
    """Choose how each method is drawn in all figures of a report, by its label.

    If there are more methods than colours, they share them, with other markers and dashes. Methods without a score come
    last.
    """
    labels = dict.fromkeys([*results.labels, *(label for each in results.settings for label in each.by_label)])
    looks = {}
    for number, label in enumerate(labels):
        turn, index = divmod(number, len(SERIES))
        marker, dashes = MARKERS[(index + turn) % len(MARKERS)], DASHES[turn % len(DASHES)]
        looks[label] = {"color": SERIES[index], "marker": marker, "linestyle": dashes}
    return looks


def methods_shown(setting: ReportedSetting, labels: Collection[str], every: Looks) -> tuple[Looks, str]:
    """Choose the methods of a figure: the reference, and those with the highest scores, as many as there are colours.

    The ``labels`` are of methods that have what the figure shows. A sentence says how many are left out.
    """
    ranks = {row.label: (not row.is_reference, -row.mean if row.n else 0) for row in setting.answer.rows}
    found = [label for label in every if label in labels]
    kept = set(sorted(found, key=lambda label: ranks.get(label, (True, math.inf)))[: len(SERIES)])
    few, reference = len(kept) < len(found), {row.label for row in setting.answer.rows if row.is_reference} & kept
    which = f"{'the reference and ' if reference else ''}the {len(kept - reference)} with the best scores"
    sentence = f" Of {len(found)} methods, {which} are shown." if few else ""
    return {label: every[label] for label in found if label in kept}, sentence
