"""Baselines without fine-tuning: what they are fitted on, how they are scored, and what is left in their folders."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from helpers import tiny

import attendrop
from attendrop.errors import AttendropError
from attendrop.runs import run_folder
from attendrop.runs.config import RunConfig, Source, partial_of
from attendrop.runs.data import resolve_run
from attendrop.runs.export import export_run
from attendrop.runs.inference import evaluate, frozen_features, load_baseline, predict, unit_vectors
from attendrop.runs.model_loading import load_for
from attendrop.runs.train import train
from attendrop.studies import baselines
from attendrop.studies.answer import answer
from attendrop.studies.baselines import defined_for, run_baseline, tune_on_pairs
from attendrop.tasks.base import encode_columns
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.metrics import PREDICTIONS
from attendrop.tasks.types.classification import Classification

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore:.*did not converge")

YES_NO = Classification(("no", "yes"))
NAMES = ("good", "bad", "near", "far")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and data whose label is the word that the first text has, or how often the second text has one."""
    folder = tmp_path_factory.mktemp("baselines")
    tiny.save_tiny_bert(folder / "model")
    for name, count, first in (("train", 40, 0), ("dev", 24, 40)):
        rows = [
            f"{NAMES[n % 4]} {tiny.WORDS[n * 3 % 8]},{'dog ' * (n % 5) + tiny.WORDS[n % 3]},{NAMES[n % 4]},{n % 5}"
            for n in range(first, first + count)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["sentence1,sentence2,label,number", *rows]) + "\n")
    return folder


def config(folder: Path, output: str, **options: Any) -> RunConfig:
    return tiny.config(folder, output, **options)


def test_both_texts_are_read_and_kept_apart(folder: Path, tmp_path: Path) -> None:
    for name in ("train", "dev"):  # the label is which text has the word
        rows = [f"{a},{b},{a == 'cat'}" for a, b in [("cat", "dog"), ("dog", "cat")] * 10]
        (tmp_path / f"{name}.csv").write_text("\n".join(["sentence1,sentence2,label", *rows]) + "\n")
    assert run_baseline(config(tmp_path, "swapped", model=str(folder / "model")), "tfidf")["score"] == 1


def test_a_frozen_encoder_that_was_trained_so_gives_its_first_token(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    (tmp_path / "model" / "modules.json").write_text('[{"path": "p", "type": "models.Pooling"}]')
    (tmp_path / "model" / "p").mkdir()
    (tmp_path / "model" / "p" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    own = config(folder, str(tmp_path / "run"), model=str(tmp_path / "model"))
    found = run_baseline(own, "frozen", keep_model=True)
    given = Source(file=own.eval_file, device="cpu")
    assert evaluate(str(tmp_path / "run"), given)["score"] == found["score"]
    kept = load_baseline(tmp_path / "run")
    assert kept.encoder is not None
    encoded = encode_columns({"text": ["good cat", "near"]}, files_task(["text"], YES_NO), kept.tokenizer, 24)
    features = frozen_features(kept.encoder, kept.tokenizer, YES_NO, encoded, 2, "cpu")
    with torch.no_grad():
        first = kept.encoder.base_model(**kept.tokenizer(["near"], return_tensors="pt")).last_hidden_state[0, 0]
    torch.testing.assert_close(torch.from_numpy(features[1]), first / first.norm())
    hidden = torch.tensor([[[9.0, 9.0], [3.0, 4.0], [4.0, 3.0]]])
    padded_left = unit_vectors(hidden, torch.tensor([[0, 1, 1]]), first=True)
    torch.testing.assert_close(padded_left, torch.tensor([[0.6, 0.8]]))


def test_numbers_are_predicted_and_class_weights_count(folder: Path, tmp_path: Path) -> None:
    numbers = config(folder, str(tmp_path / "number"), label_column="number", label_type="number")
    assert run_baseline(numbers, "tfidf")["all_scores"]["dev"]["pearson"] > 0.95
    with (folder / "train.csv").open() as file:
        header, *rows = file.read().splitlines()
    uneven = [f"cat,{row.split(',')[1]},{'good' if n % 8 else 'bad'},0" for n, row in enumerate(rows)]  # tells nothing
    (tmp_path / "train.csv").write_text("\n".join([header, *uneven]))
    for weights, answers in ((None, 1), ("balanced", 2)):
        given = config(folder, f"{tmp_path}/{weights}", train_file=f"{tmp_path}/train.csv", class_weights=weights,
                       eval_file=f"{tmp_path}/train.csv")  # fmt: skip
        predicted = run_baseline(given, "tfidf")["predicted"]["dev"]
        assert sum(count > 0 for count in predicted.values()) == answers


def test_metrics_are_those_of_a_run(folder: Path) -> None:
    run = train(config(folder, "run", method="finetune", max_steps=1))
    metrics = run_baseline(config(folder, "frozen"), "frozen")
    assert metrics.keys() - {"total_seconds"} <= run.keys()
    assert (metrics["method"], metrics["options"], metrics["config"]["method"]) == ("frozen", {}, "finetune")
    assert metrics == tiny.read_metrics(folder / "frozen")
    assert [row.label for row in answer([run, metrics]).rows] == ["finetune", "frozen"]


def test_selection_rows_are_learnt_from_and_score_a_fit_without_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []

    fit = baselines._Baseline.fit

    def remembering(self: Any, rows: Any) -> Any:
        seen.append(rows["index"][:])
        return fit(self, rows)

    monkeypatch.setattr(baselines._Baseline, "fit", remembering)
    metrics = run_baseline(config(folder, "rows", selection_fraction=0.25), "majority")
    every, kept = map(sorted, seen)
    assert (len(every), len(kept), metrics["data"]["rows"]) == (40, 30, {"train": 40, "dev": 24})
    assert set(kept) < set(every)
    seen.clear()
    run_baseline(config(folder, "paper", protocol="paper"), "majority")
    assert [len(rows) for rows in seen] == [40, 40]


# Folders -------------------------------------------------------------------------------------------------------------


def test_a_baseline_that_was_killed_starts_over_and_a_finished_one_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, given = folder / "again", config(folder, "again")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_folder, "finish_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run_baseline(given, "majority")
    assert (partial_of(place) / "run.json").exists() and not place.exists()
    metrics = run_baseline(given, "majority")
    assert metrics["score"] == 0.25
    with pytest.raises(AttendropError, match="holds a run of majority; name another folder"):
        run_baseline(given, "tfidf")
    with pytest.raises(AttendropError, match=r"began with seed=0, not 1"):
        run_baseline(config(folder, "again", seed=1), "majority")
    with monkeypatch.context() as patch:
        patch.setattr(baselines, "resolve_run", None)
        assert run_baseline(given, "majority") == metrics
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # as finished, but not in its place
        patch.setattr(run_folder, "put_in_place", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run_baseline(given, "majority", overwrite=True)
    assert run_baseline(config(folder, "again", seed=1), "majority", overwrite=True)["seed"] == 1


# Models --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "label"), [("majority", "number"), ("frozen", "label")])
def test_a_kept_baseline_predicts_what_was_scored(name: str, label: str, folder: Path, tmp_path: Path) -> None:
    kind = "class" if label == "label" else "number"
    given = config(folder, f"kept-{name}", label_column=label, label_type=kind)
    metrics = run_baseline(given, name, keep_model=True)
    place, file = Path(given.output_dir), tmp_path / "predicted.csv"
    found = evaluate(str(place), Source(file=given.eval_file, device="cpu"))
    assert found["all_scores"] == pytest.approx(metrics["all_scores"]["dev"], rel=1e-6)
    predict(str(place), Source(file=given.eval_file, text_columns=given.text_columns, device="cpu"), str(file))
    shown = "label" if kind == "class" else "score"
    predicted = [row[shown] for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())]
    scored = pyarrow.parquet.read_table(place / PREDICTIONS)["prediction"].to_pylist()
    if kind == "class":
        assert predicted == [sorted(NAMES)[number] for number in scored]
    else:
        assert list(map(float, predicted)) == pytest.approx(scored, rel=1e-6)
    lines = Path(given.eval_file).read_text(encoding="utf-8").splitlines()
    texts = [(row["sentence1"], row["sentence2"]) for row in csv.DictReader(lines)]
    assert list(map(str, attendrop.load(place).predict(texts))) == predicted


def test_a_kept_baseline_without_the_files_of_its_run_reads_as_it_was_fitted(folder: Path, tmp_path: Path) -> None:
    run_baseline(config(folder, str(tmp_path / "kept"), max_length=6), "frozen", keep_model=True)
    texts = [(tiny.sentence(number), tiny.sentence(number + 3)) for number in range(5)]
    whole = attendrop.load(tmp_path / "kept").predict(texts, probabilities=True)
    for name in ("run.json", "metrics.json"):
        (tmp_path / "kept" / name).unlink()
    assert attendrop.load(tmp_path / "kept").predict(texts, probabilities=True) == whole


def test_a_kept_baseline_is_no_transformer(folder: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "kept")
    run_baseline(config(folder, place), "tfidf", keep_model=True)
    for refused in (
        lambda: export_run(place, str(tmp_path / "exported")),
        lambda: train(config(folder, str(tmp_path / "run"), model=place)),
    ):
        with pytest.raises(AttendropError, match=r"is a baseline without attention"):
            refused()


# SetFit --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_steps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Options of a run of single texts, for which SetFit trains for three steps."""
    monkeypatch.setattr(baselines, "steps", lambda rows, batch_size: 6)
    one: dict[str, Any] = {"text_columns": ("sentence1",), "selection_fraction": 0.0, "method": "finetune"}
    return lambda **options: tiny.config(folder, **(one | options))


@pytest.mark.filterwarnings("ignore")
def test_the_encoder_learns_and_nothing_else_changes(few_steps: Any) -> None:
    run, tuned = resolve_run(few_steps()), []
    rows, task_type = run.parts.train, run.task.type
    for _ in range(2):
        model, tokenizer = load_for(run.config.model, run.task)[:2]
        before = {name: value.clone() for name, value in model.state_dict().items()}
        state = torch.get_rng_state()
        tune_on_pairs(model, tokenizer, task_type.texts(rows), task_type.strata_of(rows), run.config)
        assert torch.equal(torch.get_rng_state(), state)
        after = model.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed and all("encoder" in name or "embeddings" in name for name in changed)
        tuned.append({name: after[name] for name in changed})
    assert all(torch.equal(value, tuned[1][name]) for name, value in tuned[0].items())


def test_what_setfit_cannot_learn_from_is_refused(few_steps: Any) -> None:
    assert "setfit" in defined_for(resolve_run(few_steps()).task)
    with pytest.raises(AttendropError, match=r"'setfit' is not defined .* choose from majority, tfidf, frozen"):
        run_baseline(few_steps(output="refused", text_columns=("sentence1", "sentence2")), "setfit")
