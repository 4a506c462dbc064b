"""Labels that are not names: each form is recognised wherever a file is read, and ordinary labels are none of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Captured, assert_refused

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.studies.study_file import read_study
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.inspection import check_files, inspect_files
from attendrop.tasks.label_forms import tag_scheme

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
    "floats": ["[0.0, 1.0]", "[1.0, 1.0]"],
    "switches": ["[true, false]", "[false, false]"],
    "numpy": ["[0 1 0]", "[1 1 0]"],
    "numpy floats": ["[0. 1. 0.]", "[1. 1. 0.]"],
    "array": ["array([0, 1, 0], dtype=int32)", "array([1, 1, 0])"],
    "tuple": ["(0, 1, 0)", "(1, 1, 0)"],
    "spaces": ["0 1 0", "1 1 0"],
    "semicolons": ["0;1;0", "1;1;0"],
    "commas": ["0,1,0", "1,1,0"],
    "bars": ["0|1", "1|1"],
    "signs": ["-1 1 -1", "1 1 -1"],
    "lists": [[0, 1, 0], [1, 1, 0]],
    "lists of switches": [[False, True], [True, True]],
    "with gaps": [[0, 1, 0], [1, 1, 0], None, [0, 0, 0], [0, 0, 1], [1, 0, 0]],
}


@pytest.mark.parametrize("labels", VECTORS.values(), ids=VECTORS)
@pytest.mark.parametrize("label_type", ["auto", "labels"])
def test_vectors_of_zeros_and_ones(labels: list[Any], label_type: str, tmp_path: Path) -> None:
    """Each was two labels, "0" and "1", with a high score."""
    file, message = write(tmp_path, labels), "column 'label': the labels are vectors of zeros and ones, such as "
    refusals(file, message, **GIVEN, label_type=label_type)
    refusals(write(tmp_path, labels, "y"), "column 'y': the labels are vectors .* name it with --label-column[.]$")


def test_vectors_of_probabilities(tmp_path: Path) -> None:
    labels = [[0.25, 0.75], [1, 0.0]]
    refusals(write(tmp_path, labels[:1]), "the labels are vectors of numbers, such as \\[0.25, 0.75\\]", **GIVEN)


SPANS: dict[str, list[Any]] = {
    "lists": [[[0, 4, "PER"], [14, 19, "LOC"]], [[0, 3, "PER"]], []],
    "names first": [[["PER", 0, 4]], [["LOC", 14, 18]]],
    "with their text": [[[0, 4, "PER", "Anna"]], []],
    "objects": [[{"start": 0, "end": 4, "label": "PER"}], [{"start": 0, "end": 3, "label": "PER"}], []],
    "offsets": [[{"id": 7, "label": "PER", "start_offset": 0, "end_offset": 4}]],
    "one object": [{"begin": 0, "end": 4, "type": "PER"}, {"begin": 0, "end": 3, "type": "PER"}],
    "lengths": [[{"offset": 0, "length": 4, "category": "Person"}]],
    "nested": [[{"result": [{"value": {"start": 0, "end": 4, "text": "Anna", "labels": ["PER"]}}]}]],
    "by key": [{"entities": [[0, 4, "PER"]]}, {"entities": []}],
    "json": ['[[0, 4, "PER"]]', '[[0, 3, "PER"]]', "[]"],
    "json objects": ['[{"start": 0, "end": 4, "label": "PER"}]', "[]"],
    "python": ["[(0, 4, 'PER')]", "[(0, 3, 'PER'), (14, 18, 'LOC')]"],
    "lists of texts": [["(0, 4, 'PER')"], ["(0, 3, 'PER')"]],
    "texts": ["0:4:PER", "0:3:PER;14:18:LOC"],
}


@pytest.mark.parametrize("name", ["label", "entities"])
@pytest.mark.parametrize("labels", SPANS.values(), ids=SPANS)
def test_spans_of_characters(labels: list[Any], name: str, tmp_path: Path) -> None:
    """Each was a label with a name such as "[0, 4, 'PER']"."""
    file = write(tmp_path, labels, name)
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
@pytest.mark.parametrize("label", ["01", "AB", "xy"])
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
        (",word,ner", 1, lambda n: ""),
        ("sid,token,label", 2, str),  # parts of speech
        ("Satz-Nr,Wort,Tag", 2, str),
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
    "only - for words without a tag": ("O - B-PER I-PER", "such as '-'"),
    "_ outside": ("_ B-PER I-PER", "such as '_'"),
    "IOB2 with _": ("O B_PER I_PER", "with prefixes, such as 'B_PER', 'I_PER'"),
    "IOB2 with :": ("O B:PER I:PER", "with prefixes, such as 'B:PER', 'I:PER'"),
    "small letters": ("o b-per i-per", "with prefixes, such as 'b-per', 'i-per'"),
    "BMES": ("O B-PER M-PER E-PER S-LOC", "with prefixes, such as 'M-PER'"),
    "BMEWO": ("O B-PER M-PER E-PER W-LOC", "with prefixes, such as 'M-PER', 'W-LOC'"),
    "suffixes": ("O PER-B PER-I LOC-B", "with prefixes as suffixes, such as 'LOC-B', 'PER-B', 'PER-I'"),
    "suffixes with _": ("O PER_B PER_I", "with prefixes as suffixes, such as 'PER_B'"),
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
    "names of two": ["0", "1"],
    "codes": ["0101", "1100"],
    "several numbers": [[3, 17], [3], [], [21, 4]],
    "several of 0 and 1": [[0], [1], [0, 1], []],
    "several names": [["art", "sport"], ["art"], []],
    "joined names": ["art;sport", "art", "sport"],
    "ranges": ["1-2 days", "3-5 days"],
    "sizes": ["2 3 4", "4 5"],
    "times": ["9:30 am", "1:15 pm"],
    "results": ["1:2", "0:1"],
    "blood groups": ["O", "A", "B", "AB"],
    "in brackets": ["(late)", "[new]"],
    "phrases": ["very late", "on time"],
    "decisions": ["accept", "reject"],
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


def test_classes_that_are_asked_for_have_any_name(tmp_path: Path) -> None:
    for labels in (VECTORS["spaces"], SPANS["texts"], ["B-PER", "O"]):
        file = write(tmp_path, labels)
        assert inspect_files(file, label_type="class").labels == {label: 6 for label in labels}


def test_other_columns_of_annotations_are_left_alone(tmp_path: Path) -> None:
    """A column of labels by its name, or by the user, is no guess."""
    for name, options in (("label", {}), ("team", {"label_column": "team"})):
        file = write(tmp_path, ["x", "y"], name, entities=[[0, 4, "PER"]], embedding=[0.5, 0.25], onehot=[0, 1])
        found = check_files(file, None, text_columns=["text"], **options)
        assert found is not None and found.labels == {"x": 6, "y": 6}


def test_a_study_refuses_them_before_its_first_run(tmp_path: Path) -> None:
    file = write(tmp_path, [[0, 1], [1, 1]])
    (tmp_path / "study.yaml").write_text(f"data: [{{train_file: {file}}}]\nmethods: [finetune]\nseeds: 1\n")
    with pytest.raises(AttendropError, match="the labels are vectors of zeros and ones"):
        read_study(str(tmp_path / "study.yaml"), check_data=True)
