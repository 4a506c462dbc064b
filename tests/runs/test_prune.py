"""`attendrop prune`: a run's model pruned, reported, used like any other."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from helpers import tiny
from helpers.zoo import DEBERTA_V3
from rich.console import Console

import attendrop
from attendrop import cli
from attendrop.cli.progress import TrainingProgress
from attendrop.errors import AttendropError
from attendrop.runs.fitting import balanced_loss
from attendrop.runs.folder_lock import locked
from attendrop.runs.model_loading import load_for
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, and finished runs: plain in ``run``, of AttendOut's pruning version in ``attendout``,
    and of its default in ``effects``."""
    folder = tmp_path_factory.mktemp("pruning")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    train(tiny.config(folder, "run", method="finetune", epochs=1))
    options = {"variant": "pruning", "dropout_step": 2}
    train(tiny.config(folder, "attendout", method="attendout", options=options, epochs=1))
    train(tiny.config(folder, "effects", method="attendout", options={"dropout_step": 1}, epochs=1))
    return folder


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure for moments only: what it is that is measured has tests of its own."""
    monkeypatch.setattr("attendrop.runs.speed.SECONDS", 0.01)
    monkeypatch.setattr("attendrop.pruning.comparison.RESAMPLES", 20)


def pruned(folder: Path, output: Path, run: str = "run", **options: Any) -> dict[str, Any]:
    return prune_run(str(folder / run), str(output), device="cpu", **options)


def arguments(folder: Path, output: Path | str, *more: str, run: str = "run") -> list[str]:
    return ["prune", f"{folder}/{run}", "--output-dir", str(output), "--device", "cpu", *more]


def small_model(family: str) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    shared = {"vocab_size": 5 + len(tiny.WORDS), "max_position_embeddings": 40, **sizes}
    if family == "albert":
        return hf.AlbertModel(hf.AlbertConfig(embedding_size=8, **shared))
    if family == "mpnet":
        return hf.MPNetModel(hf.MPNetConfig(**shared))
    if family == "t5":
        ids = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 3}  # the last token of tiny BERT's texts
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}
        return hf.T5Model(hf.T5Config(vocab_size=shared["vocab_size"], **sizes, **ids))
    return hf.DebertaV2Model(hf.DebertaV2Config(**shared, **DEBERTA_V3))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "fast"), [("albert", False), ("t5", False), ("mpnet", False), ("deberta-v3", True)])
def test_other_families_are_trained_pruned_and_used(family: str, fast: bool, tmp_path: Path, capsys: Captured) -> None:
    tiny.save_tiny_bert(tmp_path / "model")
    for file in ("config.json", "model.safetensors"):
        (tmp_path / "model" / file).unlink()
    small_model(family).save_pretrained(tmp_path / "model")
    tiny.write_data(tmp_path)
    options = {"cross_tuning": False}
    train(tiny.config(tmp_path, "run", method="ad-drop", options=options, epochs=1))
    found = pruned(tmp_path, tmp_path / "light", layers="1,", recover_epochs=1)
    assert (found["pruned"]["layers"], found["pruned"]["fast"]) == ([1], fast)
    assert cli.main(["evaluate", f"{tmp_path}/light"]) == 0
    assert f"accuracy              {found['score']:.4f}" in capsys.readouterr().out
    exported = cli.main(["export", f"{tmp_path}/light", "--output", f"{tmp_path}/out", "--format", "torch"])
    assert exported == (0 if fast else 2)
    assert fast or "constant attention only under this library" in capsys.readouterr().err


@pytest.mark.parametrize("tolerance", [0.0, 2.0])
def test_auto_finds_the_most_that_surely_cost_no_more(
    folder: Path, tmp_path: Path, capsys: Captured, tolerance: float
) -> None:
    assert cli.main(arguments(folder, tmp_path / "out", "--json", "--tolerance", str(tolerance))) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == tiny.read_metrics(tmp_path / "out")
    what = found["pruned"]
    scores = [what["scores"][str(count)] for count in range(3)]
    assert len(what["layers"]) == (2 if tolerance else 0)
    for count, found_at in what["differences"].items():
        assert found_at["value"] == pytest.approx(what["scores"][count] - scores[0])
        assert found_at["low"] < -0.2 < 0.2 < found_at["high"]
    assert (what["ranked_by"], what["chosen_on"], what["of"]) == ("importance", "selection", 2)
    least = sorted(what["harm"], key=what["harm"].__getitem__)[: len(what["layers"])]
    assert sorted(f"encoder.{layer}" for layer in what["layers"]) == sorted(least)
    assert what["selection"]["before"]["accuracy"] == scores[0]
    assert what["all_scores"]["dev"]["before"] == tiny.read_metrics(folder / "run")["all_scores"]["dev"]


def test_six_rows_at_chance_take_no_layer(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    tiny.write_csv(tmp_path / "train.csv", ["no", "yes", "yes", "no"] * 15)
    config = tiny.config(folder, str(tmp_path / "run"), method="finetune", epochs=1, learning_rate=1e-7)
    train(dataclasses.replace(config, train_file=str(tmp_path / "train.csv")))
    assert cli.main(arguments(tmp_path, tmp_path / "out")) == 0
    out = capsys.readouterr().out
    assert "constant attention  0 of 2 layers" in out
    for tried in (r"  0 layers +0\.\d{4}", r"  1 layer +0\.\d{4}  [+-]0\.\d{4}  \(-.* to \+.*\)", r"  2 layers +0\."):
        assert re.search(rf"^{tried}", out, re.MULTILINE)
    assert re.search(r"not known +6 rows cannot tell whether \d layers? would cost more than the tolerance of 0: ", out)
    assert "What is not known: 6 rows" in (tmp_path / "out" / "README.md").read_text()


def test_without_a_pruned_layer_there_is_no_difference_and_no_speed(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert cli.main(arguments(folder, tmp_path / "out")) == 0
    out, err = capsys.readouterr()
    assert "constant attention  0 of 2 layers\n" in out
    for pattern in (
        r"selection score +accuracy \d\.\d{4}\n",
        r"dev score +accuracy \d\.\d{4}\n",
        r"parameters +4,610\n",
        r"weights on disk +\d\d KiB",
    ):
        assert re.search(pattern, out), (pattern, out)
    assert "speed" not in out + err
    for end in re.findall(r"[+-]\d\.\d{4}", out):
        assert abs(float(end)) <= 1
    assert "would accept" not in out
    found = tiny.read_metrics(tmp_path / "out")["pruned"]
    assert found["speed"] is found["selection"]["difference"] is found["all_scores"]["dev"]["difference"] is None
    card = (tmp_path / "out" / "README.md").read_text()
    assert "No layer was pruned." in card
    assert "times that of" not in card


def test_each_pass_is_shown(folder: Path, tmp_path: Path) -> None:
    stream = io.StringIO()
    progress = TrainingProgress(Console(file=stream, force_terminal=True, width=120))
    told = []

    def on_pass(what: str, done: int, total: int) -> None:
        told.append((what, done, total))
        progress.show(what, done, total)

    pruned(folder, tmp_path / "out", tolerance=2.0, recover_epochs=1, on_pass=on_pass, callbacks=[progress])
    progress.close()
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert all(done < total for _, done, total in told)
    assert [what for what, _, _ in told[:3]] == [
        "loss without encoder.0",
        "loss without encoder.1",
        "scoring 0 of 2 layers pruned on selection",
    ]
    assert "scoring 2 of 2 layers pruned on dev" in stream.getvalue()
    assert "training" in stream.getvalue()


def test_pruning_that_was_stopped_can_be_started_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("attendrop.runs.prune.write_json", stopped)
        with pytest.raises(KeyboardInterrupt):
            pruned(folder, tmp_path / "out", layers="1,")
    assert not list(tmp_path.iterdir())
    killed = tmp_path / ".out.unfinished" / "out"  # a process that is killed cannot clean up
    killed.mkdir(parents=True)
    (killed / "model.safetensors").write_bytes(b"half")
    with locked(killed.parent), pytest.raises(AttendropError, match="in use by process"):
        pruned(folder, tmp_path / "out", layers="1,")
    pruned(folder, tmp_path / "out", layers="1,")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert attendrop.load(tmp_path / "out").layers == (1,)
    permissions = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len(permissions) == 1


def test_a_pruned_folder_is_used_like_a_run(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    found = pruned(folder, out, layers="0,1")
    assert (found["pruned"]["layers"], found["pruned"]["speed"]["low"] > 0) == ([0, 1], True)
    counts = found["pruned"]["parameters"]
    assert counts["before"] - counts["after"] == 2 * 3 * (16 * 16 + 16)
    assert found["pruned"]["bytes"]["after"] < found["pruned"]["bytes"]["before"]
    assert attendrop.load(out).layers == (0, 1)
    assert cli.main(["evaluate", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all_scores"] == found["all_scores"]["dev"]
    answers = str(tmp_path / "answers.csv")
    assert cli.main(["predict", str(out), "--predict-file", f"{folder}/dev.csv", "--output", answers]) == 0
    assert len(Path(answers).read_text().splitlines()) == 13
    card = (out / "README.md").read_text()
    assert "without attention in 2 of 2 layers" in card
    assert "attendrop.load" in card


def test_a_pruned_model_is_used_with_its_own_tokenizer_only(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pruned(folder, out, layers="1,")
    other = hf.BertTokenizer(vocab={f"[{n}]": n for n in range(90)} | {"[UNK]": 90})
    other.save_pretrained(out)
    with pytest.raises(AttendropError, match=r"has 9. tokens, its model only 21: they do not belong together"):
        load_for(str(out), None)
    (out / "tokenizer.json").unlink()
    with pytest.raises(AttendropError, match=r"lacks tokenizer\.json"):
        load_for(str(out), None)
    (out / "run.json").unlink()
    with pytest.raises(AttendropError, match="has no tokenizer"):
        load_for(str(out), None)


def test_recovery_trains_with_the_layers_in_place(folder: Path, tmp_path: Path) -> None:
    plain = pruned(folder, tmp_path / "plain", layers=[1])
    found = pruned(folder, tmp_path / "out", layers=[1], recover_epochs=1)
    assert (found["pruned"]["layers"], found["pruned"]["recover_epochs"]) == ([1], 1)
    assert plain["pruned"]["recover_epochs"] == 0
    before, after = (attendrop.load(tmp_path / name).state_dict() for name in ("plain", "out"))
    assert before.keys() == after.keys()
    assert not before["model.classifier.weight"].equal(after["model.classifier.weight"])


def test_recovery_weighs_the_classes_as_the_run_did(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny.config(folder, str(tmp_path / "run"), method="finetune", epochs=1, class_weights="balanced"))
    seen = []

    def balanced(labels: list[int], num_classes: int) -> Any:
        seen.append((len(labels), num_classes))
        return balanced_loss(labels, num_classes)

    monkeypatch.setattr("attendrop.runs.fitting.balanced_loss", balanced)
    pruned(tmp_path, tmp_path / "out", layers=[1], recover_epochs=1)
    assert seen == [(36, 2)]


def test_what_was_recovered_is_scored_anew(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    found = pruned(folder, tmp_path / "out", layers="0,1", recover_epochs=3)
    assert found["pruned"]["layers"] == [0, 1]
    assert cli.main(["evaluate", f"{tmp_path}/out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all_scores"] == found["pruned"]["all_scores"]["dev"]["after"]


def test_the_generator_ranks_its_own_run(folder: Path, tmp_path: Path) -> None:
    pi = tiny.read_metrics(folder / "attendout")["pruning"]["pi"]
    least = min(pi.values())
    found = pruned(folder, tmp_path / "out", "attendout", layers=f">={least:.9f}")["pruned"]
    assert (found["ranked_by"], found["harm"]) == ("generator", pi)
    one = pruned(folder, tmp_path / "one", "attendout", layers=1, select_by="method")["pruned"]
    most = max(pi, key=lambda key: (pi[key], key))  # of equal ones the last
    assert (one["ranked_by"], one["layers"]) == ("generator", [int(most.split(".")[1])])


def test_importance_ranks_a_run_whose_learner_cannot_be_told_from_noise(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert cli.main(arguments(folder, tmp_path / "out", "--layers", "1", run="attendout")) == 0
    out, err = capsys.readouterr()
    assert "ranked by           loss with this layer constant" in out
    assert "What the generator learnt cannot be told from noise: layers are ranked by importance." in err


@pytest.mark.parametrize(("told", "select_by", "expected"), [
    (True, "auto", "learner"), (False, "auto", "importance"), (True, "importance", "importance"),
    (False, "method", "learner"),
])  # fmt: skip
def test_the_learner_ranks_where_it_is_told_from_noise(
    folder: Path, tmp_path: Path, told: bool, select_by: str, expected: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "effects", run)
    metrics = tiny.read_metrics(run)
    metrics["layer_effects"]["encoder.0"] |= {"effect": 0.8, "told_from_noise": told}
    metrics["layer_effects"]["encoder.1"] |= {"effect": 0.1, "told_from_noise": False}
    (run / "metrics.json").write_text(json.dumps(metrics))
    found = prune_run(str(run), str(tmp_path / "out"), layers=1, select_by=select_by, device="cpu")["pruned"]
    assert found["ranked_by"] == expected
    if expected == "learner":
        assert (found["layers"], found["harm"]) == ([0], {"encoder.0": 0.8, "encoder.1": 0.1})


def test_a_generator_that_saw_some_layers_only(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "attendout", run)
    metrics = tiny.read_metrics(run)
    metrics["pruning"]["pi"] = {"encoder.1": 0.25}
    (run / "metrics.json").write_text(json.dumps(metrics))
    found = prune_run(str(run), str(tmp_path / "out"), layers=">=0.2", device="cpu")["pruned"]
    assert (found["layers"], found["harm"]) == ([1], {"encoder.0": 0.0, "encoder.1": 0.25})


def test_without_a_selection_split_it_says_what_it_chose_on(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    train(tiny.config(folder, str(tmp_path / "run"), method="finetune", epochs=1, selection_fraction=0.0))
    assert cli.main(arguments(tmp_path, tmp_path / "out", "--layers", "1")) == 0
    out, err = capsys.readouterr()
    assert "layers were chosen on dev, so the dev score is optimistic" in out
    assert "no rows held out: layers are chosen on dev" in err
    for number, layers in enumerate(("2", "1,")):  # all of them, and a named one: nothing is chosen
        assert cli.main(arguments(tmp_path, tmp_path / f"out{number}", "--layers", layers)) == 0
        out, err = capsys.readouterr()
        assert "chosen on dev" not in out + err
        assert "Layers were not chosen by scores." in (tmp_path / f"out{number}" / "README.md").read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--layers", "some"), "is not understood"),
        (("--layers", "7,"), "no layer 7; layers are 0 to 1"),
        (("--layers", "3"), "only 2 layers"),
        (("--layers", ">=0.5"), "this model has none"),
        (("--select-by", "method"), "learnt no ranking of layers"),
        (("--select-by", "size"), "select_by='size' is not known"),
        (("--tolerance", "-1"), "tolerance=-1.0 must be at least 0"),
        (("--recover-epochs", "-1"), "recover-epochs must be at least 0"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_mistakes(folder: Path, tmp_path: Path, capsys: Captured, more: tuple[str, ...], words: str) -> None:
    assert cli.main(arguments(folder, tmp_path / "out", *more)) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(rf"Error: .*{re.escape(words)}.*\n", said.splitlines(keepends=True)[-1])
    assert "Ranking" not in said
    assert not (tmp_path / "out").exists()


def test_folders_that_will_not_do(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    def refused(words: str, run: str = "run", output: Path | str = tmp_path / "out") -> None:
        assert cli.main(arguments(folder, output, run=run)) == 2
        assert words in capsys.readouterr().err

    refused("is not empty", output=folder / "model")
    refused("is not empty", output=folder / "train.csv")
    refused("holds no finished run", run="model")
    refused("holds no finished run", run="nowhere")
    shutil.copytree(folder / "run", folder / "unfinished")
    (folder / "unfinished" / "metrics.json").unlink()
    refused("holds no finished run", run="unfinished")
    pruned(folder, folder / "light", layers="1,")
    refused("is pruned already", run="light")


def test_changed_data(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    tiny.save_tiny_bert(tmp_path / "model")
    tiny.write_data(tmp_path)
    train(tiny.config(tmp_path, method="finetune", epochs=1))
    tiny.write_csv(tmp_path / "train.csv", ["yes", "no"] * 20)
    assert cli.main(arguments(tmp_path, tmp_path / "out")) == 2
    assert "The data changed since the run" in capsys.readouterr().err


def test_a_pruned_model_is_not_trained(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    pruned(folder, tmp_path / "out", layers="1,")
    columns = ("--text-columns", "sentence1,sentence2", "--label-column", "label")
    given = ["train", "--train-file", f"{folder}/train.csv", *columns, "--model", f"{tmp_path}/out"]
    assert cli.main([*given, "--output-dir", f"{tmp_path}/run"]) == 2
    assert "is pruned and does not train" in capsys.readouterr().err
