"""Recipes: one for each table and figure of the papers, each with a twin; they parse, start, and say what they are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from helpers import tiny
from helpers.stand_in_data import write_stand_ins

from attendrop.studies.executor import RunSpec, perform
from attendrop.studies.study import read_study

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"
PAPERS = yaml.safe_load((ROOT / "docs" / "paper_tables.yaml").read_text(encoding="utf-8"))
ITEMS = [item for paper in PAPERS for item in paper["items"]]
ALL = sorted(str(path.relative_to(RECIPES)) for path in RECIPES.rglob("*.yaml"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data in the place of those that recipes name."""
    folder = tmp_path_factory.mktemp("recipes")
    tiny.save_tiny_bert(folder / "model", num_hidden_layers=5)  # SuperT prunes a tenth of the heads
    return write_stand_ins(folder)


@pytest.fixture(autouse=True)
def _data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENDROP_DATA", str(folder))
    for name in ("ATTENDROP_DRAWS", "ATTENDROP_ALIKE", "ATTENDROP_CONTROLS", "ATTENDROP_UNLABELLED"):
        monkeypatch.setenv(name, str(folder))


def test_every_item_of_the_papers_has_a_recipe_and_a_twin() -> None:
    assert sorted(item["recipe"] for item in ITEMS) == sorted(path.stem for path in RECIPES.glob("a*.yaml"))
    assert sorted(item["recipe"] for item in ITEMS) == sorted(path.stem for path in RECIPES.glob("small/*.yaml"))
    assert all(len(values) == len(item["columns"]) for item in ITEMS for values in item["rows"].values())


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_is_valid_and_says_how_many_runs_it_has_and_a_twin_is_small(name: str) -> None:
    specs = read_study(str(RECIPES / name)).specs
    found = re.search(r"(\d+) runs", (RECIPES / name).read_text(encoding="utf-8"))
    assert specs and (int(found[1]) == len(specs) if found else "does_it_help" in name)
    for config in [spec.config for spec in specs] if name.startswith(("small", "quick")) else ():
        assert (config.model, config.bf16) == ("minilm", True)
        assert (config.max_train_samples or 2 * (config.shots or 10_000)) <= 1000
        assert (config.max_steps or 10_000) <= 256


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore")  # few rows
def test_the_first_run_of_each_method_of_a_recipe_starts(name: str, folder: Path, tmp_path: Path) -> None:
    first = {spec.method: spec for spec in reversed(read_study(str(RECIPES / name)).specs)}
    for method, spec in first.items():
        rows = None if spec.config.shots else 32
        shortened = {"epochs": None, "max_steps": 4, "max_train_samples": rows, "max_length": 24, "batch_size": 16}
        config = dataclasses.replace(spec.config, model=str(folder / "model"), **shortened)
        outcome = perform(RunSpec(config, spec.baseline), tmp_path / method)
        assert "error" not in outcome, outcome["error"]
        assert outcome["metrics"]["method"] == method
        assert outcome["metrics"]["score"] is not None
