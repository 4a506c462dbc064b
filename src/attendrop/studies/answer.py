"""Answer of a comparison: a table of methods, and a recommendation in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.methods.core.registry import decided_by_data
from attendrop.studies.method_rows import (
    MethodRow,
    has_score,
    holds_for,
    method_label,
    method_rows,
    scored_on,
    scored_out_of_distribution,
)
from attendrop.studies.run_specs import BASELINES, CHEAP, REFERENCE, WITHOUT
from attendrop.studies.verdict import (
    DECIMALS,
    MIN_SEEDS,
    Verdict,
    cost,
    decide,
    ends,
    interval,
    name,
    number,
    opening,
    p_text,
    sentences,
)
from attendrop.tasks.class_names import names_told, unlabelled_decisions, unlabelled_told
from attendrop.wording import aligned, counted, decimals, in_markdown, markdown_table

# Differences below this are practically zero: of scores up to 1, and of errors as a share of the reference's.
MARGIN = 0.005
ERROR_MARGIN = 0.01
# Below this number of groups, their number limits what can be said of new ones.
FEW_GROUPS = 30
DIFFERENCE, SEEDS_ONLY = "difference [95 % CI (seeds × examples)]", "[seeds only]"
COLUMNS = ("method", "seeds", "score", DIFFERENCE, SEEDS_ONLY, "p (Holm)", "ahead", "time")
# Further columns, for the out-of-distribution split.
OOD_COLUMNS = ("OOD score", "OOD difference")
_OOD_RECORD = ("mean", "std", "difference", "difference_low", "difference_high", "p_holm")


@dataclass(frozen=True)
class Answer:
    """Comparison of methods on one task.

    Attributes:
        task: Name of the task, or of the training file.
        scored_on: The rows of the scores, in words.
        margin: Differences below this are taken as practically zero.
        rows: The reference, the other methods, and the baselines.
        sentences: The verdict in words: the decision with its reason, then the figures that it rests on.
        notes: What limits it: runs that are missing, scores that flatter.
        holds_for: What the intervals hold for, in a sentence.
        data: What distinguishes its data from others of the same name: the training file with its folder and the
            column of its labels, or the task; not written.
        ood: The same comparison on the out-of-distribution split, if there is one.
    """

    task: str
    model: str
    metric: str
    scored_on: str
    margin: float
    rows: tuple[MethodRow, ...]
    verdict: Verdict
    sentences: tuple[str, ...]
    notes: tuple[str, ...]
    holds_for: str
    data: str
    ood: Answer | None = None

    @property
    def use(self) -> str | None:
        """Label of what is recommended; None if nothing is."""
        return self.verdict.use

    @property
    def decimals(self) -> int:
        """How many decimals scores are shown with."""
        return decimals(self.margin, DECIMALS)

    @property
    def decision(self) -> tuple[str, str]:
        """The decision in a sentence, and its reason, which may be empty."""
        use = next((row for row in self.rows if row.label == self.use), None)
        before, decision, reason = self.sentences[0].partition(opening(use))
        return before + decision, reason.lstrip()

    def lines(self) -> list[str]:
        """Return the answer in words, with its limits, and the table for a console."""
        table, there = [COLUMNS, *(cells(row, self.decimals) for row in self.rows)], self.ood
        words, holds = [*self.sentences, *self.notes, ""], [self.holds_for]
        if there is not None:
            found = {row.label: cells(row, there.decimals)[2:4] for row in there.rows}
            beside = (OOD_COLUMNS, *(found.get(row.label, ("-", "-")) for row in self.rows))
            table = [line + more for line, more in zip(table, beside, strict=True)]
            words += [*there.sentences, *there.notes, ""]
            holds += {there.holds_for} - {self.holds_for}
        return [*words, f"{self.metric} of {self.model} on {self.scored_on}:", *aligned(table), *holds]

    def markdown(self) -> str:
        """Return the answer, the table, and the score of each seed as Markdown."""
        seeds = sorted({seed for row in self.rows for seed in row.scores})
        by_seed = [
            [in_markdown(row.label)]
            + [number(row.scores[seed], self.decimals) if seed in row.scores else "-" for seed in seeds]
            for row in self.rows
        ]
        decision, reason = map(in_markdown, self.decision)
        parts = [
            f"**{decision}** {reason}".rstrip(),
            in_markdown(" ".join(self.sentences[1:])),
            "\n".join(f"- {in_markdown(note)}" for note in self.notes),
            in_markdown(f"{self.metric} of {self.model} on {self.scored_on}:"),
            markdown_table(COLUMNS, [[*map(in_markdown, cells(row, self.decimals))] for row in self.rows]),
            in_markdown(self.holds_for),
            "By seed:",
            markdown_table(("method", *map(str, seeds)), by_seed),
        ]
        text = "\n\n".join(part for part in parts if part) + "\n"
        return text if self.ood is None else f"{text}\n{self.ood.markdown()}"

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of the table for a CSV, in full precision, with a column for the score of each seed."""
        seeds = sorted({seed for row in self.rows for seed in row.scores})
        there = {} if self.ood is None else {row.label: row.as_dict() for row in self.ood.rows}
        records = []
        for row in self.rows:
            record = row.as_dict() | {f"seed_{seed}": row.scores.get(seed) for seed in seeds}
            for key in ("options", "scores", "differences", "runs", "components"):
                del record[key]
            if self.ood is not None:
                record |= {f"ood_{key}": there.get(row.label, {}).get(key) for key in _OOD_RECORD}
            records.append(record)
        return records

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; an infinite end of an interval is None."""
        return {
            **{key: getattr(self, key) for key in ("task", "model", "metric", "scored_on", "margin")},
            "reference": next((row.label for row in self.rows if row.is_reference), None),
            **self.verdict.as_dict(),
            "sentences": list(self.sentences),
            "notes": list(self.notes),
            "holds_for": self.holds_for,
            "methods": [row.as_dict() for row in self.rows],
            **({} if self.ood is None else {"ood": self.ood.as_dict()}),
        }


def cells(row: MethodRow, digits: int) -> tuple[str, ...]:
    """Return the texts of a row of the table, one for each of :data:`COLUMNS`."""
    score = number(row.mean, digits) + ("" if row.std is None else f" ± {number(row.std, digits)}")
    both, seeds_only, ahead = "-", "-", "-"
    if (found := row.difference) is not None:
        both, seeds_only = interval(found, digits), ends(found.seeds_only, digits)
        ahead = "equal" if found.is_equal else f"{found.ahead:.2f}"
    p = "-" if row.p_holm is None else p_text(row.p_holm)
    return row.label, str(row.n), score + "*" * row.selected_on_reported, both, seeds_only, p, ahead, cost(row)


def answer(
    metrics: Sequence[Mapping[str, Any]],
    reference: str = REFERENCE,
    *,
    failed: Sequence[Mapping[str, Any]] = (),
    margin: float | None = None,
) -> Answer:
    """Compare methods with a reference, paired by seed.

    Args:
        metrics: The ``metrics.json`` of finished runs that differ in method and seed only, baselines among them.
        reference: Label of the method to compare with, see :func:`attendrop.studies.method_rows.method_label`.
        failed: Runs without a result: ``method``, ``options``, ``seed`` and ``error`` of each.
        margin: Differences below this are taken as practically zero. None: 0.005; for errors (``neg_...``), 1 % of
            the reference's.

    Raises:
        AttendropError: There is no run, the reference is a baseline, the runs differ in task, model or metric, or two
            have the same method and seed.
    """
    if not metrics:
        raise AttendropError("There is no finished run to compare.")
    if reference in BASELINES:
        raise AttendropError(f"The reference is a method, which {reference!r} is not; all are compared with baselines.")
    for key in ("task", "model", "metric"):
        found = sorted({str(run[key]) for run in metrics})
        if len(found) > 1:
            raise AttendropError(f"The runs differ in their {key} ({', '.join(found)}); compare those of one {key}.")
    rows = method_rows([run for run in metrics if has_score(run)], reference)
    first, metric, given = metrics[0], metrics[0]["metric"], margin
    if margin is None:
        margin = ERROR_MARGIN * abs(rows[0].mean) if metric.startswith("neg_") and rows else MARGIN
    verdict, file = decide(rows, margin), first.get("config", {}).get("train_file")
    usual = Answer(
        task=first["task"] if file is None else Path(file).name,
        model=first["model"],
        metric=metric,
        scored_on=scored_on(first),
        margin=margin,
        rows=tuple(rows),
        verdict=verdict,
        sentences=tuple(sentences(verdict, {row.label: row for row in rows}, reference, metric, margin)),
        notes=tuple(_notes(metrics, failed, rows, verdict, decimals(margin, DECIMALS))),
        holds_for=holds_for(first, rows, verdict.baseline_leads),
        data=str(first["task"] if file is None else f"{file}: {first['config'].get('label_column')}"),
    )
    # On the out-of-distribution split, where errors are larger; two sentences more say what it costs the reference, and
    # what the best model there costs on the usual rows.
    if not (runs := [{**run, **run["ood"], "ood": None} for run in metrics if run.get("ood")]):
        return usual
    shifted, scored, plain = answer(runs, reference, margin=given), scored_out_of_distribution(first), name(reference)
    here, there = ({row.label: row for row in each.rows} for each in (usual, shifted))
    words = [f"On {scored}: {shifted.sentences[0]}", *shifted.sentences[1:]]
    if reference in here and reference in there:
        scores = number(there[reference].mean, shifted.decimals), number(here[reference].mean, usual.decimals)
        words.append(f"{plain[0].upper()}{plain[1:]} scores {scores[0]} there, and {scores[1]} on the usual rows.")
    row = here.get(str(shifted.use))
    if row is not None and row.difference is not None and row.label not in (reference, usual.use):
        difference = interval(row.difference, usual.decimals)
        words.append(f"On the usual rows, {row.label} minus {plain} is {difference}.")
    holds = shifted.holds_for
    if any(row.difference is not None and row.difference.n > 1 for row in shifted.rows):
        holds = "OOD intervals hold for other rows of the same held-out groups: other groups may differ by more."
    notes = tuple(note for note in shifted.notes if note not in usual.notes)
    return replace(usual, ood=replace(shifted, scored_on=scored, sentences=tuple(words), notes=notes, holds_for=holds))


def _notes(
    runs: Sequence[Mapping[str, Any]],
    failed: Sequence[Mapping[str, Any]],
    rows: Sequence[MethodRow],
    verdict: Verdict,
    digits: int,
) -> Iterator[str]:
    """List the limitations of an answer."""
    missing = [f"{method_label(run)} with seed {run['seed']} (no score)" for run in runs if not has_score(run)]
    missing += [f"{method_label(run)} with seed {run['seed']} ({run['error']})" for run in failed]
    if missing:
        yield f"Without a result: {'; '.join(missing)}."
    # What the data decided.
    decisions: dict[str, str] = {}
    for run in runs:
        given = (run.get("config") or {}).get("options")
        if given is not None and (decision := decided_by_data(run["method"], given, run["options"])):
            decisions.setdefault(method_label(run), decision)
    for label, decision in decisions.items():
        yield f"Here {label} means {decision}: there are many classes with few rows each."
    if named := next((run for run in runs if "label_names" in run.get("data", {}).get("rows", {})), None):
        data = named["data"]
        left_out = data.get("names_left_out", ())
        yield from names_told(data["rows"]["label_names"], left_out, named["config"]["label_names"])
    unlabelled = [(method_label(run), run["data"]["unlabelled"]) for run in runs if run["data"].get("unlabelled")]
    if unlabelled:
        yield from unlabelled_told(unlabelled[0][1])
        yield from unlabelled_decisions(unlabelled)
    alone = next((row for row in rows if row.label.startswith(WITHOUT)), None)
    if alone is not None and rows[0].is_reference and (found := rows[0].versus(alone)):
        low, high = found.known.low, found.known.high
        shown = "they help" if low > 0 else "they do harm" if high < 0 else "no gain is shown"
        columns, difference = alone.label.removeprefix(WITHOUT), interval(found, digits)
        yield f"Texts begin with {columns}, and {shown}: plain fine-tuning with minus without is {difference}."
    # What was not compared. A method that acts in every second epoch only may act in none of a final model's.
    acted: dict[str, list[bool]] = {}
    for run in runs:
        if has_score(run) and run.get("history") and run["method"] != REFERENCE:
            acted.setdefault(method_label(run), []).append(any(entry["regularized"] for entry in run["history"]))
    for label, each in acted.items():
        if idle := each.count(False):
            yield f"{label} acted in no epoch of {idle} of {len(each)} runs, which are plain fine-tuning."
    for row in rows[1:] if rows and rows[0].is_reference else ():
        if row.pairs < max(row.n, rows[0].n):
            few = "" if row.pairs >= MIN_SEEDS else ", too few to judge"
            yield f"{row.label} and {rows[0].label} have {counted(row.pairs, 'seed')} in common{few}."
    # What is known of other rows.
    if grouped := next((run["data"]["looks_grouped"] for run in runs if run["data"].get("looks_grouped")), None):
        yield grouped
    groups = max((each.groups for row in rows for each in row.by_row.values() if each.groups < each.rows), default=0)
    if 0 < groups < FEW_GROUPS:
        yield (
            f"The evaluation rows are of {groups} groups only, so that little is known of others: further groups make "
            "the 95 % CI (seeds × examples) narrower, and further rows of these hardly."
        )
    unknown = [row.label for row in rows if row.difference and row.difference.n > 1 and not row.difference.components]
    if unknown:
        yield f"No scores by row on the reference's rows, so no 95 % CI (seeds × examples): {', '.join(unknown)}."
    best = next((row for row in rows if row.label == verdict.baseline), None)
    for other in rows:
        if best is None or not other.is_baseline or other.method in CHEAP or other.mean <= best.mean:
            continue
        if lead := other.versus(best):
            by = f"{other.label} minus {best.label} is {interval(lead, digits)}"
            yield f"{best.label}, which trains no encoder, counts as the best baseline: {by}."
    if len(rows) > 2 and verdict.use not in (None, rows[0].label):
        yield f"The best score of {len(rows)} on the same rows is optimistic: expect slightly less on new data."
    if any(row.selected_on_reported for row in rows):
        yield "*: a model was chosen on the rows that it is scored on, so its score is optimistic."
