"""Labels: maps that say what they mean, and forms that are recognised wherever a file is read and refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Captured, assert_refused

from attendrop.cli.inspect import announce_files
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.studies.study import read_study
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.inspection import check_files, inspect_files
from attendrop.tasks.labels import label_variants, read_label_map, tag_scheme, write_label_map
from attendrop.tasks.table import BadRows
from attendrop.tasks.types.classification import Classification

# Label maps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "groups"),
    [
        ({"Refund": 9, "refund": 3, "re-fund": 1, "billing": 5}, [["Refund", "refund", "re-fund"]]),
        ({"delivery": 40, "delivry": 1, "deliverly": 2, "damage": 9}, [["delivery", "deliverly", "delivry"]]),
        ({"hotel": 30, "motel": 28}, []),  # as frequent: another word
        ({"entailment": 90, "not_entailment": 9, "positive": 90, "negative": 9}, []),
        ({"C": 9, "C++": 8, "C#": 7, "A+": 5, "A-": 5, "A": 4, "-1": 9, "1": 8, "1.1": 3, "11": 2}, []),
        ({"<=50K": 9, ">50K": 3, "a.k.a.": 4, "aka": 2}, [["a.k.a.", "aka"]]),
        ({"caf\u00e9": 9, "cafe\u0301": 3, "bar": 2}, [["caf\u00e9", "cafe\u0301"]]),
        ({"refund": 9, "refund\u200b": 8, "re\u00adfund": 7}, [["refund", "refund\u200b", "re\u00adfund"]]),
        ({"step 1": 90, "step 2": 2, "1": 50, "2": 1, "yes": 90, "yet": 1}, []),
    ],
)
def test_variants_of_labels_are_found(counts: dict[str, int], groups: list[list[str]]) -> None:
    assert label_variants(counts) == groups


def test_a_draft_merges_the_likely_variants(tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    write_label_map(path, {"Refund": 9, "refund": 3, "Billing, other": 2})
    assert (
        path.read_text()
        == 'label,meaning,rows\nRefund,Refund,9\nrefund,Refund,3\n"Billing, other","Billing, other",2\n'
    )
    assert read_label_map(path) == {"Refund": "Refund", "refund": "Refund", "Billing, other": "Billing, other"}
    with pytest.raises(AttendropError, match=r"map\.csv"):
        write_label_map(path, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("label,meaning\na,b\nc,b\na,c\n", "map.csv, line 4: 'a' means 'b' and 'c'; delete one of them"),
        ("label\na\n", "has one column; give it two, label and meaning"),
    ],
)
def test_a_map_that_says_no_one_thing_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "map.csv").write_text(content)
    with pytest.raises(AttendropError, match=message):
        read_label_map(tmp_path / "map.csv")


@pytest.mark.parametrize(
    ("label_type", "labels"),
    [("auto", ["Refund", "Billing"]), ("number", ["1", "2"]), ("labels", ["Refund|Billing", '"[""Billing""]"'])],
)
def test_a_map_that_matches_no_label_is_refused(tmp_path: Path, label_type: str, labels: list[str]) -> None:
    """A map of other data, or of labels spelt otherwise, changed nothing, without a word."""
    file, path = tmp_path / "a.csv", tmp_path / "map.csv"
    file.write_text("text,label\n" + "".join(f"the cat sees,{label}\n" for label in labels * 2))
    given: dict[str, Any] = {"text_columns": ["text"], "label_column": "label", "label_type": label_type}
    path.write_text("label,meaning\nrefund,money\nother,rest\n")
    message = r"map\.csv has none of the labels of .*a\.csv, column 'label', such as .*; correct its column 'label'"
    for read in (inspect_files, lambda file, **options: load_files(train_file=file, **options)):
        with pytest.raises(AttendropError, match=message):
            read(file, **given, label_map=path)
    path.write_text("label,meaning\nBilling,money\n2,3\n")
    load_files(train_file=file, **given, label_map=path)


def load(folder: Path, labels: list[str], **options: Any) -> Any:
    (folder / "map.csv").write_text("from;to\nrefnd;refund\nBilling;billing\n?;\n")
    (folder / "a.csv").write_text("text,label\n" + "".join(f"text,{label}\n" for label in labels))
    given = {"text_columns": ["text"], "label_column": "label", "label_map": folder / "map.csv"}
    return load_files(train_file=folder / "a.csv", **given, **options)


def test_labels_are_merged_at_reading(tmp_path: Path) -> None:
    data = load(tmp_path, ["refund", " refnd", "billing", "Billing"])
    assert data.task.label_names == ("billing", "refund") and data.splits["train"]["label"] == [1, 1, 0, 0]
    options = {"text_columns": ["text"], "label_column": "label", "label_map": tmp_path / "map.csv"}
    (chunk,) = stream_file(tmp_path / "a.csv", **options, task_type=data.task.type, size=9, bad=BadRows())
    assert chunk.columns["label"] == [1, 1, 0, 0]


def test_a_label_without_a_meaning_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match="line 4, column 'label': the label is empty"):
        load(tmp_path, ["refund", "billing", "?"])
    data = load(tmp_path, ["refund", "billing", "?"], skip_bad_rows=True)
    assert len(data.splits["train"]) == 2 and [row.place for row in data.skipped] == ["line 4"]


def test_several_labels_of_a_row_are_merged_each(tmp_path: Path) -> None:
    data = load(tmp_path, ["refnd|Billing", "billing", '"[""refnd""]"'], label_type="labels")
    assert data.task.label_names == ("billing", "refund")
    assert data.splits["train"]["label"] == [[1, 1], [1, 0], [0, 1]]


def test_a_label_without_a_meaning_is_doubtful_and_refused_also_among_others(tmp_path: Path) -> None:
    labels = ["refund|?", "billing", '"[""refund"", ""?""]"']
    with pytest.raises(AttendropError, match=r"line 2, column 'label': label 2 of .* is empty"):
        load(tmp_path, labels, label_type="labels")
    found = inspect_files(tmp_path / "a.csv", label_type="labels", label_map=tmp_path / "map.csv")
    assert found.doubts()["empty_label"] == "2 rows with an empty label among others."


@pytest.mark.parametrize(
    ("labels", "names", "counts"),
    [
        (["1,0", "2,0"], ("1", "2"), {"1": 2, "2": 2}),
        (["1,0", "2"], ("1", "2"), {"1": 2, "2": 2}),
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
    options = {"text_columns": ["text"], "label_column": "label"}
    options |= {"label_map": tmp_path / "map.csv"} if "low" in counts else {}
    data = load_files(train_file=file, **options)
    found = check_files(str(file), None, **options)
    assert found is not None and (found.labels, found.label_type) == (counts, "class" if names else "number")
    assert data.task.label_names == names
    (chunk,) = stream_file(file, **options, task_type=data.task.type, size=9, bad=BadRows())
    assert chunk.columns["label"] == data.splits["train"]["label"][:]


def test_a_thousand_is_not_the_class_1_with_a_decimal_comma() -> None:
    task_type = Classification(("1", "2"))
    assert task_type.read_labels(["1,0", "2,00", "2"]) == [0, 1, 1]
    assert task_type.unknown_labels("1,000") == ["1,000"]


# Forms ---------------------------------------------------------------------------------------------------------------

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
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500 + len(file)


GIVEN = {"text_columns": ["text"], "label_column": "label"}
VECTORS: dict[str, list[Any]] = {
    "json": ["[0, 1, 0]", "[1, 1, 0]"],
    "numpy floats": ["[0. 1. 0.]", "[1. 1. 0.]"],
    "array": ["array([0, 1, 0], dtype=int32)", "array([1, 1, 0])"],
    "tuple": ["(0, 1, 0)", "(1, 1, 0)"],
    "spaces": ["0 1 0", "1 1 0"],
    "semicolons": ["0;1;0", "1;1;0"],
    "signs": ["-1 1 -1", "1 1 -1"],
    "lists": [[0, 1, 0], [1, 1, 0]],
    "with gaps": [[0, 1, 0], [1, 1, 0], None, [0, 0, 0], [0, 0, 1], [1, 0, 0]],
}


@pytest.mark.parametrize("labels", VECTORS.values(), ids=VECTORS)
def test_vectors_of_zeros_and_ones(labels: list[Any], tmp_path: Path) -> None:
    """Each was two labels, "0" and "1", with a high score."""
    file, message = write(tmp_path, labels), "column 'label': the labels are vectors of zeros and ones, such as "
    refusals(file, message, **GIVEN)
    refusals(file, message, **GIVEN, label_type="labels")
    refusals(write(tmp_path, labels, "y"), "column 'y': the labels are vectors .* name it with --label-column[.]$")


def test_vectors_of_probabilities(tmp_path: Path) -> None:
    labels = [[0.25, 0.75], [1, 0.0]]
    refusals(write(tmp_path, labels[:1]), "the labels are vectors of numbers, such as \\[0.25, 0.75\\]", **GIVEN)


SPANS: dict[str, list[Any]] = {
    "lists": [[[0, 4, "PER"], [14, 19, "LOC"]], [[0, 3, "PER"]], []],
    "names first": [[["PER", 0, 4]], [["LOC", 14, 18]]],
    "objects": [[{"start": 0, "end": 4, "label": "PER"}], [{"start": 0, "end": 3, "label": "PER"}], []],
    "offsets": [[{"id": 7, "label": "PER", "start_offset": 0, "end_offset": 4}]],
    "one object": [{"begin": 0, "end": 4, "type": "PER"}, {"begin": 0, "end": 3, "type": "PER"}],
    "lengths": [[{"offset": 0, "length": 4, "category": "Person"}]],
    "nested": [[{"result": [{"value": {"start": 0, "end": 4, "text": "Anna", "labels": ["PER"]}}]}]],
    "by key": [{"entities": [[0, 4, "PER"]]}, {"entities": []}],
    "json": ['[[0, 4, "PER"]]', '[[0, 3, "PER"]]', "[]"],
    "python": ["[(0, 4, 'PER')]", "[(0, 3, 'PER'), (14, 18, 'LOC')]"],
    "lists of texts": [["(0, 4, 'PER')"], ["(0, 3, 'PER')"]],
    "texts": ["0:4:PER", "0:3:PER;14:18:LOC"],
}


@pytest.mark.parametrize("labels", SPANS.values(), ids=SPANS)
def test_spans_of_characters(labels: list[Any], tmp_path: Path) -> None:
    """Each was a label with a name such as "[0, 4, 'PER']"."""
    file = write(tmp_path, labels, name := "entities")
    message = f"column '{name}': the labels are spans of characters, such as .*; write the words of each text and a tag"
    refusals(file, message, text_columns=["text"], label_column=name)
    refusals(file, message)


@pytest.mark.parametrize("labels", [[[{"name": "bug"}]], ["{'bug': 1}"], ["('bug', 'late')"]])
def test_objects_in_a_text_or_a_list(labels: list[Any], tmp_path: Path) -> None:
    refusals(write(tmp_path, labels), "the labels are objects or lists of them, such as ", **GIVEN)


@pytest.mark.parametrize("labels", [["O B-PER", "B-PER I-PER O"], [["O", "B-PER"], ["O", "O"]]])
def test_tags_beside_a_text(labels: list[Any], tmp_path: Path) -> None:
    refusals(write(tmp_path, labels), "the labels are tags of words, .* or add --label-type tags", **GIVEN)


@pytest.mark.parametrize("columns", ["subject,body,product", "body,tags"])
@pytest.mark.parametrize("label", ["01", "xy"])
def test_a_multiple_choice_is_never_guessed(columns: str, label: str, tmp_path: Path, capsys: Captured) -> None:
    texts = {"subject": "a b", "body": "it crashes again", "product": "c d", "tags": ["new", "urgent"]}
    rows = [{name: texts[name] for name in columns.split(",")} | {"label": label[n % 2]} for n in range(9)]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    message = "may be a question with its choices, or parts of a text to classify; add --label-type choice"
    refusals(str(file), message, text_columns=columns.split(","), label_column="label")
    named = [str(file), "--text-columns", columns, "--label-column", "label"]
    for command in ("inspect", "train", "compare"):
        assert_refused([command, *named, *(["--output-dir", "r"] * (command != "inspect"))], Path("r"), message, capsys)


WORDS = [("Anna", "B-PER", "NNP"), ("lives", "O", "VBZ"), ("here", "O", "RB"), (".", "O", ".")]


@pytest.mark.parametrize(
    ("header", "tag", "number"),
    [
        ("sentence_id,word,tag", 1, str),
        ("Sentence #,Word,Tag", 1, lambda n: "" if n % 4 else f"Sentence: {n // 4}"),  # at its first word only
        ("group,word,labels", 1, str),
        ("sid,token,label", 2, str),  # parts of speech
        ("doc,word,pos", 2, lambda n: f"a{n // 4}"),
    ],
)
@pytest.mark.parametrize("label_type", ["auto", "tags"])
def test_a_word_in_each_row(header: str, tag: int, number: Any, label_type: str, tmp_path: Path) -> None:
    """Each word was a sentence, of which tags that go on with an entity began one."""
    rows = [(WORDS[n % 4], str(n // 4) if number is str else number(n)) for n in range(24)]
    lines = [f"{sentence},{word[0]},{word[tag]}" for word, sentence in rows]
    (tmp_path / "a.csv").write_text("\n".join([header, *lines]))
    name, (_, words, label) = str(tmp_path / "a.csv"), header.split(",")
    where = f", and its tag in '{label}'" if tag == 1 else ""
    message = f"has a word in each row{where}; write a sentence in each row"
    refusals(name, message, text_columns=[words], label_column=label, label_type=label_type)
    with pytest.raises(AttendropError, match=message):
        inspect_files(name)


SCHEMES = {
    "BILUO": ("O B-PER L-PER U-LOC", "BILUO, such as 'L-PER', 'U-LOC'"),
    "BILUO with _": ("O B_PER I_PER L_PER U_LOC", "BILUO, such as 'B_PER'"),
    "BILUO with words without a tag": ("O - U-LOC", "BILUO, such as 'U-LOC'"),
    "_ outside": ("_ B-PER I-PER", "such as '_'"),
    "IOB2 with _": ("O B_PER I_PER", "with prefixes, such as 'B_PER', 'I_PER'"),
    "small letters": ("o b-per i-per", "with prefixes, such as 'b-per', 'i-per'"),
    "BMES": ("O B-PER M-PER E-PER S-LOC", "with prefixes, such as 'M-PER'"),
    "suffixes": ("O PER-B PER-I LOC-B", "with prefixes as suffixes, such as 'LOC-B', 'PER-B', 'PER-I'"),
    "IOB1 as suffixes": ("O PER-I LOC-I", "with prefixes as suffixes, such as 'LOC-I', 'PER-I'"),
    "IOB1": ("O I-PER B-PER", ""),
    "IOB2": ("O B-PER I-PER B-LOC", ""),
    "IOBES": ("O B-PER I-PER E-PER S-LOC", ""),
    "types without a prefix": ("O PER LOC", ""),
    "parts of speech": ("NNP VBZ -LRB- . , WP$", ""),
    "of Universal Dependencies": ("NOUN VERB _ ADP", ""),
}


@pytest.mark.parametrize(("tags", "scheme"), SCHEMES.values(), ids=SCHEMES)
def test_tags_of_entities_in_other_schemes(tags: str, scheme: str, tmp_path: Path) -> None:
    """Each tag was a class that had nothing to do with the others."""
    assert scheme in tag_scheme(tags.split()) and bool(tag_scheme(tags.split())) is bool(scheme)
    file, words = tmp_path / "a.conll", [f"word {tag}" for tag in tags.split()]
    file.write_text("\n".join([*words, "", *words]))
    spaced = tmp_path / "a.csv"
    spaced.write_text(
        f"tokens,tags\n{' '.join('a' for _ in words)},{tags}\n" if "," not in tags else "tokens,tags\na b,A B\n"
    )
    if scheme:
        given: dict[str, Any] = {"text_columns": ["tokens"], "label_column": "tags"}
        refusals(str(file), f"column 'tags': the tags are of entities, .*{scheme}.* write IOB2", **given)
        refusals(str(spaced), f"{scheme}.* write IOB2", **given, label_type="tags")
    else:
        check_files(str(file), None)
        assert len(load_files(train_file=file, text_columns=["tokens"], label_column="tags").splits["train"]) == 2


@pytest.mark.parametrize("decision", ["answer", "decision"])
@pytest.mark.parametrize("more", [{"accept": ["bug"], "options": [{"id": "bug", "text": "bug"}]}, {"label": "bug"}])
def test_rows_that_an_annotator_rejected(decision: str, more: dict[str, Any], tmp_path: Path) -> None:
    """The decision was the label, and so was what had been rejected."""
    file = tmp_path / "a.jsonl"

    def write_rows(*decisions: str) -> None:
        decided = [more | {"text": f"{TEXTS[n % 3]} {n}", decision: each} for n, each in enumerate(decisions * 3)]
        file.write_text("".join(json.dumps(row) + "\n" for row in decided))

    write_rows("accept", "accept", "reject", "ignore")
    message = f"is an export of annotations: '{decision}' says which rows an annotator accepted"
    if "accept" in more or decision == "answer":
        refusals(str(file), message)
    if "accept" in more:
        refusals(str(file), message, text_columns=["text"], label_column="accept")
    assert inspect_files(file, label_column=decision).labels == {"accept": 6, "reject": 3, "ignore": 3}
    write_rows("accept", "accept")
    assert inspect_files(file, label_column=next(iter(more))).labels == {"bug": 6}


ORDINARY: dict[str, list[Any]] = {
    "codes": ["0101", "1100"],
    "several of 0 and 1": [[0], [1], [0, 1], []],
    "several names": [["art", "sport"], ["art"], []],
    "joined names": ["art;sport", "art", "sport"],
    "ranges": ["1-2 days", "3-5 days"],
    "times": ["9:30 am", "1:15 pm"],
    "results": ["1:2", "0:1"],
    "blood groups": ["O", "A", "B", "AB"],
    "in brackets": ["(late)", "[new]"],
    "numbers": ["0.5", "1.25"],
    "deep": ["[" * 700 + "]" * 700 + "a", "b"],
}


@pytest.mark.parametrize("labels", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_labels_are_read(labels: list[Any], tmp_path: Path) -> None:
    file = write(tmp_path, labels)
    assert check_files(file, None) is not None
    assert len(load_files(train_file=file, text_columns=["text"], label_column="label").splits["train"]) == 12


def test_rows_of_documents_are_no_words(tmp_path: Path) -> None:
    rows = [f"{n // 4},en,{TEXTS[n % 3]},{'xy'[n % 2]}" for n in range(12)]
    (tmp_path / "a.csv").write_text("\n".join(["doc_id,lang,text,label", *rows]))
    found = check_files(str(tmp_path / "a.csv"), None)
    assert found is not None and (found.text_columns, found.label_column) == (("text",), "label")
    (tmp_path / "b.csv").write_text(
        "\n".join(["shop_id,product,label", *(f"{n // 4},milk{n},{n % 2}" for n in range(12))])
    )
    assert check_files(str(tmp_path / "b.csv"), None, text_columns=["product"], label_column="label")


def test_other_columns_and_classes_that_are_asked_for_are_left_alone(tmp_path: Path) -> None:
    """A column of labels by its name, or by the user, is no guess."""
    for name, options in (("label", {}), ("team", {"label_column": "team"})):
        file = write(tmp_path, ["x", "y"], name, entities=[[0, 4, "PER"]], embedding=[0.5, 0.25], onehot=[0, 1])
        found = check_files(file, None, text_columns=["text"], **options)
        assert found is not None and found.labels == {"x": 6, "y": 6}
    for labels in (VECTORS["spaces"], SPANS["texts"], ["B-PER", "O"]):
        file = write(tmp_path, labels)
        assert inspect_files(file, label_type="class").labels == {label: 6 for label in labels}


def test_a_study_refuses_them_before_its_first_run(tmp_path: Path) -> None:
    file = write(tmp_path, [[0, 1], [1, 1]])
    (tmp_path / "study.yaml").write_text(f"data: [{{train_file: {file}}}]\nmethods: [finetune]\nseeds: 1\n")
    with pytest.raises(AttendropError, match="the labels are vectors of zeros and ones"):
        read_study(str(tmp_path / "study.yaml"), on_data=partial(announce_files, quiet=True))
