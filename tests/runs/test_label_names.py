"""Rows beside the training rows: names of classes, and texts without labels; and what they do not change."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig, Source, read_run_file, run_file
from attendrop.runs.data import Parts, resolve_run
from attendrop.runs.data import sampled_rows as sampled
from attendrop.runs.inference import evaluate
from attendrop.runs.train import train
from attendrop.studies.answer import answer
from attendrop.studies.baselines import run_baseline
from attendrop.studies.executor import RunSpec, open_runner
from attendrop.tasks.class_names import unlabelled_decisions, unlabelled_told

NAMES = ("good_cat", "badDog", "red")
IN_WORDS = ["bad dog", "good cat", "red"]  # in the order of the classes


def write(path: Path, labels: Any, first: int = 0) -> str:
    rows = [f"{tiny.sentence(number)},{label}" for number, label in enumerate(labels, first)]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def named(files: Path) -> Path:
    """A folder with a model, and texts of three classes, seven rows of each, whose names are words."""
    (files / "train.csv").unlink()
    (files / "dev.csv").unlink()
    write(files / "train.csv", NAMES * 7)
    write(files / "dev.csv", NAMES * 2, 21)
    return files


def config(folder: Path, output: str = "run", **options: Any) -> RunConfig:
    given = {"text_columns": ("text",), "method": "finetune", "selection_fraction": 0.0, "refit": None}
    return tiny.config(folder, output, **(given | options))


def parts(folder: Path, **options: Any) -> Parts:
    return resolve_run(config(folder, **options)).parts


def test_each_class_has_its_name_as_the_last_training_rows(named: Path) -> None:
    found = parts(named)
    assert (len(found.train), found.names) == (24, 3)
    assert found.train["text"][-3:] == IN_WORDS and found.train["label"][-3:] == [0, 1, 2]
    assert found.real.train["text"] == parts(named, label_names="none").train["text"]


DRAWN = [
    {"shots": 3},
    {"eval_file": None, "test_fraction": 0.25, "selection_fraction": 0.2},
    {"method": "attendout", "options": {"reward_data": "split"}},
]


@pytest.mark.parametrize("options", DRAWN, ids=str)
def test_names_change_neither_what_is_drawn_nor_what_is_held_out(options: dict[str, Any], named: Path) -> None:
    found, without = parts(named, **options), parts(named, label_names="none", **options)
    assert found.names == 3 and sampled(found) == sampled(without)
    for part in (found.selection, found.reward, *found.report.values()):
        assert part is None or not {*IN_WORDS} & {*part["text"]}
    assert [*map(len, found.report.values())] == [*map(len, without.report.values())]


def test_a_name_that_is_a_text_to_score_on_is_left_out_and_told(named: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = named / "dev.csv"
    file.write_text(f"{file.read_text()}Good  Cat!,red\n")
    run = config(named, max_steps=1)
    with caplog.at_level(logging.INFO, logger="attendrop"):
        metrics = train(run)
    assert metrics["data"]["rows"] == {"train": 21, "label_names": 2, "dev": 7}
    assert metrics["data"]["names_left_out"] == ["good cat"]
    left_out = "1 name of classes is left out, because rows to score on have the same text: 'good cat'."
    assert left_out in caplog.messages
    (note, *_) = answer([metrics]).notes
    assert note == "2 names of classes are training rows, too." and left_out in answer([metrics]).notes


def test_a_row_of_several_labels_has_the_one_of_its_name(named: Path) -> None:
    write(named / "train.csv", ["good_cat;red", "badDog", "red"] * 4)
    found = parts(named, label_type="labels", eval_file=None, test_fraction=0.25)
    assert found.train["text"][-3:] == IN_WORDS and found.train["label"][-3:] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    (named / "names.csv").write_text("label,text\nred;badDog,a red dog\n")
    options = {"label_type": "labels", "eval_file": None, "test_fraction": 0.25}
    assert parts(named, label_names=str(named / "names.csv"), **options).train["label"][-1] == [1, 0, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"method": "ad-drop", "options": {"attribution": "recorded"}, "gradient_accumulation": 2, "max_steps": 3},
        {"selection_fraction": 0.25, "long_texts": "windows", "max_length": 6, "max_steps": 2},
    ],
    ids=["recorded", "refit"],
)
def test_they_are_rows_like_others_of_a_model(options: dict[str, Any], named: Path) -> None:
    found, without = (train(config(named, given, label_names=given, **options)) for given in ("auto", "none"))
    assert found["data"]["rows"]["train"] == without["data"]["rows"]["train"] == 21
    assert found["data"]["rows"]["label_names"] == 3 and "label_names" not in without["data"]["rows"]
    assert found["data"]["report"]["parts"] == without["data"]["report"]["parts"]
    assert found["baseline"] == without["baseline"]
    assert tiny.weights_of(named / "auto") != tiny.weights_of(named / "none")


def test_a_report_compares_errors_with_real_training_rows_only(named: Path) -> None:
    train(config(named, "run", max_steps=1))
    (named / "new.csv").write_text("text,label\n" + "".join(f"bad dog,{name}\n" for name in NAMES))
    found = evaluate(str(named / "run"), Source(file=str(named / "new.csv")), report=True)["report"]["errors"]
    assert len(found) == 2 and all(error["nearest"]["text"] != "bad dog" for error in found)


@pytest.mark.parametrize(("name", "rows"), [("frozen", 3), ("tfidf", 3), ("majority", None)])
def test_they_are_rows_of_baselines_but_of_the_constant_answer(name: str, rows: int | None, named: Path) -> None:
    write(named / "train.csv", ["red", "red", *NAMES * 6, "red"])
    (named / "names.csv").write_text("label,text\n" + "".join(f"badDog,a dog {n}\n" for n in range(40)))
    found = run_baseline(config(named, selection_fraction=0.25), name)
    assert found["data"]["rows"]["train"] == 21 and found["data"]["rows"].get("label_names") == rows
    if name == "majority":
        told = {"label_names": str(named / "names.csv"), "max_steps": 1}
        assert (
            run_baseline(config(named, "told", **told), name)["predicted"] == found["predicted"] == {"dev": {"red": 6}}
        )
        assert train(config(named, "trained", **told))["baseline"]["dev"]["answer"] == "red"


FILE = "label,text\ngood_cat,a cat that is good\nred,the colour\ngood_cat,what a cat\n"


def test_a_file_has_several_texts_of_a_class_whatever_its_name_and_rows(named: Path) -> None:
    (named / "names.csv").write_text(FILE)
    write(named / "train.csv", NAMES * 12)
    found = parts(named, label_names=str(named / "names.csv"))
    assert found.train["text"][-3:] == ["a cat that is good", "the colour", "what a cat"]
    assert found.train["label"][-3:] == [1, 2, 1]
    assert found.trained_on("names.csv") == "36 rows and 3 texts of names.csv"


# Texts without labels -------------------------------------------------------------------------------------------------

FIRST, SECOND = ("red", "near", "good", "bird"), ("blue", "far", "bad", "cat")
LINEAR = {"head_init": "linear-probe", "max_steps": 0, "pooling": "mean"}


def texts(start: int, count: int) -> list[str]:
    """Texts with words of one of two classes, in turn."""
    own = (FIRST, SECOND)
    return [
        f"the {own[number % 2][number // 2 % 4]} {tiny.WORDS[number % 8]} {own[number % 2][number // 8 % 4]} {number}"
        for number in range(start, start + count)
    ]


def write_texts(path: Path, found: list[str], header: str = "text", labels: Any = None) -> str:
    rows = found if labels is None else [f"{text},{label}" for text, label in zip(found, labels, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def data(files: Path) -> Path:
    """A folder with a model, twelve rows of two classes to train on, eight to score, and forty texts."""
    for name, start, count in (("train", 0, 12), ("dev", 12, 8)):
        (files / f"{name}.csv").unlink()
        write_texts(files / f"{name}.csv", texts(start, count), "text,label", ["C1", "C2"] * (count // 2))
    write_texts(files / "texts.csv", texts(100, 40))
    return files


def given(data: Path) -> dict[str, str]:
    return {"unlabelled": str(data / "texts.csv")}


def test_texts_of_training_rows_and_repeated_ones_are_left_out_and_those_to_score_on_are_counted(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = [texts(100, 1)[0].upper(), *(f"{text} !" for text in texts(0, 3)), *texts(12, 2)]
    write_texts(data / "texts.csv", [*texts(100, 40), *more])
    numbers = {"texts": 42, "repeated": 4, "not_sampled": 0, "skipped": 0, "scored": 2}
    found = parts(data, **given(data))
    assert found.unlabelled["text"] == [*texts(100, 40), *texts(12, 2)] and found.unlabelled_numbers == numbers
    with caplog.at_level(logging.INFO, logger="attendrop"):
        metrics = train(config(data, **given(data), **LINEAR))
    decision = metrics["head_init"]["unlabelled"]
    assert metrics["data"]["unlabelled"] == numbers | decision
    assert metrics["data"]["rows"] == {"train": 12, "dev": 8}
    told = "Of the 42 unlabelled texts 2 are texts of evaluation rows."
    assert {told, *unlabelled_decisions([("the head's start", decision)])} <= {*caplog.messages}
    assert {told, *unlabelled_decisions([("finetune", decision)])} <= {*answer([metrics]).notes}


def test_invalid_rows_of_them_are_skipped_if_asked_and_counted(data: Path) -> None:
    (data / "texts.csv").write_text("text,channel\nthe cat,mail\na,b,c\n,mail\na dog,mail\n")
    with pytest.raises(AttendropError, match="line 3: 3 fields where the header has 2"):
        parts(data, **given(data))
    found = parts(data, **given(data), skip_bad_rows=True)
    assert found.unlabelled["text"][:] == ["the cat", "a dog"] and found.unlabelled_numbers["skipped"] == 2
    assert next(unlabelled_told(found.unlabelled_numbers)).endswith("; 2 invalid rows skipped.")


@pytest.mark.parametrize("options", DRAWN[:2], ids=str)
def test_they_change_no_other_rows_and_are_none_of_those_drawn(options: dict[str, Any], data: Path) -> None:
    write_texts(data / "texts.csv", [*texts(100, 8), *texts(0, 20)])
    found, without = parts(data, **given(data), **options), parts(data, **options)
    held = [part for part in (found.selection, found.reward) if part is not None]
    for one, other in zip(
        [found.train, *held, *found.report.values()],
        [without.train, *(p for p in (without.selection, without.reward) if p is not None), *without.report.values()],
        strict=True,
    ):
        assert one["text"] == other["text"]
    used = set(found.unlabelled["text"])
    assert not used & {*found.train["text"]} and set(texts(100, 8)) <= used
    scored = {text for part in found.report.values() for text in part["text"]}
    assert all(set(part["text"]) <= scored or not used & set(part["text"]) for part in held)


def test_a_resumed_run_needs_the_same_texts(data: Path) -> None:
    first = train(config(data, **given(data), **LINEAR))
    assert train(config(data, **given(data), **LINEAR), resume=True) == first
    write_texts(data / "texts.csv", texts(200, 40))
    with pytest.raises(AttendropError, match="training data changed since"):
        train(config(data, **given(data), **LINEAR), resume=True)


def test_runs_without_them_keep_their_folder_in_a_study_and_files_have_their_own(data: Path) -> None:
    write_texts(data / "others.csv", texts(200, 9))
    files = (None, str(data / "texts.csv"), str(data / "others.csv"))
    specs = [RunSpec(config(data, unlabelled=each)) for each in files]
    with open_runner(data / "study", workers=0) as runner:
        assert len({runner.folder_of(spec) for spec in specs}) == len(files)
    (data / "run.yaml").write_text(run_file(specs[1].config))
    again = read_run_file(str(data / "run.yaml"))
    assert RunConfig(**again | {"seed": 0, "output_dir": specs[1].config.output_dir}) == specs[1].config


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("label_names", "label,text\nbad_dog,no\n", {}, "line 2: the label 'bad_dog' is not among those of training"),
    ("label_names", "label,text\nred,\n", {}, "line 2: the text is empty"),
    ("label_names", FILE, {"text_columns": ("text", "other")}, "of rows of one text in files, and these have 2"),
    ("label_names", FILE, {"label_type": "number"}, "and not for labels of type 'number'"),
    ("unlabelled", "text\nnear\n", {"label_type": "labels"}, "and not for labels of type 'labels'"),
    ("unlabelled", "text\nnear\n", {"text_columns": ("text", "other")}, "and these have 2"),
    ("unlabelled", "a,b\nthe cat,1\n", {}, "has no column 'text', as the training file has"),
    ("unlabelled", "text,b\nthe cat,1\n,2\n", {}, "line 3, column 'text': the text is empty."),
    ("unlabelled", f"text\n{tiny.sentence(0).upper()}\n", {}, "has no text that the training rows lack"),
]


@pytest.mark.parametrize(("option", "content", "options", "message"), REFUSED)
def test_a_file_that_cannot_be_used_is_refused(
    option: str, content: str, options: dict[str, Any], message: str, named: Path
) -> None:
    header, *lines = (named / "train.csv").read_text().splitlines()
    label = "0.5" if options.get("label_type") == "number" else None
    rows = [f"{line.rpartition(',')[0]},{label or line.rpartition(',')[2]},a" for line in lines]
    (named / "train.csv").write_text("\n".join([f"{header},other", *rows]))
    (named / "given.csv").write_text(content)
    with pytest.raises(AttendropError, match=re.escape(message)):
        parts(named, **({"eval_file": None, option: str(named / "given.csv")} | options))
