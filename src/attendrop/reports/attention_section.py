"""The section of a report with an attention viewer, or with what it takes to get one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from attendrop.errors import AttendropError
from attendrop.reports.page import Section, render
from attendrop.reports.results import Results, runs_folder
from attendrop.runs.run_file import RUN_FILE
from attendrop.runs.run_folder import keeps_model
from attendrop.studies.comparison import BEST

_IDENTIFIER, _HEADING = "attention", "Attention"


@dataclass(frozen=True)
class ViewerOptions:
    """What the attention viewer of a report shows.

    Attributes:
        texts: Texts; none: rows of the evaluation data.
        pairs: The second text of each, for a model of pairs.
        device: ``"auto"`` or ``"cpu"``.

    Raises:
        AttendropError: There are second texts without first ones.
    """

    texts: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.pairs and not self.texts:
            raise AttendropError("Second texts are given, but no first ones; give --text for each --text-pair.")


DEFAULT_VIEWER = ViewerOptions()


class AttentionPart(NamedTuple):
    """What a report shows of attention.

    Attributes:
        section: The section.
        missing: Why there is no viewer, or what it lacks of texts that were given; empty if nothing is missing.
    """

    section: Section
    missing: str


# Makes a part that adds at most so many bytes to a page, or else the shortest there is.
PartOfSize = Callable[[int], AttentionPart]


def attention_part(results: Results, options: ViewerOptions) -> PartOfSize:
    """Look at the model that a comparison kept, which is loaded for this; studies keep none.

    Returns:
        A function that makes a part which adds at most so many bytes to a page, or else the shortest there is.

    Raises:
        AttendropError: Texts were given that cannot be shown.
    """
    best = results.folder / BEST
    try:
        if not keeps_model(best):
            raise AttendropError(_how_to_keep(results))
        from attendrop.reports.kept_model import look_at_kept_model  # loads what reads data and models

        runs = [run for each in results.settings for run in each.runs]
        kept = look_at_kept_model(best, runs, options.texts, options.pairs, options.device)
    except AttendropError as error:
        if options.texts:
            raise
        nothing = _sentence(str(error))
        return lambda most_bytes: nothing
    no_room = _sentence(
        f"The page has no room left for the maps of the kept model. `{kept.way_to_see_a_text}` makes a page of a text."
    )

    def part(most_bytes: int) -> AttentionPart:
        found = kept.section(_IDENTIFIER, _HEADING, most_bytes)
        if found is None:
            return no_room
        section, left_out = found
        return AttentionPart(section, left_out if options.texts else "")

    return part


def _how_to_keep(results: Results) -> str:
    """Say how to get a model whose attention can be seen: that of a run of what is recommended."""
    inside = runs_folder(results.folder)
    for setting in results.settings:
        found = {label: inside / runs[0].folder for label, runs in setting.by_label.items()}
        tuned = {label: run for label, run in found.items() if (run / RUN_FILE).is_file()}
        if tuned:
            run = tuned.get(setting.answer.use or "", next(iter(tuned.values())))
            return _how_to_see(run)
    return (
        'No model was kept whose attention could be shown; `attendrop attend RUN "TEXT"` shows that of a run that kept '
        "its model."
    )


def _how_to_see(run: Path) -> str:
    if keeps_model(run):
        return f'No model was kept beside the runs, but `attendrop attend {run} "TEXT"` shows the attention of a run.'
    return (
        "The runs kept their scores, not their models, whose attention could be shown; train one with `attendrop train "
        f'--config {run / RUN_FILE} --output-dir FOLDER`, then `attendrop attend FOLDER "TEXT"` shows it.'
    )


def _sentence(text: str) -> AttentionPart:
    """Say why there is no viewer."""
    return AttentionPart(Section(_IDENTIFIER, _HEADING, render("sentence.html", text=text)), text)
