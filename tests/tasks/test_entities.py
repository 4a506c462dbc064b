"""Spans of entities to tags and back; schemes of tags; a run on spans as annotation tools export them."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Captured
from hypothesis import given
from hypothesis import strategies as st

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.entities import are_spans, read_spans, span_tags, standard_tags, tagged_spans, words_of
from attendrop.tasks.inspection import check_files, inspect_files
from attendrop.tasks.table import BadRows, BadValue
from attendrop.tasks.types.token_classification import EntitySpans, entities

TEXT = "Dr. Anna Meyer-Li went to 東京, कार्ड_2!"


def test_a_text_is_divided_into_words_of_all_scripts() -> None:
    words = ["Dr", ".", "Anna", "Meyer", "-", "Li", "went", "to", "東", "京", ",", "कार्ड", "_", "2", "!"]
    assert [TEXT[start:end] for start, end in words_of(TEXT)] == words


@given(st.text("ab ,東-é\u200d", min_size=1), st.data())
def test_spans_of_whole_words_survive_as_tags(text: str, data: st.DataObject) -> None:
    """Oracle: the characters that the spans cover, each with its type."""
    words = words_of(text)
    assert {at for start, end in words for at in range(start, end)} == {
        n for n, c in enumerate(text) if not c.isspace()
    }
    spans, first = list[list[Any]](), 0
    while first < len(words):
        last = data.draw(st.integers(first, len(words) - 1))
        if data.draw(st.booleans()):
            spans.append([words[first][0], words[last][1], data.draw(st.sampled_from(["PER", "LOC"]))])
        first = last + 1
    tags = span_tags(text, read_spans(spans))
    found = tagged_spans(text, entities(tuple(tags)))
    assert [[each["start"], each["end"], each["label"]] for each in found] == spans
    assert all(text[each["start"] : each["end"]] == each["text"] for each in found)


REFUSED = [
    ([[4, 99, "PER"]], "the span [4, 99, 'PER'] is outside the text of 38 characters, or empty"),
    ([[4, 4, "PER"]], "is outside the text of 38 characters, or empty"),
    ([[-4, 3, "PER"]], "is outside the text"),
    ([[4, 7, "PER"]], "the span [4, 7, 'PER'], 'Ann', begins or ends within a word"),
    ([[5, 8, "PER"]], "'nna', begins or ends within a word"),
    ([[3, 4, "PER"]], "' ', begins or ends within a word"),
    ([[9, 15, "PER"], [14, 17, "ORG"]], "the spans [9, 15, 'PER'] and [14, 17, 'ORG'] overlap, and a word has one tag"),
    ([[4, 8, "PER"], [4, 8, "ORG"]], "overlap"),
    ([[4.0, 8, "PER"]], "is no span; write [start, end, type]"),
    ([[4, 8]], "is no span"),
    ([{"start": 0, "end": 3, "label": "PER", "text": "Anna"}], "is of 'Anna', and the text has 'Dr.' there; correct"),
    ([{"start": 4, "end": 7, "label": "PER", "text": "Anna"}], "is of 'Anna', and the text has 'Ann' there; correct"),
    ([{"start": 4, "label": "PER"}], "is no span"),
    ([[4, 8, " "]], "is no span"),
    ("PER", "'PER' is no list of spans; write [] where a text has no entity"),
    (None, "is no list of spans"),
]


@pytest.mark.parametrize(("spans", "message"), REFUSED)
def test_spans_that_say_no_tags_are_refused_by_their_row(spans: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue) as told:
        span_tags(TEXT, read_spans(spans, TEXT))
    assert message in str(told.value)
    good = [{"text": TEXT, "label": [[4, 9, "PER"]]}] * 3  # with a space at the end
    rows = [*good, {"text": TEXT, "label": spans}]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given: dict[str, Any] = {"train_file": file, "text_columns": ["text"], "label_column": "label"}
    with pytest.raises(AttendropError) as refused:
        load_files(**given)
    assert "a.jsonl, line 4" in str(refused.value) and message in str(refused.value)
    data = load_files(**given, skip_bad_rows=True)
    assert data.task.label_names == ("O", "B-PER", "I-PER") and len(data.skipped) == 1
    assert data.splits["train"]["label"][:] == [[0, 0, 1] + [0] * 12] * 3
    assert "1 row with spans that cannot be read (" in inspect_files(file).doubts()["spans"]


OBJECTS = [{"start_offset": s, "end_offset": e, "type": t, "id": s} for s, e, t in ((14, 19, "LOC"), (0, 4, "PER"))]
SPANS = {"label": [[0, 4, "PER"], [14, 19, "LOC"]], "data.spans": OBJECTS, "entities": json.dumps(OBJECTS)}


@pytest.mark.parametrize("column", SPANS)
def test_spans_of_annotation_tools_are_recognized(column: str, tmp_path: Path) -> None:
    spans, (first, *inner) = SPANS[column], column.split(".")
    rows = [{"text": "Nobody came today.", first: []}]
    rows += [{"text": "Anna moved to Porto in May.", first: {inner[0]: spans} if inner else spans}] * 2
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[bool(inner) :]))
    found = check_files(f"{tmp_path}/a.jsonl", None)
    assert found is not None and (found.text_columns, found.label_column) == (("text",), column)
    assert (found.label_type, found.tags) == ("spans", {"PER": 2, "LOC": 2})
    data = load_files(train_file=f"{tmp_path}/a.jsonl", text_columns=["text"], label_column=column)
    assert data.task.type == EntitySpans(("O", "B-LOC", "I-LOC", "B-PER", "I-PER"))
    assert data.splits["train"]["label"][-1] == [3, 0, 0, 1, 0, 0, 0]
    assert not are_spans([["art"], ["sport", "art"]]) and not are_spans([[0, 1], [1, 1]]) and not are_spans([[], []])


def test_a_run_on_spans_predicts_spans(tmp_path: Path, capsys: Captured) -> None:
    from helpers import tiny

    tiny.save_tiny_bert(tmp_path / "model")
    texts = [f"the cat, {word} dog" for word in ("red", "blue", "near", "far") * 4]
    rows = [{"text": text, "label": [[4, 7, "PET"], [len(text) - 3, len(text), "PET"]]} for text in texts]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train, run, out = f"{tmp_path}/train.jsonl", str(tmp_path / "run"), tmp_path / "out.jsonl"
    how = f"--model {tmp_path}/model --method finetune --max-steps 40 --learning-rate 0.05 --device cpu".split()
    assert cli.main(["train", train, "--eval-file", train, "--output-dir", run, *how]) == 0
    (tmp_path / "new.jsonl").write_text(json.dumps({"text": " the cat, red  dog"}) + "\n")
    assert cli.main(["predict", run, f"{tmp_path}/new.jsonl", "--output", str(out)]) == 0
    cat, dog = ({"start": at, "end": at + 3, "label": "PET", "text": pet} for at, pet in ((5, "cat"), (15, "dog")))
    assert json.loads(out.read_text()) == {"index": 0, "entities": [cat, dog]}
    assert cli.main(["evaluate", run]) == 0 and "entity f1         1.0000" in capsys.readouterr().out


SCHEMES = {
    "BILUO": ("O B-PER L-PER U-LOC", "O B-PER I-PER B-LOC"),
    "BILUO of spaCy": ("- B-PER L-PER O", "O B-PER I-PER O"),
    "BMES": ("O B-PER M-PER E-PER S-LOC", "O B-PER I-PER I-PER B-LOC"),
    "_ outside": ("_ B-PER I-PER", "O B-PER I-PER"),
    "IOB2 with _": ("O B_PER I_PER", "O B-PER I-PER"),
    "suffixes": ("O PER-B PER-I LOC-B", "O B-PER I-PER B-LOC"),
    "IOB1": ("O I-PER I-PER B-PER", "O B-PER I-PER B-PER"),
    "IOB2": ("O B-PER I-PER B-PER", ""),
    "IOBES": ("O B-PER E-PER S-LOC", ""),
    "parts of speech": ("NNP VBZ -LRB- . , WP$", ""),
}


@pytest.mark.parametrize(
    ("tags", "bare"), [("O PER LOC", "LOC"), ("O B-PER PER", "PER"), ("O B-PER PER-B", "PER-B"), ("0 3 4", "0")]
)
def test_tags_in_no_scheme_are_told(tags: str, bare: str, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("\n".join(f"word {tag}" for tag in tags.split()))
    found = inspect_files(tmp_path / "a.conll")
    assert f"tags such as '{bare}' do not say where entities begin" in found.notes[0] and len(found.tags) == 3


def test_short_entities_in_bmes_are_read_as_the_model_has_them() -> None:
    """Without an M they look like IOBES."""
    short = ("O", "B-PER", "E-PER", "S-LOC")
    assert standard_tags(short, ("O", "B-LOC", "B-PER", "I-PER")) == {"E-PER": "I-PER", "S-LOC": "B-LOC"}
    assert standard_tags(short, short) == {}


@pytest.mark.parametrize("name", SCHEMES)
def test_tags_of_entities_in_other_schemes_are_converted_and_told(name: str, tmp_path: Path) -> None:
    """Each tag was a class that had nothing to do with the others."""
    tags, iob2 = SCHEMES[name]
    file, words = tmp_path / "a.conll", [f"word {tag}" for tag in tags.split()]
    file.write_text("\n".join([*words, "", *words]))
    found = inspect_files(file)
    assert [note for note in found.notes if "IOB2" in note] == list(found.notes) and bool(found.notes) is bool(iob2)
    assert set(found.tags) == set((iob2 or tags).split())
    given: dict[str, Any] = {"text_columns": ["tokens"], "label_column": "tags"}
    with pytest.warns(UserWarning, match="read in IOB2") if iob2 else nullcontext():
        data = load_files(train_file=file, **given)
    row, names = data.splits["train"]["label"][0], data.task.label_names
    assert [names[tag] for tag in row] == (iob2 or tags).split()
    if name == "BILUO":  # one row does not show the scheme, but with the tags of the model
        file.write_text("word U-LOC\n")
    with pytest.warns(UserWarning, match="read in IOB2") if iob2 else nullcontext():
        (chunk,) = stream_file(file, task_type=data.task.type, size=9, bad=BadRows(), **given)
    assert chunk.columns["label"][0] == (row[-1:] if name == "BILUO" else row)
