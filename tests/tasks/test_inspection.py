"""What inspection finds in files and labels, beside `tests/cli/test_inspect.py`; label maps; refusals; class names."""

import json
import warnings
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Captured

from attendrop import cli
from attendrop.cli.inspect import announce_files
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.studies.study import read_study
from attendrop.tasks.class_names import MOST_ROWS_PER_CLASS, in_words, telling_names, why_no_rows
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.inspection import check_files, inspect_files, label_variants, read_label_map, tells_label
from attendrop.tasks.table import BadRows, joined_labels
from attendrop.tasks.types.classification import MultiLabel

GIVEN: dict[str, Any] = {"text_columns": ["text"], "label_column": "label"}
TAGGED: dict[str, Any] = {"text_columns": ["tokens"], "label_column": "tags"}


def test_rows_of_evaluation_that_are_in_training_are_counted_once_each(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text("text,label\nthe first text,yes\nthe second text,no\n")
    dev.write_text("text,label\nThe  first text,yes\nthe first text,no\nanother text,no\n")
    assert inspect_files(train, dev).doubts()["in_both"].startswith("2 of 3 rows of ")


def test_labels_and_doubts_are_as_a_run_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,label\na,1\nb,1.0\n,1\n,2.0\nc,2\nC ,2\n")
    found = inspect_files(file)
    assert found.labels == {"1": 3, "2": 3} and set(found.doubts()) == {"without_text", "duplicates"}
    assert found.doubts()["duplicates"].startswith("1 row ")
    file.write_text("question,a,b,c,label\nwho is it,x,y,z,A\nwhat is it,x,y,,B\n")  # choices may be fewer
    found = inspect_files(file, text_columns=["question", "a", "b", "c"], label_column="label", label_type="choice")
    assert "without_text" not in found.doubts()


def test_one_number_is_doubtful_and_refused_by_a_run(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,score\na cat sees a dog,0.5\nthe bird sees it,0.5\n")
    assert "All rows have the same label, '0.5'." in inspect_files(file).doubts()["one_label"]
    with pytest.raises(AttendropError, match=r"has only one number, '0.5'"):
        check_files(str(file), None)
    file.write_text("text,score\na cat sees a dog,0.5\nthe bird sees it,.50\n")
    with pytest.raises(AttendropError, match=r"has only one number, '0.5'"):
        load_files(train_file=file, text_columns=["text"], label_column="score")


def test_texts_that_are_none_are_doubtful(tmp_path: Path) -> None:
    texts = ["a cat sees", {"en": "a dog"}, 12.5, float("nan"), float("nan"), None]
    lines = [json.dumps({"text": text, "label": "xy"[n % 2]}) for n, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = inspect_files(tmp_path / "a.jsonl", text_columns=["text"])
    assert found.doubts() == {"without_text": "5 rows without a text."}


def test_texts_without_spaces_are_texts_and_no_ids(tmp_path: Path) -> None:
    texts, file = ("我想取消昨天的订单第{}号", "ดูยอดเงินในบัญชีของฉัน{}"), tmp_path / "a.csv"
    rows = [f"{row},{texts[row % 2].format(row)},{('国际新闻', '体育')[row % 2]}" for row in range(12)]
    file.write_text("\n".join(["number,message,kind", *rows]), encoding="utf-8")
    found = inspect_files(file)
    assert (found.text_columns, found.label_column) == (("message",), "kind")
    assert [column.role for column in found.columns] == ["id", "text", "label"] and 4 <= found.columns[1].words <= 8


@pytest.mark.parametrize(
    ("counts", "groups"),
    [
        ({"Refund": 9, "re-fund": 3, "refund\u200b": 1, "billing": 5}, [["Refund", "re-fund", "refund\u200b"]]),
        ({"hotel": 30, "motel": 28, "C": 9, "C++": 8, "A+": 5, "A": 4, "-1": 9, "1": 8, "1.1": 3, "11": 2}, []),
        ({"<=50K": 9, ">50K": 3, "a.k.a.": 4, "aka": 2}, [["a.k.a.", "aka"]]),
        ({"caf\u00e9": 9, "cafe\u0301": 3, "bar": 2}, [["caf\u00e9", "cafe\u0301"]]),
        ({"\u2764": 9, "\u2764\ufe0f": 3, "\u2639": 2}, [["\u2764", "\u2764\ufe0f"]]),
    ],
)
def test_variants_of_labels_are_found(counts: dict[str, int], groups: list[list[str]]) -> None:
    assert label_variants(counts) == groups


@pytest.mark.parametrize(
    ("labels", "joined"),
    [
        (["price", "speed", "price;speed"], True),
        (["price;speed", "speed; support", "support ;price"], True),  # none is alone
        (["price;", "speed;", "price;speed;"], True),  # as forms of Microsoft end
        (["Lyon, France", "Paris, France", "New York, NY"], False),
    ],
)
def test_labels_that_join_others_are_told(labels: list[str], joined: bool) -> None:
    found = joined_labels(labels)
    assert bool(found) is joined and (not found or found.startswith("'price;speed"))
    if joined:
        assert {*chain(*map(MultiLabel.read_names, labels))} <= {"price", "speed", "support"}


def test_a_map_that_says_no_one_thing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text("label,meaning\na,b\nc,b\na,c\n")
    with pytest.raises(AttendropError, match=r"map\.csv, line 4: 'a' means 'b' and 'c'"):
        read_label_map(tmp_path / "map.csv")


def test_a_map_that_matches_no_label_is_refused(tmp_path: Path) -> None:
    """A map of other data, or of labels spelt otherwise, changed nothing, without a word."""
    file, path = tmp_path / "a.csv", tmp_path / "map.csv"
    file.write_text('text,label\nthe cat sees,Refund|Billing\nit,"[""Billing""]"\n' * 2)
    given = GIVEN | {"label_type": "labels", "label_map": path}
    path.write_text("label,meaning\nrefund,money\nother,rest\n")
    message = r"map\.csv has none of the labels of .*a\.csv, column 'label', such as .*; correct its column 'label'"
    for read in (inspect_files, lambda file, **options: load_files(train_file=file, **options)):
        with pytest.raises(AttendropError, match=message):
            read(file, **given)
    path.write_text("label,meaning\nBilling,money\n2,3\n")
    load_files(train_file=file, **given)


def test_a_map_without_a_header_is_refused(tmp_path: Path) -> None:
    """Its first row was read as names of columns, and its label stayed."""
    file, path = tmp_path / "a.csv", tmp_path / "map.csv"
    file.write_text("text,label\nthe cat,refnud\nit,Refund\na dog,acount\n")
    for header in ("label,meaning\n", "from,to\n", ""):
        path.write_text(f"{header}refnud,Refund\nacount,Account\n")
        message = r"map\.csv begins with 'refnud', a label of .*a\.csv, .*; write label,meaning in a line before it"
        with nullcontext() if header else pytest.raises(AttendropError, match=message):
            assert inspect_files(file, **GIVEN, label_map=path).labels == {"Refund": 2, "Account": 1}


def load(folder: Path, labels: list[str], **options: Any) -> Any:
    (folder / "map.csv").write_text("from;to\nrefnd;refund\nBilling;billing\n?;\n")
    (folder / "a.csv").write_text("text,label\n" + "".join(f"text,{label}\n" for label in labels))
    return load_files(train_file=folder / "a.csv", **GIVEN, label_map=folder / "map.csv", **options)


def test_labels_are_merged_at_reading(tmp_path: Path) -> None:
    data = load(tmp_path, ["refund", " refnd", "billing", "Billing"])
    assert data.task.label_names == ("billing", "refund") and data.splits["train"]["label"] == [1, 1, 0, 0]
    options = GIVEN | {"label_map": tmp_path / "map.csv"}
    (chunk,) = stream_file(tmp_path / "a.csv", **options, task_type=data.task.type, size=9, bad=BadRows())
    assert chunk.columns["label"] == [1, 1, 0, 0]
    several = load(tmp_path, ["refnd|Billing", "billing", '"[""refnd""]"'], label_type="labels")
    assert several.splits["train"]["label"] == [[1, 1], [1, 0], [0, 1]]


def test_tags_are_mapped_in_texts_as_in_lists(tmp_path: Path) -> None:
    """Only rows of a single word were; without any, the map was refused."""
    (tmp_path / "map.csv").write_text("label,meaning\nPER,PERSON\nLOC,PLACE\n")
    (tmp_path / "a.csv").write_text("tokens,tags\na b,PER O\nc d,O LOC\n")
    options = {"text_columns": ["tokens"], "label_column": "tags", "label_map": tmp_path / "map.csv"}
    data = load_files(train_file=tmp_path / "a.csv", label_type="tags", **options)
    assert data.task.label_names == ("O", "PERSON", "PLACE") and data.splits["train"]["label"][:] == [[1, 0], [0, 2]]
    (chunk,) = stream_file(tmp_path / "a.csv", **options, task_type=data.task.type, size=9, bad=BadRows())
    assert chunk.columns["label"] == [[1, 0], [0, 2]]


def test_a_label_without_a_meaning_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match="line 4, column 'label': the label is empty"):
        load(tmp_path, ["refund", "billing", "?"])
    data = load(tmp_path, ["refund", "billing", "?"], skip_bad_rows=True)
    assert len(data.splits["train"]) == 2 and [row.place for row in data.skipped] == ["line 4"]
    with pytest.raises(AttendropError, match=r"line 2, column 'label': label 2 of .* is empty"):
        load(tmp_path, ["refund|?", "billing", '"[""refund"", ""?""]"'], label_type="labels")
    found = inspect_files(tmp_path / "a.csv", label_type="labels", label_map=tmp_path / "map.csv")
    assert found.doubts()["empty_label"] == "2 rows with an empty label among others."


@pytest.mark.parametrize(
    ("labels", "names", "counts"),
    [
        (["1,000", "2,000"], ("1", "2"), {"1": 2, "2": 2}),
        (["0,5", "1,0"], (), {}),
        (["0,5", "1,5"], ("high", "low"), {"low": 2, "high": 2}),  # with a map
    ],
)
def test_decimal_commas_are_read_alike_by_inspection_a_run_and_its_evaluation(
    tmp_path: Path, labels: list[str], names: tuple[str, ...], counts: dict[str, int]
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text;label\n" + "".join(f"the cat sees;{label}\n" for label in labels * 2))
    (tmp_path / "map.csv").write_text('label,meaning\n"0,5",low\n"1,5",high\n')
    options = GIVEN | ({"label_map": tmp_path / "map.csv"} if "low" in counts else {})
    with pytest.warns(UserWarning, match="with a decimal comma") if "low" not in counts else nullcontext():
        data = load_files(train_file=file, **options)
    found = check_files(str(file), None, **options)
    assert found is not None and (found.labels, found.label_type) == (counts, "class" if names else "number")
    assert data.task.label_names == names
    with warnings.catch_warnings():  # told once, and not for each part of a file
        warnings.filterwarnings("error", ".*decimal comma")
        (chunk,) = stream_file(file, **options, task_type=data.task.type, size=9, bad=BadRows())
    assert chunk.columns["label"] == data.splits["train"]["label"][:]


@pytest.mark.parametrize("label_type", ["auto", "number"])
def test_decimal_commas_beside_points_are_refused(label_type: str, tmp_path: Path) -> None:
    """1.250 was read as 1.25, beside 999,50 as 999.50."""
    (tmp_path / "a.csv").write_text("text;label\nthe cat;999,50\na dog;1.250\nit;12\n")
    with pytest.raises(AttendropError, match=r"'999,50' .*write numbers with a decimal point"):
        load_files(train_file=tmp_path / "a.csv", **GIVEN, label_type=label_type)


def test_a_repeated_header_is_told_and_rows_that_are_all_skipped_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx one,pos\ny two,neg\ntext,label\nz three,pos\n")
    for label_type in ("auto", "class", "labels"):
        with pytest.warns(UserWarning, match="the label 'label' .*line 4.* is also the name of the column"):
            load_files(train_file=tmp_path / "a.csv", **GIVEN, label_type=label_type)
    (tmp_path / "b.csv").write_text("text,late,broken\nx one,x,\ny two,,x\n")
    with pytest.raises(AttendropError, match=r"has no valid row: all were skipped, the first .*'x' does not say"):
        load_files(train_file=tmp_path / "b.csv", **(GIVEN | {"label_column": "late,broken"}), skip_bad_rows=True)
    with pytest.raises(AttendropError, match="has no valid row"):
        inspect_files(tmp_path / "b.csv", label_column="late,broken")


TEXTS = ["Anna moved to Porto in May.", "Bob stayed in Lyon today.", "nobody came to Graz then."]


def write(folder: Path, labels: list[Any], name: str = "label", **more: Any) -> str:
    """Rows of texts and labels, in CSV if the labels are texts, otherwise in JSON lines."""
    rows = [{"text": f"{TEXTS[n % 3]} {n}"} | more | {name: labels[n % len(labels)]} for n in range(12)]
    if all(isinstance(label, str) for label in labels):
        cells = [[str(value).replace('"', '""') for value in row.values()] for row in rows]
        lines = [",".join(rows[0]), *(",".join(f'"{cell}"' for cell in row) for row in cells)]
    else:
        lines = [json.dumps(row) for row in rows]
    file = folder / ("a.csv" if lines[0].startswith("text") else "a.jsonl")
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def refusals(file: str, message: str, **options: Any) -> None:
    """Check that inspection, and a run before or while it reads its rows, refuse a file with this message."""
    run = {"model": "m", "output_dir": "r", "method": "finetune"}
    checks = [lambda: inspect_files(file, **options), lambda: check_files(file, None, **options)]
    if "text_columns" in options:
        checks.append(lambda: load_files(train_file=file, **options))
    else:
        checks.append(lambda: RunConfig(train_file=file, **run, **options))
    for check in checks:
        with pytest.raises(AttendropError, match=message) as caught:
            check()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 700 + len(file)


VECTORS, OBJECTS, TAGS = "vectors of numbers", "objects, spans of characters or answers in texts", "tags of words"
# Each was a label with a name such as "[0, 4, 'PER']", or two labels, "0" and "1".
FORMS: dict[str, tuple[str, list[Any]]] = {
    "numpy floats": (VECTORS, ["[0. 1. 0.]", "[1. 1. 0.]"]),
    "array": (VECTORS, ["array([0, 1, 0], dtype=int32)", "array([1, 1, 0])"]),
    "with gaps": (VECTORS, [[0, 1, 0], [1, 1, 0], None, [0, 0, 0], [0, 0, 1], [1, 0, 0]]),
    "answers": (OBJECTS, [[{"text": "Anna", "answer_start": 0}], [{"text": "Bob", "answer_start": 0}]]),
    "counts": (OBJECTS, [{f"word{n}": 1 for n in range(101)}, {"word1": 2}]),
    "tags": (TAGS, ["O B-PER", "B-PER I-PER O"]),
    "lists of tags": (TAGS, [["O", "B-PER"], ["O", "O"]]),
}


@pytest.mark.parametrize(("form", "labels"), FORMS.values(), ids=FORMS)
def test_labels_that_are_no_names(form: str, labels: list[Any], tmp_path: Path) -> None:
    message = f"column 'label': the labels are {form}, such as .*; write"
    refusals(write(tmp_path, labels), message, **GIVEN)
    if form != TAGS:
        refusals(write(tmp_path, labels), message, **GIVEN, label_type="labels")
        guessed = f"column 'entities': the labels are {form}, .* name it with --label-column[.]$"
        refusals(write(tmp_path, labels, "entities"), guessed)


@pytest.mark.parametrize("columns", ["subject,body,product", "body,tags"])
def test_a_multiple_choice_is_never_guessed(columns: str, tmp_path: Path) -> None:
    texts = {"subject": "a b", "body": "it crashes again", "product": "c d", "tags": ["new", "urgent"]}
    rows = [{name: texts[name] for name in columns.split(",")} | {"label": "01"[n % 2]} for n in range(9)]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    message = "may be a question with its choices, or parts of a text to classify"
    refusals(str(file), message, text_columns=columns.split(","), label_column="label")


@pytest.mark.parametrize("label_type", ["auto", "tags"])
def test_a_word_in_each_row(label_type: str, tmp_path: Path) -> None:
    """Each word was a sentence, of which tags that go on with an entity began one."""
    words = [("Anna", "B-PER"), ("lives", "O"), ("here", "O"), (".", "O")]
    lines = [f"{n // 4},{','.join(words[n % 4])}" for n in range(24)]
    (tmp_path / "a.csv").write_text("\n".join(["line,word,tag", *lines]))
    message = "has a word in each row, and its tag in 'tag'; write a sentence in each row"
    refusals(str(tmp_path / "a.csv"), message, text_columns=["word"], label_column="tag", label_type=label_type)


def test_numbers_of_words_are_no_words(tmp_path: Path) -> None:
    """The texts were "1 2 3" and "1 2", in silence."""
    file = tmp_path / "a.conll"
    file.write_text("1\tAnna\tB-PER\n2\tlives\tO\n3\there\tO\n\n1\tHe\tO\n2\tsang\tO\n")
    refusals(str(file), "'tokens' has numbers of words, and no words; .*'column_2'.* by --text-columns", **TAGGED)
    data = load_files(train_file=file, **(TAGGED | {"text_columns": ["column_2"]}))
    assert data.splits["train"]["tokens"][:] == [["Anna", "lives", "here"], ["He", "sang"]]


def test_rows_that_an_annotator_rejected(tmp_path: Path) -> None:
    """The decision was the label, and so was what had been rejected."""
    file, bug = tmp_path / "a.jsonl", {"accept": ["bug"], "options": [{"id": "bug", "text": "bug"}]}
    rows = [
        bug | {"text": f"{TEXTS[n % 3]} {n}", "answer": ("accept", "reject", "ignore", "accept")[n % 4]}
        for n in range(12)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    message = "is an export of annotations: 'answer' says which rows an annotator accepted"
    refusals(str(file), message)
    refusals(str(file), message, text_columns=["text"], label_column="accept")
    assert inspect_files(file, label_column="answer").labels == {"accept": 6, "reject": 3, "ignore": 3}
    file.write_text("".join(json.dumps(row | {"answer": "accept"}) + "\n" for row in rows))
    assert inspect_files(file, label_column="accept").labels == {"bug": 12}
    file.write_text("".join(json.dumps({"text": TEXTS[0], "meta": {"score": n / 9}} | bug) + "\n" for n in range(9)))
    assert inspect_files(file).label_candidates == ["meta.score", "accept"]  # the score was the label


def test_numbers_to_predict_and_many_classes_are_candidates_beside_few_values(tmp_path: Path) -> None:
    """The column with few values was the label, without a word; numbers that all differ were ids."""
    file, texts = tmp_path / "a.csv", [f"{TEXTS[n % 3]} {n}" for n in range(60)]
    for others, found in {
        "place,likeness": ["likeness", "place"],
        "likeness,place": ["place", "likeness"],
        "product,place": ["place", "product"],
        "serial,place": ["place"],
        "channel,likeness": ["likeness"],
        "place,customer_id": ["place"],
    }.items():
        columns = {"place": "abc", "channel": "xy", "likeness": [n / 8 for n in range(60)]}
        columns |= {"serial": [f"s{n}" for n in range(60)], "product": [f"p{n // 2}" for n in range(60)]}
        columns["customer_id"] = [f"c{n % 25}" for n in range(60)]
        values = [columns[name] for name in others.split(",")]
        lines = [",".join([text, *(str(each[n % len(each)]) for each in values)]) for n, text in enumerate(texts)]
        file.write_text("\n".join([f"text,{others}", *lines]))
        assert inspect_files(file).label_candidates == found
    lines = [f"site{n}.org,{n / 8},{'xy'[n % 2]}" for n in range(60)]
    file.write_text("\n".join(["url,entropy,label", *lines]))
    assert inspect_files(file).text_candidates == [("url",)]  # numbers are no texts


def test_other_texts_and_choices_are_told(tmp_path: Path) -> None:
    """A run refuses to choose between texts, which the proposed command did."""
    file = tmp_path / "a.csv"
    rows = [f"{TEXTS[n % 3]} {n},{TEXTS[(n + 1) % 3]} {n} {n},{'xy'[n % 2]}" for n in range(12)]
    file.write_text("\n".join(["subject line,body,team", *rows]))
    told = inspect_files(file).doubts()
    assert told["text_columns"].startswith("The texts may also be in 'subject line': name") and "choices" not in told
    rows = [f"{TEXTS[n % 3]} {n},a {n},b {n},c {n},{'ABC'[n % 3]},{n % 2}" for n in range(12)]
    file.write_text("\n".join(["question,one,two,three,answer,place", *rows]))
    told = inspect_files(file, label_column="answer").doubts()
    assert "--text-columns 'question,one,two,three' --label-type choice" in told["choices"]


def test_whether_lists_of_one_name_each_are_classes_is_asked_for(tmp_path: Path) -> None:
    """Of several labels, each predicted independently, most rows would have none."""
    file, dev = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    rows = [{"text": f"{TEXTS[n % 3]} {n}", "label": ["late" if n % 2 else "broken"]} for n in range(12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(AttendropError, match="column 'label': each row has one label, in a list; set --label-type"):
        load_files(train_file=str(file), **GIVEN)
    assert inspect_files(file, label_type="class").labels == {"broken": 6, "late": 6}
    assert load_files(train_file=str(file), **GIVEN, label_type="class").splits["train"]["label"][:] == [0, 1] * 6
    for other in (["late", "broken"], []):
        dev.write_text(json.dumps({"text": "it came", "label": other}))
        found = inspect_files(file, dev)
        assert (found.label_type, found.unclear) == ("labels", "")
    file = tmp_path / "a.csv"
    file.write_text('text,label\n"it came","[""late""]"\n"it broke","[""broken""]"\n')  # names, if that is asked for
    assert set(inspect_files(file, label_type="class").labels) == {'["late"]', '["broken"]'}


def test_values_that_tell_the_label_by_chance_are_not_warned_of() -> None:
    codes, labels = [0, 1, 2] * 4, ["a", "b", "c"] * 4
    assert tells_label(codes, labels) and tells_label([*codes, 1, "nan", ""], [*labels, "", "a", "b"])
    assert not tells_label(codes[:9], labels[:9])
    assert not tells_label(codes, [*labels[:-1], "a"]) and not tells_label(codes, ["a"] * 12)
    authors = [n // 3 for n in range(60)]
    assert not tells_label(authors, [n % 2 for n in authors])
    assert tells_label([n // 6 for n in range(60)], [n // 6 % 2 for n in range(60)])


def test_a_column_that_is_the_label_in_other_words_is_not_proposed(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "a.csv"
    lines = [f"{TEXTS[n % 3]} {n},{'abc'[n % 3]},{n % 3},{'xy'[n // 3 % 2]}" for n in range(24)]
    file.write_text("\n".join(["text,label,code,place", *lines, "one more,,2,x", "and one,a,NaN,x"]))
    assert cli.main(["inspect", str(file)]) == 0
    told = capsys.readouterr().out
    assert "With --with-columns place," in told
    assert "Each value of 'code' is of one label: it may be the label in other words." in told
    assert [(each.name, each.missing) for each in inspect_files(file).columns if each.missing] == [
        ("label", 1),
        ("code", 1),
    ]
    with pytest.warns(UserWarning, match="each value of 'code' in .*a.csv is of one label"):
        load_files(train_file=str(file), **GIVEN, with_columns=["code", "place"], skip_bad_rows=True)


def test_what_are_no_numbers_yet_is_not_proposed_as_classes(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,score\n" + "".join(f'{TEXTS[n % 3]} {n},"{n},5"\n' for n in range(12)))
    assert cli.main(["inspect", str(file)]) == 0
    told = capsys.readouterr().out
    assert "Write the labels as numbers first." in told and "--label-type class\n" not in told
    file.write_text("text,score\n" + "".join(f"{TEXTS[n % 3]} {n},{'inf' if n == 3 else n / 8}\n" for n in range(12)))
    assert cli.main(["inspect", str(file)]) == 0
    assert "--label-type number --skip-bad-rows" in capsys.readouterr().out


ORDINARY: dict[str, list[Any]] = {
    "codes": ["0101", "1100"],
    "several of 0 and 1": [[0], [1], [0, 1], []],
    "joined names": ["art;sport", "art", "sport"],
    "blood groups": ["O", "A", "B", "AB"],
    "deep": ["[" * 700 + "]" * 700 + "a", "b"],
}


@pytest.mark.parametrize("labels", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_labels_are_read(labels: list[Any], tmp_path: Path) -> None:
    file = write(tmp_path, labels)
    assert check_files(file, None) is not None
    assert len(load_files(train_file=file, **GIVEN).splits["train"]) == 12


def test_other_columns_and_classes_that_are_asked_for_are_left_alone(tmp_path: Path) -> None:
    """A column of labels by its name, or by the user, is no guess."""
    for name, options in (("label", {}), ("team", {"label_column": "team"})):
        file = write(tmp_path, ["x", "y"], name, entities=[[0, 4, "PER"]], embedding=[0.5, 0.25], onehot=[0, 1])
        found = check_files(file, None, text_columns=["text"], **options)
        assert found is not None and found.labels == {"x": 6, "y": 6}
    for labels in (["0;1;0", "1;1;0"], ["B-PER", "O"]):
        file = write(tmp_path, labels)
        assert inspect_files(file, label_type="class").labels == {label: 6 for label in labels}


@pytest.mark.parametrize("several", ['["bug", "idea"]', '{"choices": ["bug", "idea"]}', ["bug", "idea"], {"a": "bug"}])
def test_lists_and_objects_among_names_are_no_names(several: Any, tmp_path: Path) -> None:
    """Exports that write one choice as its name had classes such as '{"choices": ["bug", "idea"]}'."""
    for labels in (["bug", "idea", several], [several, "bug", "idea"]):
        file = write(tmp_path, labels)
        message = r"the labels mix lists or objects, such as .*, with names, such as 'bug' \(.*, (line|row) "
        assert inspect_files(file, **GIVEN).unclear
        for read in (partial(check_files, eval_file=None), load_files):
            with pytest.raises(AttendropError, match=message):
                read(train_file=file, **GIVEN)
        of_names = not isinstance(several, dict)
        with nullcontext() if of_names else pytest.raises(AttendropError, match="is not a list of labels"):
            assert load_files(train_file=file, **GIVEN, label_type="labels").task.label_names == ("bug", "idea")


def test_a_study_refuses_them_before_its_first_run(tmp_path: Path) -> None:
    file = write(tmp_path, [[0, 1], [1, 1]])
    (tmp_path / "study.yaml").write_text(f"data: [{{train_file: {file}}}]\nmethods: [finetune]\nseeds: 1\n")
    with pytest.raises(AttendropError, match="the labels are vectors of numbers"):
        read_study(str(tmp_path / "study.yaml"), on_data=partial(announce_files, quiet=True))


def test_names_that_are_words_are_rows_where_rows_are_few() -> None:
    names = ["card_arrival", "lost-or/stolen:card", "GetHTTPStatus", "eBay", "возвратДенег", "कार्ड_खोया"]
    words = ["card arrival", "lost or stolen card", "Get HTTP status", "eBay", "возврат денег", "कार्ड खोया"]
    assert [in_words(name) for name in names] == words
    for names in (["card_arrival", "lost_card"], ["कार्ड", "धन"], ["退款", "好"]):
        assert why_no_rows(names, MOST_ROWS_PER_CLASS * 2) == ""
        assert "there are more than" in why_no_rows(names, MOST_ROWS_PER_CLASS * 2 + 1)
    names = [f"{word} card" for word in ("lost", "stolen", "new", "old", "blue", "broken", "lent", "late", "red")]
    assert why_no_rows([*names, "w2"]) == "" and telling_names([*names, "w2"]) == names  # a code among many words
    more = ["a name of more words than ten is rather a text", "another text that is as long as this one is here"]
    for names in (["0", "1"], ["a", "b"], ["C17", "C18"], ["label_3", "label_4"], ["class A", "class B"], more):
        reason = f"{names[0]!r} does not tell its class from the others in words"
        assert telling_names(names) == [] and why_no_rows(names) == reason


def test_labels_of_one_row_each_are_classes_if_they_are_words(tmp_path: Path) -> None:
    words, file = ("red", "blue", "near", "far", "cold", "warm", "high"), tmp_path / "rows.csv"
    for labels in ([f"{first}_{second}" for first in words for second in words], [f"C{n}" for n in range(49)]):
        file.write_text("text,label\n" + "".join(f"some text {n},{name}\n" for n, name in enumerate(labels)))
        codes = labels[0] == "C0"
        with pytest.raises(AttendropError, match="ids") if codes else nullcontext():
            assert load_files(train_file=file, **GIVEN).task.label_names == tuple(sorted(labels))
        assert bool(inspect_files(file).unclear) is codes


@pytest.mark.parametrize(
    ("header", "row", "labels", "texts"),
    [
        ("ID,Target,Tweet,Stance", "{n},{abc},{text},{xy}", ["Target", "Stance"], ["Tweet"]),
        ("body,score,is_toxic", "{text},{n5},{n2}", ["score", "is_toxic"], ["body"]),
        ("message,category,hours", "{text},{abc},{n5}", ["category"], ["message"]),
        ("utterance,subintent,split", "{text},s{n2},{abc}", ["subintent"], ["utterance"]),
        ("word,frequency,label", "w{n},{n5},{xy}", ["label"], ["word"]),
        ("score,If yes,If no", "{n5},{half},{other}", ["score"], ["If yes", "If no"]),
        ("text,label,keywords", '{text},{xy},"[""a"", ""b and c and d and e""]"', ["label"], ["text"]),
    ],
)
def test_names_of_columns_decide_alone_only_where_they_are_sure(
    header: str, row: str, labels: list[str], texts: list[str], tmp_path: Path
) -> None:
    values = [
        {"n": n, "n2": n % 2, "n5": n % 5, "abc": "abc"[n % 3], "xy": "xy"[n % 2], "text": f"{TEXTS[n % 3]} {n}"}
        | {"half": f"{TEXTS[n % 3]} {n}" if n % 2 else "", "other": "" if n % 2 else f"{TEXTS[n % 3]} {n}"}
        for n in range(40)
    ]
    (tmp_path / "a.csv").write_text("\n".join([header, *(row.format(**each) for each in values)]))
    found = inspect_files(tmp_path / "a.csv")
    assert found.label_candidates == labels and sorted(found.text_candidates) == sorted((each,) for each in texts)
    assert any("'split' seems to name the parts of the data" in note for note in found.notes) == ("split" in header)


def test_points_between_thousands_are_told(tmp_path: Path) -> None:
    """1.250 was read as 1.25, below 950."""
    prices = ["950", "1.250", "2.500", "780"]
    (tmp_path / "a.csv").write_text(
        "text,price\n" + "".join(f"{TEXTS[n % 3]} {n},{prices[n % 4]}\n" for n in range(40))
    )
    assert "may have points between thousands" in inspect_files(tmp_path / "a.csv", label_column="price").unclear
    (tmp_path / "a.csv").write_text("text,price\n" + "".join(f"{TEXTS[n % 3]} {n},{n / 8}\n" for n in range(40)))
    assert not inspect_files(tmp_path / "a.csv", label_column="price").unclear


def test_one_text_in_brackets_makes_no_tags(tmp_path: Path) -> None:
    texts = ["[1]", *(f"{TEXTS[n % 3]} {n}" for n in range(39))]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{text},{'xy'[n % 2]}\n" for n, text in enumerate(texts)))
    assert inspect_files(tmp_path / "a.csv").label_type == "class"


# Readings that looked right ------------------------------------------------------------------------------------------


def csv(folder: Path, header: str, rows: list[str]) -> Path:
    (folder / "a.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "a.csv"


def test_dates_in_words_are_no_texts_and_longer_texts_that_repeat_are_candidates(tmp_path: Path) -> None:
    said = ["play some jazz music", "stop the music", "what is the weather like", "will it rain in Rome"]
    kinds = ["music", "music", "weather", "weather"]
    for date in ("Mon Apr {:02} 22:00:{:02} UTC 2026", "{} April 2026 10:{:02}", "Tue {:02} Sep 2026 {:02}:12:44 GMT"):
        rows = [f"{date.format(n % 28 + 1, n)},{said[n % 4]},{kinds[n % 4]}" for n in range(56)]
        found = inspect_files(csv(tmp_path, "created,utterance,intent", rows))
        assert found.text_columns == ("utterance",) and len(found.text_candidates) == 1
    says = [f"please help me with matter {letter} of my order" for letter in "abcdefghijkl"]
    rows = [f"{n} Long Road,{says[n % 12]},{kinds[n // 12 % 3]}" for n in range(60)]
    found = inspect_files(csv(tmp_path, "address,message,intent", rows))
    assert {each[0] for each in found.text_candidates} == {"address", "message"}


def test_answers_of_annotators_are_no_labels_of_one_row(tmp_path: Path) -> None:
    rows = [{"text": f"text {n} here", "labels": [["good", "good", "bad"], ["bad", "good"]][n % 2]} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = inspect_files(tmp_path / "a.jsonl")
    assert "rows name a label twice, such as ['good', 'good', 'bad']; if these are answers of" in found.unclear
    assert inspect_files(tmp_path / "a.jsonl", label_type="labels").labels == {"good": 20, "bad": 20}


def test_labels_that_are_joined_by_other_signs_are_told(tmp_path: Path) -> None:
    for sign in ("#", " / ", "、", "&"):
        labels = ["billing", "speed", f"billing{sign}speed", "C++"]
        rows = [f"the text of number {n},{labels[n % 4]}" for n in range(40)]
        found = inspect_files(csv(tmp_path, "text,label", rows))
        assert f"'billing{sign}speed' joins other labels" in found.doubts()["joined"]
        assert ("write ';' between them" in found.doubts()["joined"]) == (sign != "、")
    rows = [f'the text of number {n},"{["26,2", "2", "26"][n % 3]}"' for n in range(30)]
    found = inspect_files(csv(tmp_path, "text,label", rows))
    assert "if they are classes, or --label-type labels if a row may have several." in found.unclear
    assert joined_labels(["food:price", "food:taste", "staff:price", "staff:taste"]) is None


def test_cells_that_say_that_no_label_applies_are_counted(tmp_path: Path) -> None:
    rows = [f"the text of number {n},{'' if n % 2 else 'late;lost'}" for n in range(20)]
    found = inspect_files(csv(tmp_path, "text,label", rows), label_type="labels")
    assert found.doubts()["no_label"] == "10 rows with an empty cell, which says that no label applies."


def test_a_form_is_no_sentence(tmp_path: Path) -> None:
    rows = [f"2024-05-{n % 28 + 1:02},contact,the text of number {n},{['a', 'b'][n % 2]}" for n in range(40)]
    found = inspect_files(csv(tmp_path, "sent,form,message,topic", rows))
    assert (found.text_columns, found.label_column, len(found.table)) == (("message",), "topic", 40)


def test_choices_of_label_studio_are_lists(tmp_path: Path) -> None:
    rows = [{"text": f"text {n} here", "label": [{"choices": ["late", "lost"]}, "late"][n % 2]} for n in range(20)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    found = inspect_files(tmp_path / "a.json")
    assert found.label_type == "labels" and "set --label-type labels, which reads both" in found.unclear
    read = load_files(train_file=tmp_path / "a.json", label_type="labels", text_columns=["text"], label_column="label")
    assert read.splits["train"]["label"][:2] == [[1, 1], [1, 0]]


def test_texts_that_begin_with_a_date_are_texts(tmp_path: Path) -> None:
    cities = ["Bad Homburg Mitte", "Frankfurt am Main", "Ulm Sued Ost"]
    rows = [f"2024-05-{n % 28 + 1:02} 10:00 the parcel of customer {n} came late again,{cities[n % 3]} {n},{n % 2}"
            for n in range(40)]  # fmt: skip
    assert inspect_files(csv(tmp_path, "note,city,label", rows)).text_candidates == [("note",), ("city",)]


def test_repeated_texts_beside_comments_and_prompts_beside_answers_are_candidates(tmp_path: Path) -> None:
    rows = [
        f"the parcel {n // 3} came late,since the words of annotator {n} say so quite clearly,{n % 2}"
        for n in range(60)
    ]
    found = inspect_files(csv(tmp_path, "text,explanation,label", rows))
    assert found.text_candidates == [("explanation",), ("text",)]
    rows = [f"what is the number {n},it is the {n} here,no it is the {n},{'ab'[n % 2]}" for n in range(20)]
    found = inspect_files(csv(tmp_path, "prompt,response_a,response_b,winner", rows))
    assert found.text_candidates == [("response_a", "response_b"), ("prompt",)]


def test_a_row_that_a_stray_quote_took_is_told_where_the_label_is_in_the_middle(tmp_path: Path) -> None:
    rows = [f"{n},{'ab'[n % 2]},{chr(34) * (n == 8)}the text of {n} here{chr(34) * (n == 9)}" for n in range(30)]
    assert "(lines 10-11)" in inspect_files(csv(tmp_path, "id,label,text", rows)).notes[0]


def test_names_of_labels_may_have_a_comma_where_other_rows_have_semicolons(tmp_path: Path) -> None:
    labels = ["Food, drink;Travel", "Food, drink", "Travel"]
    rows = [f'the text of number {n},"{labels[n % 3]}"' for n in range(12)]
    file = csv(tmp_path, "text,label", rows)
    assert inspect_files(file, label_type="labels").labels == {"Food, drink": 8, "Travel": 8}
    data = load_files(train_file=file, label_type="labels", **GIVEN)
    assert data.task.type.label_names == ("Food, drink", "Travel")
    assert data.task.type.read_label("Food, drink") == [1, 0]  # alone in a file of its own
    turned = [f"the text of {n // 2},{['late;lost', 'lost;late'][n % 2]}" for n in range(12)]
    assert "conflicts" not in inspect_files(csv(tmp_path, "text,label", turned), label_type="labels").doubts()


def test_a_label_that_no_row_has_is_told(tmp_path: Path) -> None:
    rows = [f"the text of number {n},{n % 2},{1 - n % 2},0" for n in range(12)]
    found = inspect_files(csv(tmp_path, "text,toxic,spam,rude", rows), label_column="toxic,spam,rude")
    assert found.notes == (f"{tmp_path / 'a.csv'}: no row has 'rude': the model has no such label.",)


def test_tags_are_read_without_spaces_and_mapped_whatever_says_that_they_are_tags(tmp_path: Path) -> None:
    lines = [{"tokens": ["Anna", "left"], "tags": [["B-PER ", "O"], ["B-PER", "O "]][n % 2]} for n in range(12)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert load_files(train_file=tmp_path / "a.jsonl", **TAGGED).task.type.label_names == ("O", "B-PER")
    (tmp_path / "map.csv").write_text("label,meaning\nB-person,B-PER\n")
    lines = [{"tokens": ["Anna", "left", str(n)], "tags": "B-person O O"} for n in range(12)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert inspect_files(tmp_path / "a.jsonl", label_map=tmp_path / "map.csv").tags == {"O": 24, "B-PER": 12}
    (tmp_path / "a.conll").write_text("Anna B\nBell I\nleft O\n\n" * 5)
    assert "tags such as 'B' have no type" in inspect_files(tmp_path / "a.conll").notes[0]


def test_rows_of_one_label_are_evaluated_by_a_model_of_several(tmp_path: Path) -> None:
    files = tmp_path / "a.txt", tmp_path / "b.txt"
    files[0].write_text("".join(f"__label__late __label__{'ab'[n % 2]} the text of {n}\n" for n in range(12)))
    files[1].write_text("".join(f"__label__late the other text {n}\n" for n in range(4)))
    found = inspect_files(*files)
    assert (found.label_type, found.unclear) == ("labels", "")
    (tmp_path / "c.json").write_text("{}")
    assert not inspect_files(tmp_path / "c.json").columns
    (tmp_path / "d.txt").write_text("".join(f"first{n} last{n}\n" for n in range(12)) + "\n")  # names, and no tags
    assert len(inspect_files(tmp_path / "d.txt").table) == 13
