"""The worked example of the documentation, as it stands there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zoo
from test_trainer import trainer_of, weights

import attendrop.extend
from attendrop import AttendropError, Compose, Method, RDrop, regularize

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def source() -> str:
    page = (DOCS / "own_method.md").read_text(encoding="utf-8")
    return page.partition("```python\n")[2].partition("```")[0]


@pytest.fixture(scope="module")
def self_drop(source: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("package") / "self_drop.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("self_drop", path)
    assert spec is not None and spec.loader is not None
    sys.modules["self_drop"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SelfDrop


def test_the_example_is_short(source: str) -> None:
    assert len([line for line in source.splitlines() if line.strip()]) < 40


@pytest.mark.parametrize("name", zoo.ZOO)
def test_it_trains_every_model(self_drop: Any, name: str) -> None:
    model, batch = zoo.build(name), zoo.batch_of(name)
    with regularize(model, self_drop(p=1.0)) as reg:
        loss = reg.loss(batch)
        loss.backward()
        assert reg.logs()["self_drop/dropped"] > 0
    assert loss.isfinite()


def test_it_drops_the_diagonal(self_drop: Any) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert", (40, 40))
    with regularize(model, self_drop(p=0.5)) as reg:
        reg.loss(batch)
        assert reg.logs()["self_drop/dropped"] == pytest.approx(0.5 / 40, rel=0.2)


def test_it_composes_and_resumes(self_drop: Any, tmp_path: Path) -> None:
    method: Method = Compose(self_drop(), RDrop())
    trainer = trainer_of(tmp_path, method, save_strategy="steps", save_steps=3)
    trainer.train()
    resumed = trainer_of(tmp_path, method)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    zoo.assert_same(weights(trainer), weights(resumed))


def test_its_options_are_checked(self_drop: Any) -> None:
    with pytest.raises(AttendropError, match="p=2 must be above 0 and at most 1"):
        self_drop(p=2)


def test_a_package_brings_it_to_the_command_line(source: str, tmp_path: Path) -> None:
    """Installed as pip would: a module, and the metadata that names its entry point."""
    (tmp_path / "self_drop.py").write_text(source, encoding="utf-8")
    metadata = tmp_path / "self_drop-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: self-drop\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(
        "[attendrop.methods]\nself-drop = self_drop:SelfDrop\n", encoding="utf-8"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(attendrop.__file__).parent.parent)])
    run = subprocess.run(
        [sys.executable, "-m", "attendrop", "methods", "--json"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"name": "self-drop"' in run.stdout


def test_everything_that_is_offered_is_documented() -> None:
    for name in attendrop.extend.__all__:
        thing = getattr(attendrop.extend, name)
        assert (thing.__doc__ or "").strip(), name
