"""docs/guides/files.md lists everything that runs, comparisons and studies write into their folders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from attendrop import cli
from attendrop.runs.train import train, train_seeds
from attendrop.studies.baselines import run_baseline
from attendrop.studies.compare import compare

PAGE = Path(__file__).parents[2] / "docs/guides/files.md"


def patterns() -> list[re.Pattern[str]]:
    """Make patterns of all names in the tables of the page; ``NAME`` alone, the folder of a run, is no name."""
    rows = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    names = {part for row in rows for name in re.findall(r"`(.*?)`", row) for part in name.split("/")} - {"", "NAME"}
    found = (re.escape(name).replace("XXXXXXXX", "[0-9a-f]{8}").replace("NAME", ".+") for name in names)
    return [re.compile(re.sub(r"(seed|_|\\-)N", r"\1\\d+", name)) for name in found]


def test_the_page_lists_what_is_written(shared: Path, tmp_path: Path, stop_at: Callable[[int], Any]) -> None:
    """Runs that are stopped and finished, an adapter, a baseline, several seeds, a comparison, a study that fails."""
    rows = (shared / "train.csv").read_text()
    (tmp_path / "train.csv").write_text(f"{rows},,no\n")
    quick = {"max_steps": 1, "epochs": None, "selection_fraction": None, "batch_size": 4, "method": "finetune"}

    def config(output: str, **options: Any) -> Any:
        options = {"skip_bad_rows": True, "train_file": str(tmp_path / "train.csv"), **options}
        return tiny.config(shared, str(tmp_path / output), **options)

    stopped = config("stopped", method="attendout", options={"dropout_step": 1}, max_train_samples=24)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, checkpoint_seconds=0, callbacks=[stop_at(5)])
    train(config("run", pooling="mean", **quick, max_train_samples=24))
    train(config("adapter", lora={"r": 2}, **quick))
    run_baseline(config("baseline"), "frozen", keep_model=True)
    train_seeds(config("seeds", **quick), [0, 1])
    data = {"train_file": f"{shared}/train.csv", "eval_file": f"{shared}/dev.csv", "label_column": "label"}
    data |= {"text_columns": ["sentence1", "sentence2"]}
    how = {"seeds": 1, "baselines": "majority", "max_steps": 1, "model": f"{shared}/model", "device": "cpu"}
    compare(output_dir=f"{tmp_path}/comparison", methods="finetune", workers=0, **how, **data)
    study = {"data": [{"name": "pairs", **data}], "seeds": 1, "models": str(shared / "model"), "methods": "finetune"}
    study |= {"run": {"max_steps": 2, "device": "cpu", "learning_rate": 1e30}}  # which diverges
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    arguments = ["study", f"{tmp_path}/study.yaml", "--output-dir", f"{tmp_path}/study", "--workers", "0", "--quiet"]
    assert cli.main(arguments) == 1
    written = {path.relative_to(tmp_path).parts[1:] for path in tmp_path.rglob("*") if path.is_file()}
    names = {name for parts in written for name in (parts if parts[:1] != ("runs",) else parts[:1] + parts[2:])}
    assert len(names) > 30
    assert [name for name in names if not any(each.fullmatch(name) for each in patterns())] == []
