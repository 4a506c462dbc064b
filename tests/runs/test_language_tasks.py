"""Whole runs of models that write: masked tokens, translations and completions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from helpers import tiny, tiny_translators
from helpers.command_line import Captured, assert_refused
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from attendrop import cli
from attendrop.runs.config import RunConfig
from attendrop.runs.model_loading import default_pooling, load_model_and_tokenizer
from attendrop.runs.train import train as train_model
from attendrop.tasks.heads.masked_language_modeling import TokenMasks
from attendrop.tasks.registry import get_task

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# Masked tokens --------------------------------------------------------------------------------------------------------


AD_DROP = ("--method", "ad-drop", "--set", "cross_tuning=false")


def write_corpus(path: Path, first: int, count: int) -> Path:
    """Write a corpus with an empty line after every fifth one, and one that no model knows."""
    lines = [tiny.sentence(n) + ("\n" if n % 5 == 0 else "") for n in range(first, first + count)]
    path.write_text("\n".join([*lines, "zebra"]) + "\n")
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = tmp_path_factory.mktemp("corpus")
    tiny.save_tiny_bert(corpus / "model")
    write_corpus(corpus / "train.txt", 0, 40)
    write_corpus(corpus / "dev.txt", 100, 12)
    assert cli.main(pretrain(corpus, "run", *AD_DROP)) == 0
    return corpus


def pretrain(corpus: Path, name: str, *more: str) -> list[str]:
    return [
        *("train", "--task", "mlm", "--train-file", f"{corpus}/train.txt", "--eval-file", f"{corpus}/dev.txt"),
        *("--model", f"{corpus}/model", "--output-dir", f"{corpus}/{name}", "--max-steps", "6", "--batch-size", "8"),
        *("--max-length", "24", "--learning-rate", "1e-2", "--device", "cpu", "--quiet", *more),
    ]


def test_a_run_is_scored_by_the_likelihood_of_hidden_tokens(corpus: Path, capsys: Captured) -> None:
    metrics = tiny.read_metrics(corpus / "run")
    assert metrics["config"]["task"] is None and metrics["config"]["label_type"] == "mlm"
    assert metrics["data"]["rows"] == {"train": 41, "dev": 13}
    assert metrics["data"]["report"]["parts"]["dev"]["unknown"] == 1  # the zebra, which is not scored
    assert metrics["history"][0]["dropped"]["ad-drop"] > 0.02
    scores = metrics["all_scores"]["dev"]
    assert list(scores) == ["neg_log_loss", "perplexity", "accuracy"]
    assert scores["perplexity"] == pytest.approx(math.exp(-scores["neg_log_loss"])) and scores["perplexity"] < 21
    capsys.readouterr()
    assert cli.main(["evaluate", f"{corpus}/run", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["all_scores"] == pytest.approx(scores) and found["rows"] == 12


def mlm_config(corpus: Path, name: str, **options: Any) -> RunConfig:
    chosen = {"train_file": str(corpus / "train.txt"), "eval_file": str(corpus / "dev.txt"), "label_type": "mlm"}
    chosen |= {"text_columns": (), "label_column": None, "selection_fraction": 0.0, "options": {"p": 0.5}}
    return tiny.config(corpus, name, **(chosen | options))


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the keys of all masks that are made from here on."""
    found, mask = set(), TokenMasks.mask

    def noted(self: TokenMasks, ids: Any, key: str, words: Any = None) -> Any:
        found.add(key)
        return mask(self, ids, key, words)

    monkeypatch.setattr(TokenMasks, "mask", noted)
    return found


def test_a_resumed_run_sees_the_same_masks(corpus: Path, keys: set[str], stop_at: Callable[[int], Any]) -> None:
    """It stops in the second epoch; the last checkpoint is that of step 12."""
    options: dict[str, Any] = {"epochs": 2, "save_steps": 12, "task_options": {"pack": True, "whole_words": True}}
    options |= {"batch_size": 2, "max_length": 16}
    train_model(mlm_config(corpus, "whole", **options))
    assert keys == {"scored", "0/0", "0/1"}  # seed and epoch
    with pytest.raises(KeyboardInterrupt):
        train_model(mlm_config(corpus, "stopped", **options), callbacks=[stop_at(13)])
    keys.clear()
    train_model(mlm_config(corpus, "stopped", **options), resume=True)
    assert keys == {"scored", "0/1"}
    whole, resumed = weights(corpus / "whole"), weights(corpus / "stopped")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    scores = [tiny.read_metrics(corpus / name)["all_scores"] for name in ("whole", "stopped")]
    assert scores[0] == scores[1]


def test_the_folder_is_a_model_to_fine_tune(corpus: Path) -> None:
    model, _ = load_model_and_tokenizer(str(corpus / "run"), get_task("rte"))
    name = "bert.encoder.layer.1.attention.self.query.weight"
    before, pre_trained = weights(corpus / "model")[name.removeprefix("bert.")], weights(corpus / "run")[name]
    assert torch.equal(model.state_dict()[name], pre_trained) and not torch.equal(before, pre_trained)


def test_the_folder_keeps_the_pooling_of_its_model(corpus: Path, tmp_path: Path) -> None:
    """A model of sentence-transformers says in files of its own, which no run writes, that it pools the mean."""
    model = tiny.save_tiny_bert(tmp_path / "model")
    (model / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling", "path": "pool"}]')
    (model / "pool").mkdir()
    (model / "pool" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    train_model(mlm_config(corpus, "pooled", model=str(model), max_steps=1, epochs=None))
    assert default_pooling(str(corpus / "pooled")) == "mean" and default_pooling(str(corpus / "run")) == "cls"


def test_attend_out_is_rewarded_by_the_loss(corpus: Path, capsys: Captured) -> None:
    capsys.readouterr()
    asked = pretrain(corpus, "metric", "--method", "attendout", "--set", "dropout_step=2", "--set", "score=metric")
    assert_refused(asked, corpus / "metric", "metric", capsys)


# Translations ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = tmp_path_factory.mktemp("translation")
    tiny_translators.save_tiny_marian(pairs / "model")
    tiny_translators.write_pairs(pairs, "train", range(40))
    tiny_translators.write_pairs(pairs, "dev", range(100, 112))
    encoder = ("--method", "ad-drop", "--set", "layers=encoder", "--set", "cross_tuning=false")
    assert cli.main(train(pairs, "run", *encoder, "--task-set", "num_beams=2")) == 0
    return pairs


def train(pairs: Path, name: str, *more: str) -> list[str]:
    train, dev = (f"{pairs}/{part}.en,{pairs}/{part}.ro" for part in ("train", "dev"))
    return [
        *("train", "--train-file", train, "--eval-file", dev, "--model", f"{pairs}/model", "--max-steps", "6"),
        *("--output-dir", f"{pairs}/{name}", "--batch-size", "8", "--max-length", "16", "--learning-rate", "1e-2"),
        *("--task-set", "max_new_tokens=6", "--device", "cpu", "--quiet", *more),
    ]


def evaluate(run: Path, capsys: Captured, *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--device", "cpu", "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)["all_scores"]


def test_the_score_is_that_of_what_the_saved_model_writes(pairs: Path, capsys: Captured) -> None:
    metrics = tiny.read_metrics(pairs / "run")
    scores = metrics["all_scores"]["dev"]
    assert list(scores) == ["bleu", "chrf", "neg_log_loss"] and metrics["metric"] == "bleu"
    model, tokenizer = (loader.from_pretrained(pairs / "run") for loader in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert (model.generation_config.num_beams, model.generation_config.max_new_tokens) == (2, 6)
    texts = [tiny_translators.pair(number) for number in range(100, 112)]
    written = [
        tokenizer.decode(model.generate(**tokenizer(text, return_tensors="pt"))[0], skip_special_tokens=True)
        for text, _ in texts
    ]
    expected = sacrebleu.corpus_chrf(written, [[target for _, target in texts]]).score / 100
    assert scores["chrf"] == pytest.approx(expected) and expected > 0
    assert evaluate(pairs / "run", capsys) == pytest.approx(scores)
    shorter = evaluate(pairs / "run", capsys, "--task-set", "max_new_tokens=1")  # instead of the run's own
    assert shorter["chrf"] != scores["chrf"] and shorter["neg_log_loss"] == pytest.approx(scores["neg_log_loss"])
    history = metrics["history"]
    assert history[-1]["train_loss"] < history[0]["train_loss"] and history[0]["dropped"]["ad-drop"] > 0.02


def test_texts_are_translated_to_any_format(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\none cat\n\n\nbig dog and cat\n\n")
    asked = ["predict", f"{pairs}/run", "--predict-file", f"{tmp_path}/in.txt", "--device", "cpu", "--quiet"]
    for name in ("out.txt", "out.jsonl"):
        assert cli.main([*asked, "--skip-bad-rows", "--output", f"{tmp_path}/{name}"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows if row["skipped"] is None] == [1, 4] and len(rows) == 6
    one, other = (row["translation"] for row in rows if row["skipped"] is None)
    assert (tmp_path / "out.txt").read_text() == f"\n{one}\n\n\n{other}\n\n"  # line by line, as the input


@pytest.mark.slow
def test_a_translator_learns(pairs: Path) -> None:
    tiny_translators.save_tiny_marian(pairs / "wider", size=32, init_std=0.1)
    for name, numbers in {"many": range(1000), "new": range(3000, 3060)}.items():
        tiny_translators.write_pairs(pairs, name, numbers)
    asked = train(pairs, "learnt", "--model", f"{pairs}/wider", "--method", "finetune", "--max-steps", "300")
    asked += ["--batch-size", "16", "--learning-rate", "3e-3"]
    files = {"--train-file": "many", "--eval-file": "new"}
    for option, name in files.items():
        asked[asked.index(option) + 1] = f"{pairs}/{name}.en,{pairs}/{name}.ro"
    assert cli.main(asked) == 0
    assert tiny.read_metrics(pairs / "learnt")["all_scores"]["dev"]["chrf"] > 0.8


# Completions ----------------------------------------------------------------------------------------------------------


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_predictions_do_not_see_the_completions(tmp_path: Path) -> None:
    tiny.save_tiny_llama(tmp_path / "model")
    prompts = [tiny.sentence(number) for number in range(10)]
    rows = [{"prompt": prompt, "completion": f" {tiny.WORDS[n % 4]}"} for n, prompt in enumerate(prompts)]
    seen = write(tmp_path / "seen.jsonl", rows)
    (tmp_path / "unseen.txt").write_text("\n".join(prompts) + "\n")
    asked = f"train --train-file {seen} --text-columns prompt --label-column completion --label-type completion"
    asked += f" --model {tmp_path}/model --output-dir {tmp_path}/run --max-steps 1 --selection-fraction 0 --quiet"
    asked += " --method finetune --task-set max_new_tokens=4 --max-length 24 --device cpu"
    assert cli.main(asked.split()) == 0
    for name in ("seen.jsonl", "unseen.txt"):
        asked = f"predict {tmp_path}/run --predict-file {tmp_path}/{name} --device cpu --quiet"
        assert cli.main([*asked.split(), "--output", f"{tmp_path}/of-{name}.jsonl"]) == 0
    written = [(tmp_path / f"of-{name}.jsonl").read_text() for name in ("seen.jsonl", "unseen.txt")]
    assert written[0] == written[1] and written[0].count("completion") == 10


def test_a_chat_needs_a_template(tmp_path: Path, capsys: Captured) -> None:
    tiny.save_tiny_llama(tmp_path / "model")
    roles = {"user": "the cat", "assistant": "a dog"}
    rows = [
        [{"role": role, "content": f"{text} {tiny.sentence(n)}"} for role, text in roles.items()] for n in range(20)
    ]
    file = write(tmp_path / "chats.jsonl", [{"messages": row} for row in rows])
    asked = f"train --train-file {file} --text-columns messages --label-type completion --model {tmp_path}/model"
    asked += f" --output-dir {tmp_path}/run --device cpu --quiet"
    assert_refused(asked.split(), tmp_path / "run", "the model's tokenizer has no chat template", capsys)
