"""`attendrop inspect`, and the short form of its report before training."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from attendrop.cli.app import Json, path_argument, register, run_option, show
from attendrop.errors import printable
from attendrop.runs.config import joined_names, names
from attendrop.runs.run_folder import is_main_process
from attendrop.tasks.inspection import DATE, SOURCE, TEXT, Inspection, check_files, inspect_files, tells_label
from attendrop.tasks.table import count_words, joined_labels, may_be_missing, number_form
from attendrop.wording import aligned, counted, names_of

if TYPE_CHECKING:
    from attendrop.runs.config import RunConfig

_MOST_LABELS = 20
_FEW_VALUES = 20  # of columns that may be read in front of the text


@register
def inspect(
    file: Annotated[str, path_argument("Training data: a table, such as .csv, .xlsx, .jsonl.", "FILE")],
    eval_file: Annotated[str | None, run_option("eval_file", "Evaluation data, to compare with FILE.")] = None,
    text_columns: Annotated[str | None, run_option("text_columns")] = None,
    label_column: Annotated[str | None, run_option("label_column")] = None,
    label_type: Annotated[str, run_option("label_type")] = "auto",
    label_map: Annotated[str | None, run_option("label_map")] = None,
    as_json: Json = False,
) -> None:
    """Describe a file: format, contents, likely mistakes, and how to train on it."""
    how: dict[str, Any] = {"label_column": label_column, "label_type": label_type, "label_map": label_map}
    found = inspect_files(file, eval_file, text_columns=names(text_columns or ""), **how)
    doubts = found.doubts()
    rows = [["column", "role", "different", "missing", "words"]]
    for column in found.columns:
        words = f"{column.words:.1f}" if column.role == TEXT else ""
        rows.append([column.name or "''", column.role, str(column.distinct), str(column.missing), words])
    parts = [[_head(found)], aligned(rows, "llr")]
    spans = found.label_type == "spans"
    counts, what = found.labels or found.tags, "Labels of" if found.labels else "Words with each tag of"
    what = "Entities of each type in" if spans else what
    if counts:
        shown = aligned([[f"  {label}", str(count)] for label, count in list(counts.items())[:_MOST_LABELS]], "lr")
        more = [f"  and {len(counts) - len(shown)} more"] if len(counts) > len(shown) else []
        as_rows = [f"Their names as training rows: {found.names_as_rows}."] if found.names_as_rows else []
        parts.append([f"{what} {found.label_column!r}: {len(counts)}", *shown, *more, *as_rows])
    if found.text_columns:
        lengths = [count_words(" ".join(map(str, row))) for row in found.table.values(found.text_columns)]
        parts.append([f"Length in words: {median(lengths):.0f} at the median, {max(lengths)} at most."])
    if doubtful := [f"- {line}" for line in (*found.notes, *doubts.values())]:
        parts.append(["To look at:", *doubtful])
    parts.append(_next(found, doubts, label_map, typed=label_type != "auto"))
    text = "\n\n".join("\n".join(lines) for lines in parts)
    show(found.as_dict() if as_json else None, text, as_json=as_json)


def announce_files(config: RunConfig, *, quiet: bool) -> None:
    """Describe briefly how the files of a run are read, before loading PyTorch; refuse them as :func:`check_files`."""
    if config.train_file is None:
        return
    options = {name: getattr(config, name) for name in ("text_columns", "label_column", "label_type", "label_map")}
    found = check_files(config.train_file, config.eval_file, skip_bad_rows=config.skip_bad_rows, **options)
    if found is None or quiet or not is_main_process():
        return
    print(printable(f"{_head(found)}; {_reading(found)}."), file=sys.stderr)
    if found.variants:
        print(printable(found.doubts()["variants"]), file=sys.stderr)


def _head(found: Inspection) -> str:
    return ", ".join(filter(None, [f"{found.table.path}: {counted(len(found.table), 'row')}", found.written_as]))


def _reading(found: Inspection) -> str:
    """Describe how each column is read."""
    texts = f"{'texts' if len(found.text_columns) > 1 else 'text'} {', '.join(map(repr, found.text_columns))}"
    if found.label_column is None:
        return f"{texts}, no label"
    number = len(found.labels)
    kinds = {
        "class": f" ({number} class{'' if number == 1 else 'es'})",
        "labels": f" ({counted(number, 'label')}, several of a row)",
        "number": " (numbers)",
        "spans": f" (spans of {counted(len(found.tags), 'type')} of entities)",
    }
    of_words = f" ({counted(len(found.tags), 'tag')} of words)" if found.tags else ""
    return f"{texts}, label {found.label_column!r}{kinds.get(found.label_type, of_words)}"


def _next(found: Inspection, doubts: dict[str, str], label_map: str | None, *, typed: bool) -> list[str]:
    """Describe how attendrop interprets the file, and list the commands for it."""
    if found.label_column is None:
        return ["No column looks like labels; name it with --label-column."]
    if not found.text_columns:
        return ["No column is left for the texts; name one with --text-columns."]
    forms = Counter(map(number_form, found.labels or {*found.written_labels} - {""}))
    points = found.label_type == "number" and not forms["text"]  # perhaps between thousands
    if found.unclear and found.label_type != "labels" and (points or 2 * forms["notation"] > forms.total()):
        several = ", or set --label-type labels" if joined_labels(found.labels) else ""
        return [f"Write the labels as numbers first{several}."]
    words = [str(found.table.path), *([] if found.evaluated is None else ["--eval-file", str(found.evaluated.path)])]
    words += ["--text-columns", joined_names(found.text_columns), "--label-column", found.label_column]
    if typed or found.unclear or found.label_type == "labels":
        words += ["--label-type", found.label_type]
    words += ["--label-map", label_map] if label_map else []
    refused = doubts.keys() & {"skipped", "without_text", "without_label", "empty_label", "spans"}
    words += ["--skip-bad-rows"] if refused or (found.label_type == "number" and found.unclear) else []
    words += ["--group-column", found.group_columns[0].name] if found.group_columns else []
    words += ["--model", "MODEL"] if found.label_type == "text" else []  # for which the default model has no class
    lines = [f"attendrop reads: {_reading(found)}."]
    for column in found.columns:
        dates = (str(value or "") for value in found.table.column(column.name))
        if column.role == DATE and all(date[:4].isdecimal() or may_be_missing(date) for date in dates):
            lines.append(f"With --ood-column {shlex.quote(column.name)}, it also scores the rows of the last dates.")
    few = [each.name for each in found.columns if each.role in (SOURCE, "") and 2 <= each.distinct <= _FEW_VALUES]
    groups = [each.name for each in found.group_columns]
    few = [name for name in few if name not in (*groups, *found.label_candidates)]
    told = [name for name in few if tells_label(found.table.column(name), found.written_labels)]
    lines += [f"Each value of {name!r} is of one label: it may be the label in other words." for name in told]
    few = [name for name in few if name not in told]
    if few and found.label_type in ("class", "labels", "number"):
        columns = shlex.quote(joined_names(few))
        lines.append(
            f"With --with-columns {columns}, texts begin with their values, and compare says whether that helps."
        )
    for name in groups[:1]:
        several = f"; {names_of(groups)} may all be meant" if len(groups) > 1 else ""
        lines.append(
            f"With --group-column {shlex.quote(name)}, rows with the same {name!r} stay together in splits, and count "
            f"as one in intervals; leave it out if such rows are independent{several}."
        )
    return [*lines, "Next:", *(f"  attendrop {command} {shlex.join(words)}" for command in ("compare", "train"))]
