"""Column files, parallel files and plain text: their columns and places, and what is broken in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from attendrop import AttendropError
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.file_formats import default_columns, default_label_type
from attendrop.tasks.table import BadRows, Table
from attendrop.tasks.table_files import read_chunks, read_table

CONLLU = """# newdoc
# text = I don't. It rains
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\tgo\tVERB\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

1\t# 1\t_\tX\t_\t_\t_\t_\t_\t_
"""


def written(folder: Path, name: str, text: str) -> Table:
    (folder / name).write_text(text, encoding="utf-8")
    return read_table(folder / name)


def test_the_first_column_has_the_words_and_the_last_the_tags(tmp_path: Path) -> None:
    table = written(tmp_path, "a.conll", "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\n\nPeter NNP B-PER\n")
    assert table.columns == ["tokens", "column_2", "tags"]
    assert table.rows == [
        [["EU", "rejects"], ["NNP", "VBZ"], ["B-ORG", "O"]],
        [["Peter"], ["NNP"], ["B-PER"]],
    ]
    assert table.places == ["line 3", "line 8"]
    assert table.index == [0, 1]


def test_a_comment_has_a_name_and_a_value_and_anything_else_is_a_word(tmp_path: Path) -> None:
    table = written(tmp_path, "a.conll", "# file = one\n#\t#\n#1\tCD\n\n#love\tX\n")
    assert table.column("tokens") == [["#", "#1"], ["#love"]]


def test_conllu_has_a_word_a_line(tmp_path: Path) -> None:
    table = written(tmp_path, "a.conllu", CONLLU)
    assert table.column("tokens") == [["I", "do", "n't", "."], ["# 1"]]
    assert table.column("upos") == [["PRON", "AUX", "PART", "PUNCT"], ["X"]]
    assert table.places == ["line 3", "line 10"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "a X\nb\n", "a.conll, line 2: 1 column where the first line of the file has 2"),
        ("a.conllu", "1\ta\n", "word 1 has 2 columns instead of 10, separated by tabs"),
        ("a.conllu", CONLLU.replace("4\t.\t.", "5\t.\t."), "word 4 has the number 5"),
    ],
)
def test_a_broken_sentence_is_refused_or_left_out(tmp_path: Path, name: str, text: str, message: str) -> None:
    good = "\na X\n" if name == "a.conll" else "\n1\ta\t_\tX\t_\t_\t0\t_\t_\t_\n"
    with pytest.raises(AttendropError, match=message):
        written(tmp_path, name, text + good)
    bad = BadRows(skip=True)
    (table,) = read_chunks(tmp_path / name, None, bad)
    assert table.column("tokens")[-1] == ["a"] and len(bad.skipped) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "a cat\n\nthe dog\n"),
        ("a.conll", "a\tO\ncat\tB\n\nthe\tO\n"),
        ("a.conllu", CONLLU),
        ("a.jsonl", '{"text": "a"}\n{"text": "b"}'),
    ],
)
def test_lines_may_end_in_carriage_returns(tmp_path: Path, name: str, text: str) -> None:
    """As those of old Macs do, and so does text that Excel exports for them; one within a line ends none."""
    tables = []
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / name).write_bytes(text.replace("\n", end).encode())
        tables.append(read_table(tmp_path / name))
    assert tables[0] == tables[1] == tables[2] and len(tables[0].rows) > 1
    (tmp_path / "b.txt").write_bytes(b"a\rcat\ndog\n")
    assert read_table(tmp_path / "b.txt").rows == [["a\rcat"], ["dog"]]


# Parallel files -------------------------------------------------------------------------------------------------------


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_parallel_files_are_one_table(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.tr", "bir, iki", "üç\r", "dört"), write(tmp_path / "a.en", "x", " y", "z")
    files = f"{first},{second}"
    assert (default_columns(files), default_label_type(files)) == ((("source",), "target"), "text")
    chunks = list(read_chunks(files, 2))
    assert [chunk.columns for chunk in chunks] == [["source", "target"]] * 2
    assert [row for chunk in chunks for row in chunk.rows] == [["bir, iki", "x"], ["üç", " y"], ["dört", "z"]]
    assert chunks[1].places == ["line 3"] and chunks[1].index == [2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("one", "two"), r"a\.en ends before line 3, and the other file goes on"),
        (("one", "two", "three", "four"), r"a\.tr ends before line 4"),
        (("one", "  ", "three"), r"line 2, column 'target': the text is empty"),
    ],
)
def test_lines_without_a_partner(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    files = f"{write(tmp_path / 'a.tr', 'bir', 'iki', 'üç')},{write(tmp_path / 'a.en', *lines)}"
    with pytest.raises(AttendropError, match=message):
        load_files(train_file=files, text_columns=["source"], label_column="target", label_type="text")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match=r"there is no file .*b\.en"):
        read_table(f"{write(tmp_path / 'a.tr', 'bir')},{tmp_path / 'b.en'}")
    with pytest.raises(AttendropError, match="are 3 parallel files; give two"):
        read_table("a,b,c")
