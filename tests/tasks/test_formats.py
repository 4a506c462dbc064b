"""Files that people have: read as the CSV file of the same rows, recognized by inspection, or refused by their row."""

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import datasets
import openpyxl
import pytest
from helpers.command_line import Captured

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig, by_content, located
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.inspection import check_files, read_label_map
from attendrop.tasks.table import BadRows, files_of, read_chunks, read_table


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("set").mkdir()
    classes = datasets.ClassLabel(names=["broken", "late"])
    features = datasets.Features({"text": datasets.Value("string"), "label": classes, "all": datasets.List(classes)})
    columns = {"text": [text for text, _ in ROWS], "label": [1, 0], "all": [[1, 0], [-1]]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet("set/train.parquet")
    Path("images").mkdir()
    images = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict({"image": [None]}, features=images).to_parquet("images/train.parquet")
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.append(["Read this first, please"])
    for sheet, label in (("Data, 2024", "late"), ("old", "lost")):
        for row in (["id", "text", "label"], [1, "it came late", label], [2, "it came broken", "broken"]):
            (book[sheet] if sheet in book.sheetnames else book.create_sheet(sheet)).append(row)
    book.save("book.xlsx")


ROWS = [("it came late", "late"), ("it came broken", "broken")]
SEVERAL = [("it came late", ["late"]), ("it came late and broken", ["late", "broken"]), ("it came", [])]
WORDS = [(["Anna", "left"], ["B-PER", "O"]), (["Go", "to", "New York"], ["O", "O", "B-LOC"]), (["Go"], ["O"])]
RECORDS = [{"text": text, "label": label} for text, label in ROWS]
NESTED = [{"id": n, "data": {"text": text, "meta": {"label": label}}} for n, (text, label) in enumerate(ROWS)]
FILES = {
    "fasttext.txt": "__label__late it came late\n__label__broken  it came broken\n",
    "several.txt": "__label__late it came late\n__label__late __label__broken it came late and broken\nit came\n",
    "words.csv": "sentence_id,word,ner\n1,Anna,B-PER\n1,left,O\n2,Go,O\n2,to,O\n2,New York,B-LOC\n3,Go,O\n",
    "once.csv": "sent #,Word,Tag\ns: 1,Anna,B-PER\n,left,O\n,,\ns: 2,Go,O\n,to,O\n,New York,B-LOC\n3,Go,O\n",
    "array.json": json.dumps(RECORDS, indent=1),
    "object.json": json.dumps({"data": RECORDS}, indent=1),
    "line.json": json.dumps({"data": RECORDS}),
    "paged.json": json.dumps({"count": 2, "next": None, "results": RECORDS}, indent=1),
    "columns.json": json.dumps({name: {str(n): row[name] for n, row in enumerate(RECORDS)} for name in RECORDS[0]}),
    "index.json": json.dumps(dict(enumerate(RECORDS))),
    "lists.json": json.dumps({name: [row[name] for row in RECORDS] for name in RECORDS[0]}),
    "blank.csv": ",\ntext,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS),
    "spaces.csv": '"text", "label"\n' + "".join(f'"{text}", "{label}"\n' for text, label in ROWS),
    "again.csv": "text_id,sent,word,ner\n1,1,Anna,B-PER\n1,1,left,O\n2,1,Go,O\n2,1,to,O\n2,1,New York,B-LOC\n3,1,Go,O",
    "nested.jsonl": "\n".join(map(json.dumps, NESTED)),
    "header.csv": 'text,"late,broken"\nit came late,"[1, 0]"\nit came late and broken,1 1\nit came,[0. 0.]\n',
    "mapped.csv": 'text,flags\nit came late,"[1, 0]"\nit came late and broken,"[1, 1]"\nit came,"[0, 0]"\n',
    "names.csv": "position,meaning\n1,broken\n0,late\n",
}
# By name: columns of texts and of labels, options, and rows.
READ: dict[str, tuple[str, str, dict[str, Any], list[Any]]] = {
    "fasttext.txt": ("text", "label", {}, ROWS),
    "several.txt": ("text", "label", {}, SEVERAL),
    "words.csv": ("word", "ner", {"label_column": "ner"}, WORDS),
    "once.csv": ("Word", "Tag", {}, WORDS),
    "array.json": ("text", "label", {}, ROWS),
    "object.json": ("text", "label", {}, ROWS),
    "line.json": ("text", "label", {}, ROWS),
    **{f"{name}.json": ("text", "label", {}, ROWS) for name in ("paged", "columns", "index", "lists")},
    "blank.csv": ("text", "label", {}, ROWS),
    "spaces.csv": ("text", "label", {}, ROWS),
    "again.csv": ("word", "ner", {"label_column": "ner"}, WORDS),
    "nested.jsonl": ("data.text", "data.meta.label", {}, ROWS),
    "hub:set": ("text", "label", {}, ROWS),
    "book.xlsx:Data, 2024": ("text", "label", {}, ROWS),
    "header.csv": ("text", "late,broken", {}, SEVERAL),
    "mapped.csv": ("text", "flags", {"label_column": "flags", "label_map": "names.csv"}, SEVERAL),
}


@pytest.mark.filterwarnings("ignore:.*has a word in each row")
@pytest.mark.parametrize("name", READ)
def test_a_file_is_read_as_its_csv_is(name: str, capsys: Captured) -> None:
    text, label, options, rows = READ[name]
    found = check_files(name, None, **options)
    assert found is not None and (found.text_columns, found.label_column) == ((text,), label)
    assert found.table.values([text, label]) == rows
    config = RunConfig(train_file=name, model="m", output_dir="r", method="finetune", **options)
    assert (config.text_columns, config.label_column) == ((text,), label)
    data = load_files(train_file=name, **{"text_columns": [text], "label_column": label} | options)
    given: dict[str, Any] = {"text_columns": [text], "task_type": data.task.type, "bad": BadRows()}
    chunks = stream_file(name, size=1, label_column=label, label_map=options.get("label_map"), **given)
    assert [row for chunk in chunks for row in chunk.columns["label"]] == data.splits["train"]["label"][:]
    assert len(list(stream_file(name, size=9, **given))) == 1  # without labels, to predict
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    assert cli.main(["inspect", name, *arguments]) == 0
    command = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  attendrop train "))
    assert text in command and label in command


VECTORS = '"a,b",text\n"[0, 1]",x\n"{}",y\n' + '"[1, 0]",z\n' * 9
REFUSED = [
    ("s.csv", "sentence,token,tag\n1,a,O\n2,b,B-X\n1,c,O\n", "line 4: words of sentence '1' are also before"),
    ("s.csv", "sentence,token,tag\n1,a,O\n1,b\n2,c,O\n2,d,B-X\n", "line 3: 2 fields where the header has 3"),
    ("f.txt", "__label__a one\ntwo\n__label__b three\n", "line 2, column 'label': the label is empty"),
    ("v.csv", VECTORS.format("[0, 1, 0]"), "line 3, column 'a,b': '[0, 1, 0]' is no vector of 2 zeros and ones"),
    ("v.csv", VECTORS.format("[0, 2]"), "line 3, column 'a,b': '[0, 2]' is no vector of 2 zeros and ones"),
]


@pytest.mark.filterwarnings("ignore:.*has a word in each row")
@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_a_row_that_says_nothing_sure_is_refused_by_its_line(name: str, text: str, message: str) -> None:
    Path(name).write_text(text)
    columns = {"s": ("token", "tag"), "f": ("text", "label"), "v": ("text", "a,b")}[name[0]]
    given: dict[str, Any] = {"train_file": name, "text_columns": columns[:1], "label_column": columns[1]}
    with pytest.raises(AttendropError) as refused:
        load_files(**given)
    assert message in str(refused.value)
    assert [row.reason in str(refused.value) for row in load_files(**given, skip_bad_rows=True).skipped] == [True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text\tlabel\nit came late\tlate\nit came\tno\n", "has 1 tab in each line, as a table; name it .tsv."),
        ("John B-PER\nis O\n\n" * 9, "has words in its lines, and their tags; name it .conll."),
    ],
)
def test_tables_and_tags_named_as_texts_are_not_read_as_such(text: str, message: str) -> None:
    Path("a.txt").write_text(text)
    with pytest.raises(AttendropError, match=f"a.txt {re.escape(message)}"):
        read_table(Path("a.txt"))
    Path("a.txt").write_text(text + "the end of it all\n")  # texts, with tabs and blank lines here and there
    assert len(read_table(Path("a.txt"))) == text.count("\n") + 1


SURVEYS = {
    "qualtrics": 'id,text,mood\nID,"What, then?",How was it?\n"{""ImportId"":""_id""}","{""ImportId"":""Q1""}",\n{}',
    "qualtrics, of its service": 'id,text,mood\n"{""ImportId"":""_id""}","{""ImportId"":""Q1""}",\n{}',
    "surveymonkey": "id,text,mood\n,Open-Ended Response,Response\n{}",
}


@pytest.mark.parametrize("name", SURVEYS)
def test_rows_of_surveys_that_describe_columns_are_no_rows(name: str) -> None:
    rows = [["1", "it came late", "bad"], ["2", "it came", "good"]]
    lines = SURVEYS[name].replace("{}", "\n".join(map(",".join, rows)) + "\n").splitlines()
    Path("survey.csv").write_text("\n".join(lines) + "\n")
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in csv.reader(lines):
        book.active.append([cell or None for cell in row])
    book.save("survey.xlsx")
    for file in ("survey.csv", "survey.xlsx"):
        with pytest.warns(UserWarning, match="what a survey says of its columns is no row: line 2"):
            table = read_table(file)
        assert [list(row) for row in table.values(["id", "text", "mood"])] == rows
        assert table.places[0] == f"line {len(lines) - 1}"


NO_DATA = {
    "book.xlsx:new": "book.xlsx has no sheet 'new'; its sheets are 'Sheet', 'Data, 2024', 'old'.",
    "hub:set:test": "hub:set:test cannot be loaded (Unknown split",
    "hub:images": "cannot be loaded (images has images or sounds alone: 'image'; name other data)",
    "hub:a:b:c:d": "is not of the form hub:NAME, hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT",
    "nobook.xlsx:new": "there is no file nobook.xlsx.",
}


@pytest.mark.parametrize("name", NO_DATA)
def test_a_name_without_data_is_refused(name: str) -> None:
    with pytest.raises(AttendropError, match=re.escape(NO_DATA[name])):
        read_table(name)


def test_numbers_of_classes_in_data_sets_are_names() -> None:
    assert read_table("hub:set:train").values(["label", "all"]) == [("late", ["late", "broken"]), ("broken", [None])]


def test_a_label_map_names_each_position_once() -> None:
    for text in ("position,meaning\n1,a\n2,b\n", "position,meaning\n0,a\n1,a\n"):
        Path("names.csv").write_text(text)
        with pytest.raises(AttendropError, match="has to name each position once, from 0 to 1"):
            read_label_map("names.csv")


def test_sheets_of_one_book_are_other_data() -> None:
    """A study that compared two sheets would have taken the runs of one for those of the other."""
    one, other = "book.xlsx:Data, 2024", "book.xlsx:old"
    assert files_of(one) == files_of(other) == (Path("book.xlsx"),)
    assert by_content({"train_file": one}) != by_content({"train_file": other})
    assert located({"train_file": one})["train_file"] == f"{os.path.abspath('book.xlsx')}:Data, 2024"
    assert read_table(other).column("label") == ["lost", "broken"]


def test_objects_are_columns_of_their_entries() -> None:
    rows = [{"a": {"b": {"c": 1}, "d": [{"e": 2}]}}, {"a": None}, {"a": {}, "x": 1}, {"x": {"y": 2}}]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read_table("a.jsonl")
    assert (table.own_columns, table.columns) == (["a", "x"], ["a.b.c", "a.d", "a", "x", "x.y"])
    assert table.column("a.b.c") == [1, None, None, None] and table.column("a.d")[0] == [{"e": 2}]
    assert table.column("x.y") == [None, None, None, 2] and table.column("x") == [None, None, 1, {"y": 2}]
    many = {"text": "a", "counts": {f"w{n}": n for n in range(101)}}
    Path("b.jsonl").write_text(json.dumps(many))
    assert next(read_chunks("b.jsonl", 9)).columns == ["text", "counts"]
