"""Words of messages, and tables of texts for each of their targets."""

import csv
import io
import math

import pytest

from attendrop.wording import (
    NAMES_LEFT,
    aligned,
    counts_of,
    csv_of_records,
    in_latex,
    interval_of,
    markdown_table,
    names_of,
    score_text,
)


def test_names_beyond_the_tenth_are_counted() -> None:
    counts = {f"label {number}": number for number in range(12)}
    found = counts_of(counts)
    assert found.startswith("'label 0' (0), 'label 1' (1)") and found.endswith("'label 9' (9) and 2 more")
    assert names_of(["a", "b"], " or ") == "'a' or 'b'"
    assert names_of([str(number) for number in range(52)]).endswith("'48', '49', 2 more")


@pytest.mark.parametrize(
    ("value", "like", "text"),
    [
        (0.8123456, None, "0.8123"), (-1.234e-5, None, "-0.0000123"), (2e-7, 1e-4, "0.000000"), (0.0, None, "0.0000"),
        (-1e-17, None, "0.0000"), (math.nan, None, "nan"), (2.5e-12, None, "0.00000000000250"), (2e-16, None, "0.0000"),
    ],
)  # fmt: skip
def test_small_scores_have_more_digits_but_for_what_rounding_leaves(value: float, like: float, text: str) -> None:
    assert score_text(value, like) == text


def test_an_interval_has_the_digits_of_its_scores() -> None:
    assert interval_of({"low": -2e-5, "high": 1e-5}, 1e-4) == "-0.000020 to +0.000010"
    assert interval_of({"low": None, "high": None}, 1e-4) == "too few rows to tell"


def test_columns_are_aligned_by_the_widest_cell() -> None:
    assert aligned([("name", "n"), ("a", "10")], gap="|") == ["name|n", "a   |10"]
    assert aligned([("name", "n"), ("退款", "10"), ("é", "2")], "lr") == ["name   n", "退款  10", "é      2"]


def test_markdown_and_latex_are_escaped() -> None:
    lines = markdown_table(("x", "y"), [("long", "1|2")], NAMES_LEFT).splitlines()
    assert lines == ["| x | y |", "| --- | ---: |", r"| long | 1\|2 |"]
    assert in_latex("50 %  & more") == r"50 \% \& more"
    assert in_latex("[ours] p") == "{}[ours] p"  # otherwise a length behind the row above


def test_csv_reads_back_with_all_columns() -> None:
    records = [{"name": 'a "b", c\nd'}, {"n": 3, "name": "ü"}]
    found = [*csv.DictReader(io.StringIO(csv_of_records(records), newline=""))]
    assert found == [{"name": 'a "b", c\nd', "n": ""}, {"name": "ü", "n": "3"}]
