"""Answers as read from the ``answer.json`` of a comparison or a study."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import read_json
from attendrop.studies.answer import Answer
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import CrossedMean, Estimate, PairedDifference, mean_interval
from attendrop.studies.study_report import OverallRow
from attendrop.studies.verdict import Verdict


def read_answers(path: Path) -> dict[str, Answer] | None:
    """Read the answer of each setting by its name; that of a comparison has the name ``""``.

    Returns:
        None if there is no file.

    Raises:
        AttendropError: attendrop did not write the file.
    """
    content = read_json(path, {})
    if content is None:
        return None
    try:
        settings = content.get("settings", {"": content})
        return {name: _answer(found) for name, found in settings.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AttendropError(f"'{path}' was not written by attendrop; name the folder of a study.") from None


def read_overall(path: Path) -> tuple[OverallRow, ...] | None:
    """Read the comparison over all settings of a study; None if there is none."""
    found = read_json(path, {}) or {}
    return tuple(map(OverallRow.from_dict, found["overall"])) if "overall" in found else None


def _answer(found: Mapping[str, Any]) -> Answer:
    labels = [record["label"] for record in found["methods"]]
    reference = found["reference"] if "reference" in found else next(iter(labels), None)  # older files name none
    return Answer(
        str(found["task"]),
        str(found["model"]),
        str(found["metric"]),
        str(found.get("scored_on", found["task"])),  # older files have the task alone
        float(found["margin"]),
        tuple(_row(record, record["label"] == reference) for record in found["methods"]),
        Verdict(found["kind"], found["use"], tuple(map(str, found["sentences"]))),
        tuple(map(str, found["notes"])),
        str(found.get("holds_for", "")),
        _answer(found["shifted"]) if found.get("shifted") else None,
    )


def _row(record: Mapping[str, Any], is_reference: bool) -> MethodRow:
    difference = None
    if record["differences"] is not None:
        values = tuple(map(float, record["differences"]))
        kept = record.get("components") is not None  # older files speak of these rows only
        difference = PairedDifference(
            values,
            mean_interval(values),
            _estimate(record, "difference") if kept else Estimate(mean_interval(values).value, -math.inf, math.inf),
            record["p"] if kept else None,
            CrossedMean(**record["components"]) if kept else None,
        )
    return MethodRow(
        label=str(record["label"]),
        method=str(record["method"]),
        options=dict(record["options"]),
        scores={int(seed): float(score) for seed, score in record["scores"].items()},
        seconds={},
        folders={int(seed): str(name) for seed, name in record.get("runs", {}).items()},
        is_reference=is_reference,
        selected_on_reported=bool(record["selected_on_reported"]),
        difference=difference,
        p_holm=record["p_holm"] if record.get("components") else None,
        cost=record["time_ratio"],
    )


def _estimate(record: Mapping[str, Any], name: str) -> Estimate:
    """Read an estimate; an end that is null is infinite."""
    low, high = record[f"{name}_low"], record[f"{name}_high"]
    return Estimate(float(record[name]), -math.inf if low is None else low, math.inf if high is None else high)
