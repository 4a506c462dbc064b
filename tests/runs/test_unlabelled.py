"""Texts without labels in a head's start and in baselines: which are used, when, and what they do not change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts
from attendrop.runs.resolved_run import resolve_run
from attendrop.runs.run_file import read_run_file, run_file
from attendrop.runs.train import train
from attendrop.studies.answer import answer
from attendrop.studies.baselines import run_baseline
from attendrop.studies.executor import open_runner
from attendrop.studies.run_specs import RunSpec
from attendrop.tasks.class_names import unlabelled_decisions

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FIRST, SECOND = ("red", "near", "good", "bird"), ("blue", "far", "bad", "cat")
LINEAR = {"head_init": "linear-probe", "max_steps": 0, "pooling": "mean"}


def texts(start: int, count: int) -> list[str]:
    """Texts with words of one of two classes, in turn."""
    own = (FIRST, SECOND)
    return [
        f"the {own[number % 2][number // 2 % 4]} {tiny.WORDS[number % 8]} {own[number % 2][number // 8 % 4]} {number}"
        for number in range(start, start + count)
    ]


def write(path: Path, found: list[str], header: str = "text", labels: Any = None) -> str:
    rows = found if labels is None else [f"{text},{label}" for text, label in zip(found, labels, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def data(files: Path) -> Path:
    """A folder with a model, twelve rows of two classes to train on, eight to score, and forty texts."""
    for name, start, count in (("train", 0, 12), ("dev", 12, 8)):
        (files / f"{name}.csv").unlink()
        write(files / f"{name}.csv", texts(start, count), "text,label", ["C1", "C2"] * (count // 2))
    write(files / "texts.csv", texts(100, 40))
    return files


def config(folder: Path, output: str = "run", **options: Any) -> RunConfig:
    given = {"text_columns": ("text",), "method": "finetune", "selection_fraction": 0.0, "refit": None}
    return tiny.config(folder, output, **(given | {"unlabelled": str(folder / "texts.csv")} | options))


def parts(folder: Path, **options: Any) -> Parts:
    return resolve_run(config(folder, **options)).parts


def test_texts_of_training_rows_and_repeated_ones_are_left_out_and_those_to_score_on_are_counted(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = [texts(100, 1)[0].upper(), *(f"{text} !" for text in texts(0, 3)), *texts(12, 2)]
    write(data / "texts.csv", [*texts(100, 40), *more])
    numbers = {"texts": 42, "repeated": 4, "not_sampled": 0, "scored": 2}
    found = parts(data)
    assert found.unlabelled["text"] == [*texts(100, 40), *texts(12, 2)] and found.unlabelled_numbers == numbers
    with caplog.at_level(logging.INFO, logger="attendrop"):
        metrics = train(config(data, **LINEAR))
    decision = metrics["head_init"]["unlabelled"]
    assert metrics["data"]["unlabelled"] == numbers | decision
    assert metrics["data"]["rows"] == {"train": 12, "dev": 8}
    told = (
        "There are 42 unlabelled texts for linear models; 4 more repeat texts, or training rows, and are left out.",
        "Of the 42 unlabelled texts 2 are texts of evaluation rows.",
        *unlabelled_decisions([("the head's start", decision)]),
    )
    assert {*told} <= {*caplog.messages}
    assert {*told[:2], *unlabelled_decisions([("finetune", decision)])} <= {*answer([metrics]).notes}


DRAWN = [
    {"shots": 3, "head_init": "linear-probe"},
    {"selection_fraction": 0.25},
    {"eval_file": None, "test_fraction": 0.25, "selection_fraction": 0.2},
    {"protocol": "paper", "selection_fraction": None},
]


@pytest.mark.parametrize("options", DRAWN, ids=str)
def test_they_change_no_other_rows_and_are_none_of_those_drawn(options: dict[str, Any], data: Path) -> None:
    write(data / "texts.csv", [*texts(100, 8), *texts(0, 20)])
    found, without = parts(data, **options), parts(data, unlabelled=None, **options)
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


def test_the_start_of_a_head_is_the_baseline_on_the_same_encoder(data: Path) -> None:
    found = train(config(data, **LINEAR))
    frozen = run_baseline(config(data, "frozen"), "frozen")
    without = train(config(data, "without", unlabelled=None, **LINEAR))
    assert found["score"] == frozen["score"]
    used = found["data"]["unlabelled"]["used"]
    assert used is frozen["data"]["unlabelled"]["used"]
    assert used is not (tiny.weights_of(data / "run") == tiny.weights_of(data / "without"))
    assert "unlabelled" not in without["data"] and "unlabelled" not in without["head_init"]


@pytest.mark.parametrize("name", ["tfidf", "majority"])
def test_other_baselines_use_them_but_the_constant_answer(name: str, data: Path) -> None:
    found, without = (
        run_baseline(config(data, output, unlabelled=given), name)
        for output, given in (("run", str(data / "texts.csv")), ("without", None))
    )
    assert found["data"].get("unlabelled", {}).get("used") == {"tfidf": True, "majority": None}[name]
    assert name == "tfidf" or found["row_scores"] == without["row_scores"]


def test_texts_that_do_harm_are_left_out_and_the_model_is_as_without_them(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmful = {"used": False, "difference": -0.031}
    for module in ("runs.head_init", "studies.baselines"):
        monkeypatch.setattr(f"attendrop.{module}.self_trained", lambda fit, *_, **__: (fit, harmful))
    found, without = train(config(data, **LINEAR)), train(config(data, "without", unlabelled=None, **LINEAR))
    assert tiny.weights_of(data / "run") == tiny.weights_of(data / "without")
    assert "Unlabelled texts in finetune: left out: held-out rows lose 0.031." in answer([found]).notes
    baselines = [run_baseline(config(data, f"tfidf{bool(given)}", unlabelled=given), "tfidf")
                 for given in (None, str(data / "texts.csv"))]  # fmt: skip
    assert baselines[0]["row_scores"] == baselines[1]["row_scores"]
    assert tiny.scores_of(found) == tiny.scores_of(without)


def test_a_large_file_is_sampled_and_the_only_column_is_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attendrop.tasks.class_names.MOST_TEXTS", 15)
    write(data / "texts.csv", texts(100, 40), "message")
    found = parts(data)
    assert found.unlabelled_numbers == {"texts": 15, "repeated": 0, "not_sampled": 25, "scored": 0}
    assert set(found.unlabelled["text"]) < set(texts(100, 40))
    assert parts(data, seed=1).unlabelled["text"] == found.unlabelled["text"]


def test_a_resumed_run_needs_the_same_texts(data: Path) -> None:
    first = train(config(data, **LINEAR))
    assert train(config(data, **LINEAR), resume=True) == first
    write(data / "texts.csv", texts(200, 40))
    with pytest.raises(AttendropError, match="training data changed since"):
        train(config(data, **LINEAR), resume=True)


REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"label_type": "labels"}, None, "and not for labels of type 'labels'; omit it."),
    ({"label_type": "number", "label_column": "number"}, None, "and not for labels of type 'number'; omit it."),
    ({"label_column": "number"}, None, "and not for labels of type 'number'; omit it."),
    ({"text_columns": ("text", "other")}, None, "of one text in files, and these have 2; omit it."),
    ({"task": "cola", "train_file": None, "eval_file": None, "text_columns": (), "label_column": None},
     None, "and not for task 'cola'; omit it."),
    ({}, "a,b\nthe cat,1\n", "texts.csv has no column 'text', as the training file has, and its columns are 'a', 'b'"),
    ({}, "text,b\nthe cat,1\n,2\n", "texts.csv, line 3, column 'text': the text is empty."),
    ({}, "text\nTHE red the red 0\n", "texts.csv has no text that the training rows lack; omit it."),
]  # fmt: skip


@pytest.mark.parametrize(("options", "content", "message"), REFUSED)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], content: str | None, message: str, data: Path) -> None:
    lines = (data / "train.csv").read_text().splitlines()
    rows = [f"{lines[0]},other,number", *(f"{line},a,{number}.5" for number, line in enumerate(lines[1:]))]
    (data / "train.csv").write_text("\n".join(rows) + "\n")
    if content is not None:
        (data / "texts.csv").write_text(content)
    with pytest.raises(AttendropError) as caught:
        parts(data, **({"eval_file": None} | options))
    assert message in str(caught.value)


def test_runs_without_them_keep_their_folder_in_a_study_and_files_have_their_own(data: Path) -> None:
    write(data / "others.csv", texts(200, 9))
    given = (None, str(data / "texts.csv"), str(data / "others.csv"))
    specs = [RunSpec(config(data, unlabelled=each)) for each in given]
    with open_runner(data / "study", workers=0) as runner:
        assert len({runner.folder_of(spec) for spec in specs}) == len(given)
    (data / "run.yaml").write_text(run_file(specs[1].config))
    again = read_run_file(str(data / "run.yaml"))
    assert RunConfig(**again | {"seed": 0, "output_dir": specs[1].config.output_dir}) == specs[1].config
