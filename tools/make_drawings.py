"""Draw the pictures of docs/concepts, into docs/pictures: `python tools/make_drawings.py`. Needs attendrop[plots].

Lines and letters are of a grey that is legible on white and on black, and the background is transparent.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

PICTURES = Path(__file__).parents[1] / "docs/pictures"
WIDTH = 700 / 96  # inches: 700 pixels in a browser
GREY, BLUE, ORANGE = "#7b7b7b", "#4a90d9", "#d9822b"
plt.rcParams |= {
    "svg.hashsalt": "attendrop",
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
} | dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor"), GREY)


def save(figure: Figure, name: str) -> None:
    """Write a picture, of the same bytes each time."""
    figure.savefig(PICTURES / f"{name}.svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "-|>", "color": color, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)


def box(axes: Axes, x: float, y: float, width: float, text: str, color: str = GREY, height: float = 0.6) -> None:
    """Draw a rounded box around a text, its lower left corner at (x, y)."""
    shape = FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=0.12", fill=False, ec=color, lw=1.3)
    axes.add_patch(shape)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=color)


def canvas(height: float, right: float, top: float) -> tuple[Figure, Axes]:
    """Return an empty picture, with the height in inches and the coordinates of its upper right corner."""
    figure = plt.figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, right), ylim=(0, top))
    axes.axis("off")
    return figure, axes


def ad_drop() -> None:
    """Draw one row of attention: attribution, candidates, and what is dropped."""
    words = ["the", "card", "was", "charged", "twice", "in", "May", "."]
    attribution = np.array([0.05, 0.45, 0.12, 0.95, 0.8, 0.03, 0.3, -0.08])
    scores = np.array([0.3, 1.0, 0.5, 1.7, 1.4, 0.2, 0.9, 0.4])
    candidates, dropped = attribution >= 0.45, np.array(words) == "charged"
    before = np.exp(scores) / np.exp(scores).sum()
    after = np.where(dropped, 0, np.exp(scores)) / np.exp(scores)[~dropped].sum()
    figure, panels = plt.subplots(1, 3, figsize=(WIDTH, 2.5), sharey=True)
    places = np.arange(len(words))[::-1]
    colors = np.where(candidates, ORANGE, GREY)
    panels[0].barh(places, attribution, 0.6, color=colors)
    panels[0].axvline(0.4, color=ORANGE, lw=1, ls="--")
    panels[0].text(0.43, 0.0, "the highest p\nare candidates", color=ORANGE, va="center")
    panels[0].set(yticks=places, yticklabels=words, title="1  attribution of each key")
    panels[1].barh(places, before, 0.6, color=colors)
    panels[1].barh(places[dropped], before[dropped], 0.6, color="none", ec=ORANGE, hatch="////", lw=1.2)
    place = places[dropped][0]
    panels[1].patches[int(np.flatnonzero(dropped)[0])].set_visible(False)
    panels[1].text(before[dropped][0] + 0.01, place, "dropped, with\nprobability q", color=ORANGE, va="center")
    panels[1].set(title="2  attention, before")
    panels[2].barh(places, after, 0.6, color=BLUE)
    panels[2].text(0.01, place, "0", color=BLUE, va="center")
    panels[2].set(title="3  attention in the training pass")
    for panel, most in zip(panels, (1.3, 0.5, 0.5), strict=True):
        panel.spines["left"].set_visible(False)
        panel.spines["bottom"].set_visible(False)
        panel.tick_params(length=0)
        panel.set(xticks=[], xlim=(min(0, attribution.min()) if most > 1 else 0, most))
    figure.subplots_adjust(0.09, 0.03, 0.99, 0.88, wspace=0.12)
    save(figure, "ad_drop")


def recorded_attributions() -> None:
    """Draw the passes of one row over three epochs, with a separate pass and recorded."""
    figure, axes = canvas(2.9, 14, 6)
    for epoch in range(3):
        left = 2.6 + 3.8 * epoch
        axes.text(left + 1.55, 5.65, f"epoch {epoch + 1}", ha="center", va="center")
        box(axes, left, 4.4, 1.5, "attribution", ORANGE)
        box(axes, left + 1.95, 4.4, 1.2, "training", BLUE)
        arrow(axes, (left + 1.5, 4.7), (left + 1.95, 4.7), ORANGE)
        axes.text(left + 1.58, 3.9, "drop what the prediction\nrelies on now", ha="center", va="center", fontsize=8)
        box(axes, left + 1.95, 1.9, 1.2, "training", BLUE)
        if epoch:
            arrow(axes, (left + 2.3, 1.3), (left + 2.3, 1.87), ORANGE)
        if epoch < 2:
            axes.plot([left + 2.8, left + 2.8, left + 6.1], [1.9, 1.3, 1.3], color=ORANGE, lw=1.2)
    axes.text(0.2, 4.7, "separate pass", va="center")
    axes.text(0.2, 2.2, "recorded", va="center")
    axes.text(5.15, 2.8, "nothing is dropped", ha="center", fontsize=8)
    axes.text(8.75, 0.75, "gradient of the loss, from the backward pass of the epoch before", ha="center", fontsize=8)
    axes.plot([0.2, 13.8], [3.35, 3.35], color=GREY, lw=0.6)
    save(figure, "recorded_attributions")


def rows_and_seeds() -> None:
    """Draw the differences of two methods by seed and row, and the intervals over them."""
    sampler = np.random.default_rng(5)
    taste = np.array([0.85, 0, 0, 0, 0, -0.8, 0, 0.6, 0, 0, 0.7, 0, 0, 0, -0.4, 0, 0, 0.9, 0, 0, 0, 0, 0.5, 0])
    differs = (sampler.random((5, len(taste))) < np.abs(taste)) * np.sign(taste)
    figure, axes = canvas(2.9, 14, 5.8)
    size, left, bottom = 0.33, 1.5, 2.3
    for seed, values in enumerate(differs):
        y = bottom + (4 - seed) * (size + 0.12)
        axes.text(left - 0.2, y + size / 2, f"seed {seed}", ha="right", va="center", fontsize=8)
        for row, value in enumerate(values):
            color = {1: BLUE, -1: ORANGE, 0: "none"}[int(value)]
            axes.add_patch(Rectangle((left + row * size, y), size * 0.86, size, fc=color, ec=GREY, lw=0.5))
        axes.text(left + len(values) * size + 0.2, y + size / 2, f"{values.mean():+.2f}", va="center", fontsize=8)
    axes.text(left + 12 * size, 4.85, "evaluation rows", ha="center", fontsize=8)
    axes.text(9.55, 4.85, "mean", fontsize=8)
    axes.add_patch(Rectangle((left, 1.65), 0.28, 0.33, fc=BLUE, ec=GREY, lw=0.5))
    axes.text(left + 0.4, 1.81, "only the method is right", va="center", fontsize=8)
    axes.add_patch(Rectangle((left + 4.3, 1.65), 0.28, 0.33, fc=ORANGE, ec=GREY, lw=0.5))
    axes.text(left + 4.7, 1.81, "only plain fine-tuning is", va="center", fontsize=8)
    by_seed, by_row = differs.mean(1), differs.mean(0)
    mean, over_seeds = differs.mean(), 2.776 * by_seed.std(ddof=1) / 5**0.5
    residual = differs - by_seed[:, None] - by_row + mean
    squares = len(taste) * by_seed.var(ddof=1) + 5 * by_row.var(ddof=1) - (residual**2).sum() / (4 * (len(taste) - 1))
    new_rows = 2.07 * (squares / differs.size) ** 0.5
    zero, scale = 11.6, 7.0
    axes.plot([zero, zero], [2.2, 4.6], color=GREY, lw=0.8, ls="--")
    axes.text(zero, 1.95, "0", ha="center", va="center", fontsize=8)
    for y, half, color, name in ((3.9, over_seeds, GREY, "seeds only"), (2.8, new_rows, BLUE, "seeds × examples")):
        axes.plot([zero + (mean - half) * scale, zero + (mean + half) * scale], [y, y], color=color, lw=2.4)
        axes.plot(zero + mean * scale, y, "o", color=color, ms=5)
        axes.text(zero + mean * scale, y + 0.25, name, ha="center", color=color, fontsize=8)
    axes.text(
        7, 0.75, "Each cell is a difference of two predictions. Seeds alone say how far the means of the lines vary;\n"
        "other examples are other columns.", ha="center", va="center", fontsize=8,
    )  # fmt: skip
    save(figure, "rows_and_seeds")


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    ad_drop()
    recorded_attributions()
    rows_and_seeds()
