"""Words of messages, and tables of texts for each of their targets."""

import csv
import io
import math

import pytest

from attendrop.wording import NAMES_LEFT, counts_of, csv_of_records, in_latex, markdown_table, names_of, score_text


def test_names_beyond_the_tenth_are_counted() -> None:
    counts = {f"label {number}": number for number in range(12)}
    assert counts_of(counts).endswith("'label 9' (9) and 2 more")
    assert names_of([str(number) for number in range(52)]).endswith("'48', '49', 2 more")


@pytest.mark.parametrize(
    ("value", "like", "text"),
    [
        (0.8123456, None, "0.8123"), (-1.234e-5, None, "-0.0000123"), (2e-7, 1e-4, "0.000000"),
        (-1e-17, None, "0.0000"), (math.nan, None, "nan"),
    ],
)  # fmt: skip
def test_small_scores_have_more_digits_but_for_what_rounding_leaves(value: float, like: float, text: str) -> None:
    assert score_text(value, like) == text


def test_markdown_and_latex_are_escaped() -> None:
    lines = markdown_table(("x", "y"), [("long", "1|2")], NAMES_LEFT).splitlines()
    assert lines == ["| x | y |", "| --- | ---: |", r"| long | 1\|2 |"]
    assert in_latex("50 %  & more") == r"50 \% \& more"
    assert in_latex("[ours] p") == "{}[ours] p"  # otherwise a length behind the row above


def test_csv_reads_back_with_all_columns() -> None:
    records = [{"name": 'a "b", c\nd'}, {"n": 3, "name": "ü"}]
    found = [*csv.DictReader(io.StringIO(csv_of_records(records), newline=""))]
    assert found == [{"name": 'a "b", c\nd', "n": ""}, {"name": "ü", "n": "3"}]
