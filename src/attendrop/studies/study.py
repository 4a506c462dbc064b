"""Run of a study: its units, then its tables."""

from __future__ import annotations

from pathlib import Path

from attendrop.errors import AttendropError
from attendrop.output_files import write_text
from attendrop.runs.folder_lock import LOCK
from attendrop.runs.run_folder import read_json
from attendrop.studies.executor import LOCAL, OnEvent, run_units
from attendrop.studies.study_file import Study
from attendrop.studies.study_report import StudyReport, make_report
from attendrop.studies.units import RUNS

ANSWER = "answer.json"
REPORTS = ("answer.md", ANSWER, "answer.csv")


def run_study(
    study: Study,
    folder: str | Path,
    *,
    workers: int | None = None,
    backend: str = LOCAL,
    on_event: OnEvent = lambda event: None,
) -> StudyReport:
    """Run what is not finished of a study, and write ``answer.md``, ``answer.json`` and ``answer.csv``.

    Args:
        study: The study.
        folder: Its folder; runs that are finished there are not run again.
        workers: Number of worker processes.
        backend: Where the runs take place, see :func:`attendrop.studies.executor.run_units`.
        on_event: Called with what happens to the runs.

    Raises:
        AttendropError: The folder holds something else, or another process uses it.
    """
    folder = Path(folder)
    check_study_folder(folder)
    units = study.units
    results = run_units(units, folder, workers=workers, backend=backend, on_event=on_event)
    of_unit = {unit.key(): result for unit, result in zip(units, results, strict=True)}
    report = make_report(study, {each.name: [of_unit[unit.key()] for unit in each.units] for each in study.settings})
    for name, content in zip(REPORTS, (report.markdown(), report.json(), report.csv()), strict=True):
        write_text(folder / name, content)
    return report


def check_study_folder(folder: Path, *, comparison: bool = False) -> None:
    """Raise AttendropError if a folder holds anything but a study, or instead of it a comparison."""
    if folder.exists() and not folder.is_dir():
        raise AttendropError(f"The output folder '{folder}' is a file.")
    if folder.exists() and not (folder / RUNS).is_dir() and any(path.name != LOCK for path in folder.iterdir()):
        raise AttendropError(f"The output folder '{folder}' holds other files; name an empty or a new one.")
    answer = read_json(folder / ANSWER, {})
    if answer is not None and ("settings" in answer) == comparison:
        found = "study" if comparison else "comparison"
        raise AttendropError(f"The output folder '{folder}' holds the answer of a {found}; name another one.")
