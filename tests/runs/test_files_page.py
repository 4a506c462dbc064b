"""docs/guides/files.md lists everything that runs, comparisons and studies write into their folders."""

from __future__ import annotations

import json
import os
import re
import shutil
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
RUN, CHECKPOINT, SEEDS, STUDY = ("a run", "a checkpoint", "the folder of several seeds", "a comparison or a study")
# The folders that have a table of their own: in the table of which folder they are named, and what they hold.
HOLDS = {
    (RUN, "checkpoint-N/"): CHECKPOINT,
    (RUN, "selection/"): RUN,
    (SEEDS, "seedN/"): RUN,
    **{(SEEDS, f".seedN.{what}/"): RUN for what in ("partial", "replaced-N")},
    **{(STUDY, name): RUN for name in ("runs/.NAME.partial/", "runs/NAME/", "best/", ".best.partial/")},
}
# What these runs do not write: of other models, extras, GPUs and methods, and the folder of `attendrop report`.
ELSEWHERE = {"generation_config.json", "vocab.txt", "special_tokens_map.json", "preprocessor_config.json"}
ELSEWHERE |= {".seedN.replaced-N/", ".best.replaced-N/"}
ELSEWHERE |= {"fisher_mask.safetensors", "scaler.pt", "tensorboard/", "report/"}


def tables() -> dict[str, list[str]]:
    """Return the names in the first column of the table of each section, by what the section is of."""
    sections = re.split(r"^## In (?:the folder of )?", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    listed = (re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for section in sections)
    names = [[name for row in rows for name in re.findall(r"`(.*?)`", row)] for rows in listed]
    return dict(zip((RUN, CHECKPOINT, SEEDS, STUDY), names, strict=True))


def pattern(name: str) -> re.Pattern[str]:
    """Make a pattern of a name in the page: a folder's is that of its path."""
    found = re.escape(name.removesuffix("/"))
    found = found.replace("XXXXXXXX", "[0-9a-f]{8}").replace("NAME", "[^/]+").replace(r"\-N", r"\-\d+")
    found = re.sub(r"(seed|_)N", r"\1\\d+", found)
    return re.compile(found + (r"(?:/(?P<rest>.*))?" if name.endswith("/") else ""))


def rows_of(path: str, kind: str) -> list[tuple[str, str]]:
    """Find the rows of the tables that a path in the folder of a kind is named by; fails if there is none."""
    for name in tables()[kind]:
        if (found := pattern(name).fullmatch(path)) is not None:
            rest = found.groupdict().get("rest")
            inner = HOLDS.get((kind, name))
            return [(kind, name), *(rows_of(rest, inner) if rest and inner else [])]
    pytest.fail(f"{path!r}, in the folder of {kind}, is not in {PAGE.name}")


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths below the temporary folder, also of what is there only until it is moved or deleted."""
    found: set[str] = set()

    def look() -> None:
        found.update(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            look()
            result = function(*arguments, **keywords)
            look()
            return result

        return call

    for owner, name in ((os, "replace"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    return found


def test_the_page_lists_what_is_written(
    shared: Path, tmp_path: Path, seen: set[str], stop_at: Callable[[int], Any]
) -> None:
    """A run that is stopped, resumed and replaced; an adapter, a baseline, several seeds, a comparison, a study."""
    rows = (shared / "train.csv").read_text()
    (tmp_path / "train.csv").write_text(f"{rows},,no\n")
    quick = {"max_steps": 1, "epochs": None, "selection_fraction": None, "batch_size": 4}

    def config(output: str, **options: Any) -> Any:
        return tiny.config(shared, str(tmp_path / output), train_file=str(tmp_path / "train.csv"), **options)

    sampled = {"skip_bad_rows": True, "max_train_samples": 24}
    stopped = config("run", method="attendout", pooling="mean", options={"dropout_step": 1}, **sampled)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, checkpoint_seconds=0, callbacks=[stop_at(5)])
    train(stopped, resume=True, checkpoint_seconds=0)
    train(config("run", method="finetune", refit=True, epochs=1, **sampled), overwrite=True)
    train(
        config(
            "adapter", method="finetune", lora={"r": 2}, skip_bad_rows=True, save_steps=1, **quick | {"max_steps": 2}
        )
    )
    run_baseline(config("baseline", skip_bad_rows=True), "frozen", keep_model=True)
    train_seeds(config("seeds", method="finetune", skip_bad_rows=True, **quick), [0, 1])
    data = {"train_file": f"{shared}/train.csv", "eval_file": f"{shared}/dev.csv", "label_column": "label"}
    common = {"text_columns": ["sentence1", "sentence2"], "model": f"{shared}/model", "device": "cpu", "workers": 0}
    compare(output_dir=f"{tmp_path}/comparison", methods="finetune", seeds=1, baselines="majority", max_steps=1,
            **data, **common)  # fmt: skip
    study = {"data": [{"name": "pairs", **data, "text_columns": common["text_columns"]}], "seeds": 1}
    study |= {"models": str(shared / "model"), "methods": "finetune"}
    study |= {"run": {"max_steps": 2, "device": "cpu", "learning_rate": 1e30}}
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    arguments = ["study", f"{tmp_path}/study.yaml", "--output-dir", f"{tmp_path}/study", "--workers", "0", "--quiet"]
    assert cli.main(arguments) == 1  # its run diverges
    kinds = {"run": RUN, "adapter": RUN, "baseline": RUN, "seeds": SEEDS, "comparison": STUDY, "study": STUDY}
    written = [re.sub(r"^\.(.*?)\.(partial|replaced-\d)/", r"\1/", path).split("/", 1) for path in seen if "/" in path]
    matched = {row for folder, path in written for row in rows_of(path, kinds[folder])}
    named = {(kind, name) for kind, names in tables().items() for name in names}
    assert {row for row in named - matched if row[1] not in ELSEWHERE} == set()
