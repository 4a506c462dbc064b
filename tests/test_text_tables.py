"""Tables of texts, for each of their targets."""

from __future__ import annotations

import csv
import io

from attendrop.text_tables import NAMES_LEFT, aligned, csv_of_records, in_latex, latex_table, markdown_table

ROWS = [("a", "10", "-"), ("long", "2", "1|2")]


def test_columns_are_aligned_by_the_widest_cell() -> None:
    assert aligned([("name", "n"), ("a", "10")], NAMES_LEFT) == ["name   n", "a     10"]
    assert aligned([("name", "n"), ("a", "10")], gap="|") == ["name|n", "a   |10"]
    assert aligned([("name", "n"), ("退款", "10"), ("é", "2")], "lr") == ["name   n", "退款  10", "é      2"]


def test_markdown_keeps_bars_within_their_cells() -> None:
    assert markdown_table(("x", "y", "z"), ROWS, NAMES_LEFT).splitlines() == [
        "| x | y | z |",
        "| --- | ---: | ---: |",
        "| a | 10 | - |",
        r"| long | 2 | 1\|2 |",
    ]


def test_latex_is_a_booktabs_table_of_escaped_texts() -> None:
    table = latex_table(("x", "y"), [("a", in_latex("50 %  & more"))], "About")
    assert r"\begin{tabular}{lr}" in table and r"a & 50 \% \& more \\" in table
    assert in_latex("[ours] p") == "{}[ours] p"  # otherwise a length behind the row above


def test_csv_reads_back_with_all_columns() -> None:
    records = [{"name": 'a "b", c\nd'}, {"n": 3, "name": "ü"}]
    found = [*csv.DictReader(io.StringIO(csv_of_records(records), newline=""))]
    assert found == [{"name": 'a "b", c\nd', "n": ""}, {"name": "ü", "n": "3"}]
