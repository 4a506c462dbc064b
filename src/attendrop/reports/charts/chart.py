"""One figure, as PNG and SVG files, and as SVG within a page: there with the page's colours, and values to hover over.

The figures within a page replace the colours here by the CSS variables of ``templates/page.css``, so that they follow
the browser's colour scheme.
"""

from __future__ import annotations

import io
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from attendrop.errors import AttendropError
from attendrop.reports.figure_file import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# As in templates/page.css.
TEXT, MUTED, LINE = "#1b1f24", "#59636e", "#d1d6dc"
SERIES = ("#0b62b5", "#c4480c", "#1f7d4d", "#8a3ab9", "#a16a00", "#007a87", "#b3186b", "#5b6470")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":")
_VARIABLES = {TEXT: "--text", MUTED: "--muted", LINE: "--line"} | {
    color: f"--series-{number}" for number, color in enumerate(SERIES, 1)
}
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_FONT = re.compile(r"font-family:[^;]*;\s*")
# Characters that XML cannot hold.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff￾￿]")
_REFERENCE = re.compile(r"#([\w-]+)")
_COLOR = re.compile(r"#[0-9a-f]{6}\b")
_LONGEST, _SHORT = 50, 20
_TITLE_WIDTH, _MOST_LINES, _LINE_HEIGHT = 46, 4, 0.15  # characters; lines; inches
WIDTH = 4.4  # inches: its text can be read on a phone
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
    "text.parse_math": False,  # names are no formulas
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


@dataclass(frozen=True)
class Mark:
    """Point of a figure that tells its value.

    Attributes:
        axes: Where it is.
        x, y: Its place, in the coordinates of the axes.
        text: What it tells.
    """

    axes: Axes
    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Figure with its values.

    Attributes:
        kind: What it shows, for the name of its files, such as "losses".
        setting: Name of the setting that it is about; empty for several.
        title: Its title, which does not name the setting.
        caption: How to read it.
        figure: The figure of matplotlib.
        header, rows: The values, as a table of texts.
        marks: Points to hover over.
        detail: In what it differs from others of its kind and setting, such as a method; it is part of the title.
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

    def inline_svg(self, identifier: str) -> str:
        """Return the figure as an SVG element for a page, with a ``<circle class="mark">`` for each mark.

        Args:
            identifier: Unique in the page; letters, digits and ``-``.
        """
        root = ElementTree.fromstring(self._saved("svg", transparent=True, metadata={"Date": None}))
        _adapt(root, identifier)
        root.append(self._marks(root))
        root.attrib = {
            "viewBox": root.attrib["viewBox"],
            "role": "img",
            "aria-label": clean(f"{self.title}. {self.caption}"),
            "tabindex": "0",
        }
        return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)

    def _marks(self, root: ElementTree.Element) -> ElementTree.Element:
        """Make circles with titles at the places of the marks."""
        width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
        to_figure = self.figure.transFigure.inverted()
        group = ElementTree.Element("g")
        for mark in self.marks:
            across, up = to_figure.transform(mark.axes.transData.transform((mark.x, mark.y)))
            place = {"cx": f"{across * width:.1f}", "cy": f"{(1 - up) * height:.1f}", "r": "5"}
            circle = ElementTree.SubElement(group, "circle", {"class": "mark"} | place)
            ElementTree.SubElement(circle, "title").text = clean(mark.text)
        return group

    @contextmanager
    def _titled(self) -> Iterator[None]:
        """Have the title and the setting above the figure, which is higher by their lines."""
        lines = [*_wrapped(self.title), *_wrapped(self.setting)]
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


def _adapt(root: ElementTree.Element, identifier: str) -> None:
    """Turn an SVG file into an element of a page: unique ids, the page's colours and font, no more than needed."""
    used = {name for each in root.iter() for value in each.attrib.values() for name in _REFERENCE.findall(value)}
    for each in root.iter():
        each.tag = each.tag.removeprefix(_SVG)
        each.text, each.tail = ((text if text and text.strip() else None) for text in (each.text, each.tail))
        for child in list(each):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                each.remove(child)
        each.attrib = {
            "href" if name == _LINK else name: _adapted(name, value, identifier)
            for name, value in each.attrib.items()
            if name != "id" or value in used
        }


def _adapted(name: str, value: str, identifier: str) -> str:
    match name:
        case "id":
            return f"{identifier}-{value}"
        case "style":
            return _COLOR.sub(_variable, _FONT.sub("", value))
        case "d" | "x" | "y" | "transform":
            return _NUMBER.sub(lambda found: f"{float(found[0]):.2f}", value)
        case _:
            return value.replace("#", f"#{identifier}-")


def _variable(found: re.Match[str]) -> str:
    return f"var({_VARIABLES[found[0]]})" if found[0] in _VARIABLES else found[0]


@contextmanager
def styled() -> Iterator[None]:
    """Use the style of all figures.

    Raises:
        AttendropError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise AttendropError("Figures need matplotlib; run `pip install attendrop[plots]`.") from None
    with matplotlib.rc_context():
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(height: float, labels: Sequence[str] = (), panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Make a figure; call within :func:`styled`.

    Args:
        height: Height of a panel in inches.
        labels: Entries of the legend below the panels, for which there must be space.
        panels: Number of panels, one above the other, with a common x axis.
    """
    from matplotlib.figure import Figure

    rows = -(-len(labels) // _columns(labels))
    figure = Figure(figsize=(WIDTH, height * panels + 0.2 * rows), layout="constrained")
    axes = figure.subplots(panels, sharex=True, squeeze=False)
    return figure, [row[0] for row in axes]


def add_legend(figure: Figure, entries: Mapping[str, Any]) -> None:
    """Put a legend below the panels: the artist of each label."""
    labels = [shown(label) for label in entries]
    figure.legend(list(entries.values()), labels, loc="outside lower left", ncols=_columns(list(entries)))


def label_axes(axes: Axes, x: str, y: str) -> None:
    """Name the axes; an empty name is left out."""
    axes.set_xlabel(shown(x))
    axes.set_ylabel(shown(y))


def _columns(labels: Sequence[str]) -> int:
    return 2 if max(map(len, labels), default=0) <= _SHORT else 1


def shown(label: str) -> str:
    """Return a name as it can stand in a figure: short, on one line; matplotlib hides names that begin with ``_``."""
    text = clean(" ".join(label.split()))
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return f" {text}" if text.startswith("_") else text


def _wrapped(text: str) -> list[str]:
    """Break a text into a few lines that fit the width of a figure."""
    is_wide = any(unicodedata.east_asian_width(character) in "FW" for character in text)
    width = _TITLE_WIDTH // 2 if is_wide else _TITLE_WIDTH
    return textwrap.wrap(clean(text), width, max_lines=_MOST_LINES, placeholder=" …", break_on_hyphens=False)


def clean(text: str) -> str:
    """Replace characters that XML cannot hold."""
    return _CONTROL.sub("�", text)
