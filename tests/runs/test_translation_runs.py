"""Whole runs that translate: training, generation, scores, predictions, adapters, resumption, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from helpers import tiny, tiny_translators
from helpers.command_line import Captured, assert_refused
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer, TrainerCallback

from attendrop import cli
from attendrop.runs.config import RunConfig
from attendrop.runs.train import train as train_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    tiny_translators.save_tiny_marian(folder / "model")
    tiny_translators.write_pairs(folder, "train", range(40))
    tiny_translators.write_pairs(folder, "dev", range(100, 112))
    encoder = ("--method", "ad-drop", "--set", "layers=encoder", "--set", "cross_tuning=false")
    assert cli.main(train(folder, "run", *encoder, "--task-set", "num_beams=2")) == 0
    return folder


def train(folder: Path, name: str, *more: str) -> list[str]:
    train, dev = (f"{folder}/{part}.en,{folder}/{part}.ro" for part in ("train", "dev"))
    return [
        *("train", "--train-file", train, "--eval-file", dev, "--model", f"{folder}/model", "--max-steps", "6"),
        *("--output-dir", f"{folder}/{name}", "--batch-size", "8", "--max-length", "16", "--learning-rate", "1e-2"),
        *("--task-set", "max_new_tokens=6", "--device", "cpu", "--quiet", *more),
    ]


def evaluate(run: Path, capsys: Captured, *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--device", "cpu", "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["all_scores"]
    return found


# Training and scores --------------------------------------------------------------------------------------------------


def test_the_score_is_that_of_what_the_saved_model_writes(folder: Path, capsys: Captured) -> None:
    metrics = tiny.read_metrics(folder / "run")
    scores = metrics["all_scores"]["dev"]
    assert list(scores) == ["bleu", "chrf", "neg_log_loss"] and metrics["metric"] == "bleu"
    model, tokenizer = (loader.from_pretrained(folder / "run") for loader in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert (model.generation_config.num_beams, model.generation_config.max_new_tokens) == (2, 6)
    pairs = [tiny_translators.pair(number) for number in range(100, 112)]
    written = [
        tokenizer.decode(model.generate(**tokenizer(text, return_tensors="pt"))[0], skip_special_tokens=True)
        for text, _ in pairs
    ]
    expected = sacrebleu.corpus_chrf(written, [[target for _, target in pairs]]).score / 100
    assert scores["chrf"] == pytest.approx(expected) and expected > 0
    assert evaluate(folder / "run", capsys) == pytest.approx(scores)
    history = metrics["history"]
    assert history[-1]["train_loss"] < history[0]["train_loss"] and history[0]["dropped"]["ad-drop"] > 0.02


@pytest.mark.slow
def test_dropping_is_in_the_layers_that_were_asked_for(folder: Path, capsys: Captured) -> None:
    assert cli.main(["patterns", f"{folder}/run", "--device", "cpu", "--rows", "8"]) == 0
    dropped = dict(re.findall(r"^(\w+\.\d)\s+\d+\s+([\d.]+)%", capsys.readouterr().out, re.MULTILINE))
    assert {layer: float(percent) > 0 for layer, percent in dropped.items()} == {
        "encoder.0": True, "encoder.1": True, "decoder.0": False, "cross.0": False,
    }  # fmt: skip


def test_texts_are_translated_to_any_format(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\none cat\n\n\nbig dog and cat\n\n")
    asked = ["predict", f"{folder}/run", "--predict-file", f"{tmp_path}/in.txt", "--device", "cpu", "--quiet"]
    for name in ("out.txt", "out.jsonl"):
        assert cli.main([*asked, "--skip-bad-rows", "--output", f"{tmp_path}/{name}"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == [1, 4]
    one, other = (row["translation"] for row in rows)
    assert (tmp_path / "out.txt").read_text() == f"\n{one}\n\n\n{other}\n\n"  # line by line, as the input


# Options and refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task-set", "beams=2"), "the task, translation, has no option 'beams'."),
        (("--task-set", "target_lang=en_XX"), "has no language codes, but 'en_XX' is given"),
        (("--pooling", "mean"), "pooling 'mean' is for tasks with one prediction for a whole text"),
        (("--class-weights", "balanced"), "class-weights='balanced' needs classes; the labels are translations."),
        (
            ("--metric", "accuracy"),
            "there is no metric 'accuracy' for translations; there are bleu, chrf, neg_log_loss.",
        ),
    ],
)
def test_options_that_do_not_apply_are_refused(
    folder: Path, tmp_path: Path, options: tuple[str, ...], message: str, capsys: Captured
) -> None:
    assert_refused([*train(folder, "x", *options), "--output-dir", f"{tmp_path}/x"], tmp_path / "x", message, capsys)


# Adapters, resumption, comparisons ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["encoder", "decoder", "cross", "all"])
def test_ad_drop_acts_in_each_kind_of_layer_of_an_adapted_t5(folder: Path, layers: str, capsys: Captured) -> None:
    tiny_translators.save_tiny_t5(folder / "t5")
    acting = ("--method", "ad-drop", "--set", f"layers={layers}", "--set", "cross_tuning=false")
    asked = train(folder, f"t5-{layers}", "--model", f"{folder}/t5", "--lora", "r=2", *acting)
    assert cli.main(asked) == 0
    metrics = tiny.read_metrics(folder / f"t5-{layers}")
    assert metrics["history"][0]["dropped"]["ad-drop"] > 0.02
    assert metrics["parameters"]["trained"] < metrics["parameters"]["total"] / 10
    assert evaluate(folder / f"t5-{layers}", capsys) == pytest.approx(metrics["all_scores"]["dev"])


class _Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 4:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ad-drop", "attendout"])
def test_a_resumed_run_ends_as_the_uninterrupted_one(folder: Path, method: str) -> None:
    options = {"ad-drop": {"cross_tuning": False}, "attendout": {"dropout_step": 2}}[method]
    files = [f"{folder}/{part}.en,{folder}/{part}.ro" for part in ("train", "dev")]
    given = {"train_file": files[0], "eval_file": files[1], "model": f"{folder}/model", "max_steps": 8, "device": "cpu"}
    given |= {"batch_size": 8, "save_steps": 3, "patience": 3, "task_options": {"max_new_tokens": 4}, "max_length": 16}
    given |= {"method": method, "options": options}
    whole, killed = (RunConfig(**given, output_dir=f"{folder}/{method}-{name}") for name in ("whole", "killed"))
    train_run(whole)
    with pytest.raises(KeyboardInterrupt):
        train_run(killed, callbacks=[_Stop()])
    train_run(killed, resume=True)
    weights = [load_file(Path(each.output_dir) / "model.safetensors") for each in (whole, killed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_a_translator_learns(folder: Path) -> None:
    tiny_translators.save_tiny_marian(folder / "wider", size=32, init_std=0.1)
    for name, numbers in {"many": range(1000), "new": range(3000, 3060)}.items():
        tiny_translators.write_pairs(folder, name, numbers)
    asked = train(folder, "learnt", "--model", f"{folder}/wider", "--method", "finetune", "--max-steps", "300")
    asked += ["--batch-size", "16", "--learning-rate", "3e-3"]
    files = {"--train-file": "many", "--eval-file": "new"}
    for option, name in files.items():
        asked[asked.index(option) + 1] = f"{folder}/{name}.en,{folder}/{name}.ro"
    assert cli.main(asked) == 0
    assert tiny.read_metrics(folder / "learnt")["all_scores"]["dev"]["chrf"] > 0.8


@pytest.mark.slow
def test_the_tokenizer_of_marian_has_a_vocabulary_for_each_language(folder: Path, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    vocabulary = {"</s>": 0, "<unk>": 1}
    for side, language in {"source": "en", "target": "ro"}.items():
        sentencepiece.SentencePieceTrainer.train(
            input=f"{folder}/train.{language}", model_prefix=f"{tmp_path}/{side}", vocab_size=30, hard_vocab_limit=False
        )
        (tmp_path / f"{side}.model").rename(tmp_path / f"{side}.spm")
        pieces = (line.split("\t")[0] for line in (tmp_path / f"{side}.vocab").read_text().splitlines()[3:])
        vocabulary |= {piece: len(vocabulary) + place for place, piece in enumerate(set(pieces) - vocabulary.keys())}
    vocabulary["<pad>"] = len(vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = MarianTokenizer(
        *(str(tmp_path / name) for name in ("source.spm", "target.spm", "vocab.json")), source_lang="en",
        target_lang="ro", model_max_length=32,
    )  # fmt: skip
    tiny_translators.save_marian(folder / "spm", tokenizer, init_std=0.1, size=32)
    files = ("--train-file", f"{folder}/many.en,{folder}/many.ro", "--eval-file", f"{folder}/dev.en,{folder}/dev.ro")
    tiny_translators.write_pairs(folder, "many", range(1000))
    asked = [
        *train(folder, "run-spm", "--method", "finetune"),
        *files,
        "--model",
        f"{folder}/spm",
        "--max-steps",
        "300",
    ]
    assert cli.main([*asked, "--batch-size", "16", "--learning-rate", "3e-3", "--task-set", "num_beams=1"]) == 0
    assert tiny.read_metrics(folder / "run-spm")["all_scores"]["dev"]["chrf"] > 0.5


def test_methods_are_not_rewarded_by_generated_texts(folder: Path, capsys: Captured) -> None:
    assert cli.main(train(folder, "x", "--method", "attendout", "--set", "score=metric", "--patience", "1")) == 2
    assert "whose outputs are not generated; use score='loss'." in capsys.readouterr().err
