"""Recipes: one for each table and figure of the papers, each with a twin; they parse, start, and say what they are."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from helpers import tiny
from helpers.stand_in_data import write_stand_ins

from attendrop.runs.run_folder import read_metrics
from attendrop.studies.study import make_report
from attendrop.studies.study_file import read_study
from attendrop.studies.units import Job, Result, Unit
from attendrop.studies.worker import run_unit

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
    for name in ("ATTENDROP_DRAWS", "ATTENDROP_ALIKE"):
        monkeypatch.setenv(name, str(folder))


def test_every_item_of_the_papers_has_a_recipe_and_a_twin() -> None:
    assert sorted(item["recipe"] for item in ITEMS) == sorted(path.stem for path in RECIPES.glob("a*.yaml"))
    assert sorted(item["recipe"] for item in ITEMS) == sorted(path.stem for path in RECIPES.glob("small/*.yaml"))
    assert all(len(values) == len(item["columns"]) for item in ITEMS for values in item["rows"].values())


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_is_valid_and_says_how_many_runs_it_has(name: str) -> None:
    units = read_study(str(RECIPES / name)).units
    assert units
    found = re.search(r"(\d+) runs", (RECIPES / name).read_text(encoding="utf-8"))
    assert found or "does_it_help" in name
    assert not found or len(units) == int(found[1])


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith(("small", "quick"))])
def test_a_twin_is_small(name: str) -> None:
    for unit in read_study(str(RECIPES / name)).units:
        config = unit.config
        assert (config.model, config.bf16) == ("minilm", True)
        assert (config.max_train_samples or 2 * (config.shots or 10_000)) <= 1000
        assert (config.max_steps or 10_000) <= 256


def start(unit: Unit, folder: Path, output: Path) -> dict[str, Any]:
    """Train a unit for four steps of at most two epochs, on the stand-ins."""
    rows = None if unit.config.shots else 32
    shortened = {"epochs": None, "max_steps": 4, "max_train_samples": rows, "max_length": 24, "batch_size": 16}
    config = dataclasses.replace(unit.config, model=str(folder / "model"), **shortened)
    return run_unit(Job(Unit(config, unit.baseline), output))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore")  # few rows
def test_the_first_run_of_each_method_of_a_recipe_starts(name: str, folder: Path, tmp_path: Path) -> None:
    units = read_study(str(RECIPES / name)).units
    first = {unit.method: unit for unit in reversed(units)}
    for method, unit in first.items():
        metrics = start(unit, folder, tmp_path / method)
        assert metrics["method"] == method
        assert metrics["score"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(item["recipe"] for item in ITEMS))
@pytest.mark.filterwarnings("ignore")  # few rows
def test_every_data_set_of_a_recipe_starts(name: str, folder: Path, tmp_path: Path) -> None:
    units = read_study(str(RECIPES / f"{name}.yaml")).units
    for number, unit in enumerate({str(unit.config.task): unit for unit in units}.values()):
        assert start(unit, folder, tmp_path / str(number))["score"] is not None


# The page ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script of the page, which takes results from a folder of the test."""
    spec = importlib.util.spec_from_file_location("make_paper_tables", ROOT / "tools" / "make_paper_tables.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


def keep_results(name: str, folder: Path) -> Path:
    """Keep the results of a recipe's study as if it had run, AD-DROP ahead by 0.01 to 0.03. Returns their folder."""
    finished_study(name, folder / "study" / name)
    command = [sys.executable, str(ROOT / "benchmarks" / "keep_results.py")]
    subprocess.run([*command, str(folder / "study" / name), str(folder / "results" / name)], check=True)
    return folder / "results" / name


def finished_study(name: str, output: Path) -> None:
    study, results = read_study(str(RECIPES / f"{name}.yaml")), {}
    for setting in study.settings:
        results[setting.name] = []
        for unit in setting.units:
            seed = unit.config.seed
            known = {"task": unit.config.task, "model": "minilm", "metric": "accuracy", "train_seconds": 2.0}
            known |= {"method": unit.method, "options": unit.options, "seed": seed, "data": {"rows": {"train": 500}}}
            known |= {"config": {}, "all_scores": {}}
            score = 0.6 + 0.01 * seed + (0.01 + 0.01 * (seed % 3)) * (unit.method == "ad-drop")
            folder = output / "runs" / unit.folder_name(unit.key())
            folder.mkdir(parents=True)
            (folder / "metrics.json").write_text(json.dumps(known | {"score": score, "output_dir": str(folder)}))
            (folder / "run.json").write_text(json.dumps({"config": unit.config.as_dict()}))
            results[setting.name].append(Result(unit, folder, read_metrics(folder)))
    report = make_report(study, results)
    for kind, text in {"json": report.json(), "md": report.markdown(), "csv": report.csv()}.items():
        (output / f"answer.{kind}").write_text(text)


def section(page: str, item: str) -> str:
    """The part of a page about an item of AD-DROP."""
    return page.partition("\n## AD-DROP\n")[2].partition(f"### {item}\n")[2].partition("\n### ")[0]


@pytest.mark.slow
def test_a_twin_that_was_run_has_a_table_of_its_own(pages: ModuleType, tmp_path: Path) -> None:
    before = section(pages.page(), "Table 3")
    assert "| BERT base | 61.8 ± 1.9 | 89.4 ± 0.5 | 85.2 ± 1.3 | 71.2 ± 1.2 |" in before
    assert "80 runs, bert-base-uncased, roberta-base, 5 seeds. Not run: needs a GPU" in before
    assert "40 runs, minilm, 192 training rows, 120 steps, 5 seeds. Not run." in before
    lines = (keep_results("small/ad_drop_table3", tmp_path) / "runs.jsonl").read_text().splitlines()
    assert len(lines) == 40
    assert str(tmp_path) not in "".join(lines)
    after = section(pages.page(), "Table 3")
    assert after.startswith(before[: before.index("Twin")])
    assert "Twin [small/ad_drop_table3]" in after
    assert "| finetune | 62.0 ± 1.6 | 62.0 ± 1.6 | 62.0 ± 1.6 | 62.0 ± 1.6 |" in after
    assert re.search(r"\| AD-DROP( \| 63\.8 ± \d\.\d \(\+1\.8 \[\+0\.\d, \+\d\.\d\]\)){4} \|", after)
    assert re.search(r"torch \d.*, transformers \d.*; \d{4}-\d\d-\d\d\.", after)


@pytest.mark.slow
def test_costs_stand_where_the_paper_reports_them(pages: ModuleType, tmp_path: Path) -> None:
    for name in ("small/ad_drop_table7", "small/ad_drop_table2"):
        keep_results(name, tmp_path)
    page = pages.page()
    assert ", ×1.00 |" in section(page, "Table 7")
    assert "×" not in section(page, "Table 2")
