"""Whole runs on folders of images: training, scores, predictions, other commands, and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import tiny, tiny_images
from helpers.command_line import Captured, assert_refused

from attendrop import cli

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for family in tiny_images.FAMILIES:
        tiny_images.save_tiny_model(folder / family, family)
    tiny_images.write_folder(folder / "train", 0, 60)
    tiny_images.write_folder(folder / "dev", 100, 20)
    tiny_images.write_folder(folder / "new", 100, 20, labelled=False)
    assert cli.main(train(folder, "run", "--epochs", "4", "--method", "finetune")) == 0
    return folder


def train(folder: Path, name: str, *more: str, family: str = "dinov2") -> list[str]:
    return [
        *("train", "--train-file", f"{folder}/train", "--eval-file", f"{folder}/dev", "--model", f"{folder}/{family}"),
        *("--output-dir", f"{folder}/{name}", "--batch-size", "8", "--learning-rate", "3e-3"),
        *("--device", "cpu", "--quiet", *more),
    ]


def test_a_run_learns_from_folders(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    assert metrics["score"] == metrics["all_scores"]["dev"]["accuracy"] >= 0.9
    assert metrics["baseline"]["dev"]["scores"]["accuracy"] < 0.6
    assert metrics["data"]["classes"] == ["left", "right"] and metrics["data"]["rows"] == {"train": 60, "dev": 20}
    assert metrics["training"]["head_start"] == "frozen" and metrics["training"]["pooling"] is None
    part = metrics["data"]["report"]["parts"]["train"]
    assert part["classes"] == {"left": 34, "right": 26} and "truncated" not in part


def test_evaluation_repeats_the_score_and_a_folder_is_predicted(folder: Path, capsys: Captured) -> None:
    run, score = f"{folder}/run", tiny.read_metrics(folder / "run")["score"]
    for more in ([], ["--eval-file", f"{folder}/dev", "--batch-size", "3"]):
        assert cli.main(["evaluate", run, *more, "--device", "cpu", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["score"] == score
    predict = ["predict", run, "--device", "cpu", "--quiet", "--probabilities", "--predict-file"]
    assert cli.main([*predict, f"{folder}/new", "--output", f"{folder}/out.csv"]) == 0
    rows = list(csv.DictReader((folder / "out.csv").open()))
    assert list(rows[0]) == ["file", "label", "probability", "probability_left", "probability_right"]
    assert [row["file"] for row in rows] == sorted(map(str, (folder / "new").iterdir()))
    known = {path.name: path.parent.name for path in (folder / "dev").rglob("*.*")}
    assert np.mean([known[Path(row["file"]).name] == row["label"] for row in rows]) == score
    (folder / "list.csv").write_text("image,note\n" + "".join(f"new/{name},x\n" for name in sorted(known)))
    assert cli.main([*predict, f"{folder}/list.csv", "--keep-columns", "--output", f"{folder}/again.jsonl"]) == 0
    again = [json.loads(line) for line in (folder / "again.jsonl").read_text().splitlines()]
    assert [row["predicted_label"] for row in again] == [row["label"] for row in rows]
    assert {row["note"] for row in again} == {"x"}


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_images(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(folder / "train", tmp_path / "train")
    arguments = train(folder, "changed", "--epochs", "1", "--train-file", f"{tmp_path}/train")
    assert cli.main(arguments) == 0
    (folder / "changed" / "metrics.json").unlink()
    tiny_images.draw(7, "left").save(sorted(tmp_path.rglob("*.png"))[0])
    assert cli.main([*arguments, "--resume"]) == 2
    assert "data" in capsys.readouterr().err


@pytest.mark.slow
def test_one_folder_is_divided_and_equal_images_stay_together(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "train", tmp_path / "all")
    first = sorted((tmp_path / "all" / "left").iterdir())[0]
    for number in range(6):
        shutil.copy(first, tmp_path / "all" / "left" / f"copy{number}{first.suffix}")
    shutil.copy(first, tmp_path / "all" / "right" / first.name)
    assert cli.main([
        *("train", "--train-file", f"{tmp_path}/all", "--test-fraction", "0.2", "--model", f"{folder}/vit"),
        *("--output-dir", f"{tmp_path}/run", "--max-steps", "2", "--device", "cpu", "--quiet"),
    ]) == 0  # fmt: skip
    report = tiny.read_metrics(tmp_path / "run")["data"]["report"]
    assert report["parts"]["dev"]["in_train"] == 0
    counted = sum(part["duplicates"] for part in report["parts"].values())
    assert counted == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pooling", "mean"), "pooling 'mean' is for tasks with one prediction for a whole text"),
        (("--long-texts", "windows"), "long-texts 'windows' is for tasks with one prediction for a text"),
        pytest.param(("--method", "neftune"), "ViTForImageClassification embeds no words here", marks=pytest.mark.slow),
        pytest.param(("--method", "unidrop"), "has no 'input_ids' to drop; set token=0", marks=pytest.mark.slow),
        pytest.param(("--label-type", "class"), "cannot be loaded", marks=pytest.mark.slow),
        (("--train-file", "nowhere"), "There is no file or folder 'nowhere'"),
        (("--eval-file", "nowhere"), "there is no file or folder nowhere."),
        pytest.param(
            ("--model", "minilm"), "Models of the family bert have no class for images", marks=pytest.mark.slow
        ),
    ],
)
def test_what_does_not_apply_is_refused(
    folder: Path, tmp_path: Path, options: tuple[str, ...], message: str, capsys: Captured
) -> None:
    asked = [*train(folder, "other", *options, family="vit"), "--output-dir", str(tmp_path / "out")]
    assert_refused(asked, tmp_path / "out", message, capsys)


def test_a_processor_of_another_size_is_refused(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(folder / "vit", tmp_path / "vit")
    file = tmp_path / "vit" / "preprocessor_config.json"
    options = json.loads(file.read_text()) | {"size": {"height": 32, "width": 32}}
    file.write_text(json.dumps(options))
    asked = train(folder, "other", "--model", f"{tmp_path}/vit")
    message = "makes images of 3 x 32 x 32, which its model does not read"
    assert_refused([*asked, "--output-dir", f"{tmp_path}/out"], tmp_path / "out", message, capsys)


@pytest.mark.slow
def test_a_bad_image_stops_a_run_or_is_skipped(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(folder / "train", tmp_path / "train")
    (tmp_path / "train" / "left" / "cut.jpg").write_bytes(b"no image")
    asked = [*train(folder, "other", "--train-file", f"{tmp_path}/train"), "--output-dir", f"{tmp_path}/out"]
    assert_refused(asked, tmp_path / "out", "left/cut.jpg, column 'image': the image cannot be read", capsys)
    assert cli.main([*asked, "--skip-bad-rows", "--max-steps", "1", "--method", "finetune"]) == 0
    skipped = json.loads((tmp_path / "out" / "skipped_rows.jsonl").read_text())
    assert (
        skipped["place"] == "left/cut.jpg"
        and f"Skipped 1 invalid row ({tmp_path}/train: left/cut.jpg)" in capsys.readouterr().err
    )
