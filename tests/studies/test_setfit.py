"""The baseline SetFit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny

from attendrop import AttendropError
from attendrop.runs.config import RunConfig, Source
from attendrop.runs.inference import evaluate
from attendrop.runs.model_loading import load_for
from attendrop.runs.resolved_run import resolve_run
from attendrop.studies import baselines
from attendrop.studies.baselines import defined_for, run_baseline, tune_on_pairs

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.save_tiny_bert(tmp_path / "model")
    tiny.write_data(tmp_path)
    monkeypatch.setattr(baselines, "steps", lambda rows, batch_size: 6)
    return tmp_path


def config(folder: Path, **options: Any) -> RunConfig:
    one = {"text_columns": ("sentence1",), "selection_fraction": 0.0, "method": "finetune"}
    return tiny.config(folder, **(one | options))


def test_the_encoder_learns_and_nothing_else_changes(folder: Path) -> None:
    run = resolve_run(config(folder))
    rows, task_type = run.parts.train, run.task.type
    tuned = []
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


def test_it_is_scored_as_other_baselines_are_and_its_model_predicts(folder: Path) -> None:
    scored = run_baseline(config(folder, output="scored"), "setfit", keep_model=True)
    assert scored["method"] == "setfit" and scored["row_scores"]["rows"] == 12
    found = evaluate(scored["output_dir"], Source(file=str(folder / "dev.csv"), device="cpu"))
    assert found["score"] == scored["score"]


def test_what_it_cannot_learn_from_is_refused(folder: Path) -> None:
    assert "setfit" in defined_for(resolve_run(config(folder)).task)
    pairs = config(folder, text_columns=("sentence1", "sentence2"), output="pairs")
    with pytest.raises(AttendropError, match=r"'setfit' is not defined .* choose from majority, tfidf, frozen"):
        run_baseline(pairs, "setfit")
    several = config(folder, label_type="labels", output="several")
    with pytest.raises(AttendropError, match=r"'setfit' is not defined"):
        run_baseline(several, "setfit")
    tiny.save_tiny_gpt2(folder / "gpt2")
    with pytest.raises(AttendropError, match="for encoders"):
        run_baseline(config(folder, model=str(folder / "gpt2"), output="gpt2-run"), "setfit")
