"""Evaluation and prediction of files: in bounded memory, in batches of similar length, with columns to keep."""

from __future__ import annotations

import copy
import csv
import json
import re
import shutil
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
import yaml
from datasets import Dataset
from helpers import tiny, zoo
from helpers.command_line import Captured
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertTokenizer,
    DataCollatorWithPadding,
    TrainingArguments,
)

import attendrop
from attendrop import AttendropError, cli, load
from attendrop.pruning.packed import PackedLayer
from attendrop.randomness.device_path import few_kernels
from attendrop.runs import inference, run_folder
from attendrop.runs.config import Source
from attendrop.runs.inference import evaluate, frozen_features, predict, predict_outputs, to_fastest_form
from attendrop.runs.model_card import baseline_card, model_card
from attendrop.runs.model_loading import load_for
from attendrop.runs.run_trainer import RunTrainer
from attendrop.runs.train import train
from attendrop.tasks.base import encode_columns
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.prediction_files import FORMATS, PredictionWriter
from attendrop.tasks.tokenization import unknown_rows
from attendrop.tasks.types.base import TaskType, row_array
from attendrop.tasks.types.classification import Classification
from attendrop.tasks.types.token_classification import TokenClassification

YES_NO = Classification(("no", "yes"))


def save_run(folder: Path, columns: list[str], task_type: TaskType = YES_NO, **options: Any) -> Path:
    """A finished run, without training."""
    tiny.save_tiny_bert(folder)
    model, _ = load_for(str(folder), files_task(columns, task_type))[:2]
    model.save_pretrained(folder)
    config = {"text_columns": columns, "label_column": "label", "max_length": 24} | options
    metrics = {"task": "files", "method": "finetune", "config": config, "all_scores": {}}
    (folder / "run.json").write_text(json.dumps({"config": config, "data_sha256": ""}))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    save_run(folder / "single", ["text"])
    return folder


def write_rows(path: Path, count: int) -> Path:
    rows = [f"{n},{tiny.sentence(n)},{('no', 'yes')[n % 2]}" for n in range(count)]
    path.write_text("\n".join(["id,text,label", *rows]) + "\n")
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open(newline=""), delimiter="\t" if path.suffix == ".tsv" else ","))


def read_rows(path: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, path.read_text().splitlines())) if path.suffix == ".jsonl" else read_csv(path)


def test_batches_are_of_similar_length_and_answers_in_the_order_of_the_rows(runs: Path) -> None:
    model, tokenizer = load_for(str(runs / "single"), None)[:2]
    texts = [tiny.sentence(n) for n in range(50)]
    encoded = encode_columns({"text": texts}, files_task(["text"], YES_NO), tokenizer, 24)
    widths = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    logits = predict_outputs(model, tokenizer, YES_NO, encoded, 5, "cpu")
    assert widths == sorted(widths, reverse=True) and len(set(widths)) > 3
    assert sum(widths) * 5 <= sum(encoded["length"]) + 5 * len(set(encoded["length"])) * 5
    with torch.no_grad():
        one_by_one = [model(**tokenizer(text, return_tensors="pt")).logits[0].numpy() for text in texts]
    np.testing.assert_allclose(logits, one_by_one, atol=1e-5)


def no_logits(encoded: dict[str, list[Any]]) -> Any:
    return np.zeros((len(encoded["length"]), 2))


def test_memory_does_not_grow_with_the_file(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "CHUNK_ROWS", 64)
    monkeypatch.setattr(
        inference, "predict_outputs", lambda model, tokenizer, task_type, encoded, *_: no_logits(encoded)
    )

    def peak(rows: int) -> int:
        source = Source(file=str(write_rows(tmp_path / f"{rows}.csv", rows)), overwrite=True)
        predict(str(runs / "single"), source, str(tmp_path / "warm.csv"))
        tracemalloc.start()
        predict(str(runs / "single"), source, str(tmp_path / "out.csv"))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(2000) < 1.2 * peak(400)


def write_texts(path: Path, texts: list[str]) -> Source:
    path.write_text("\n".join(["text,label", *(f"{text},no" for text in texts)]) + "\n")
    return Source(file=str(path), device="cpu")


def test_rows_without_a_known_token_are_counted_and_refused_if_there_are_no_others(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "CHUNK_ROWS", 2)  # the first of them has no known token at all
    monkeypatch.setattr(inference, "_SECONDS_BETWEEN_LINES", 0.0)
    caplog.set_level("INFO", "attendrop")
    source = write_texts(tmp_path / "in.csv", ["katze.", "hund!", "the cat sees", "🐕", "a dog"])
    predict(str(runs / "single"), source, str(tmp_path / "out.csv"))
    assert len(read_csv(tmp_path / "out.csv")) == 5
    evaluate(str(runs / "single"), source)
    told = [record.getMessage() for record in caplog.records if "token" in record.getMessage()]
    assert told == ["3 of 5 rows have no token that the model knows: their predictions mean nothing."] * 2
    assert "2 rows done." in caplog.text and "5 rows done." in caplog.text
    source = write_texts(tmp_path / "in.csv", ["katze", "hund 🐕", "vogel"])
    with pytest.raises(AttendropError, match=r"in\.csv has no row with a token that the model knows"):
        predict(str(runs / "single"), source, str(tmp_path / "none.csv"))
    assert not (tmp_path / "none.csv").exists()


def test_rows_that_are_cut_are_counted_and_a_model_trains_on_after_predicting(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["the cat sees a dog " * 20, "the cat sees", "a dog " * 40]
    source, told = write_texts(tmp_path / "in.csv", texts), "2 of 3 rows have more tokens than are read (max-length)"
    predict(str(runs / "single"), source, str(tmp_path / "out.csv"))
    evaluate(str(runs / "single"), source)
    model = attendrop.load(runs / "single").train()
    model.base_model.eval()  # a frozen part
    before = [module.training for module in model.modules()]
    model.predict(texts)
    assert caplog.text.count(told) == 3 and [module.training for module in model.modules()] == before


def test_threads_get_the_answers_that_one_gets(runs: Path) -> None:
    """They share a tokenizer, which cuts texts for one thread, and counts the tokens of whole texts for another."""
    texts = [f"the cat sees a dog {number} " * 9 for number in range(20)]
    alone, shared = attendrop.load(runs / "single"), attendrop.load(runs / "single")
    expected = [alone.predict([text], probabilities=True) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: shared.predict([text], probabilities=True), texts * 20)) == expected * 20


@pytest.mark.parametrize("suffix", FORMATS)
def test_line_ends_in_labels_do_not_end_a_row(tmp_path: Path, suffix: str) -> None:
    labels, output = ("O", "a\rb", "a\nb", "a\r\nb", "a\tb"), tmp_path / f"out.{suffix}"
    task_type: TaskType = TokenClassification(labels) if suffix == "conll" else Classification(labels)
    outputs, words = np.eye(5), {"index": range(5), "tokens": [["the"]] * 5}
    with PredictionWriter(output, files_task(["tokens"], task_type)) as writer:
        writer.write(words, row_array(list(outputs[:, None])) if suffix == "conll" else outputs)
    if suffix in ("csv", "tsv"):
        rows = csv.DictReader(output.open(newline=""), delimiter={"csv": ",", "tsv": "\t"}[suffix], strict=True)
        assert [row["label"] for row in rows] == [*labels]
    elif suffix == "jsonl":
        assert [json.loads(line)["label"] for line in output.read_bytes().splitlines()] == [*labels]
    else:  # which have no quotes: a line end is a space
        found = [line.split(b"\t")[-1].decode() for line in re.split(b"[\r\n]+", output.read_bytes().strip())]
        assert [" ".join(label.split()) for label in found] == ["O", *["a b"] * 4]


INPUTS = {
    "bad.csv": (  # among others: of too few fields, too many, and none
        "text,id\n,a\nthe cat,b\nthe dog\n,c\na dog,d,e\n,\ngood,f\n,g\n,\n",
        [None, "the cat", None, None, None, None, "good", None, None],
        ["a", "b", "", "c", "d", "", "f", "g", ""],
    ),
    "bad.jsonl": (
        '{"text": ""}\n{"text": "the cat", "id": "b"}\nnot JSON\n[1]\n{"text": "good", "id": "f"}\n{"text": null}\n',
        [None, "the cat", None, None, "good", None],
        ["", "b", "", "", "f", ""],
    ),
    "bad.txt": ("\nthe cat\n\ngood\n\n", [None, "the cat", None, "good", None], None),
}


def test_options_go_over_those_of_training(runs: Path) -> None:
    model, columns = inference.load_run(f"{runs}/single"), {"text": ["the cat sees a dog near a bird"]}
    task = files_task(["text"], YES_NO)
    lengths = [model.outputs(columns, task, Source(max_length=given))[0]["length"] for given in (None, 5, 7)]
    assert lengths == [[10], [5], [7]]


# ``attendrop.load``: models that predict texts as ``attendrop predict`` does

PAIRS = [("the cat sees", "a dog"), ("a bird", "the red bird likes a cat"), ("not far", "near")]


@pytest.mark.parametrize("name", ["run", "light"])
def test_texts_get_the_predictions_of_a_file(
    pruned: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("\n".join(["sentence1,sentence2", *map(",".join, PAIRS)]) + "\n")
    predict(str(pruned / name), Source(file=str(file), device="cpu"), str(tmp_path / "out.csv"), probabilities=True)
    with (tmp_path / "out.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    model = attendrop.load(pruned / name)
    monkeypatch.setattr(inference, "CHUNK_ROWS", 2)
    assert model.predict(PAIRS) == [row["label"] for row in rows]
    for found, row in zip(model.predict(iter(PAIRS), probabilities=True), rows, strict=True):
        assert found["label"] == row["label"]
        for column in ("probability", "probability_no", "probability_yes"):
            assert found[column] == pytest.approx(float(row[column]), abs=2e-6)
    assert model.predict([]) == []


def test_a_relative_folder_is_that_of_the_working_folder_in_which_it_was_loaded(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    model = attendrop.load("single")
    monkeypatch.chdir(tmp_path)
    assert model.predict(["the cat"]) == attendrop.load(runs / "single").predict(["the cat"])


def test_other_columns_are_read_in_front_of_texts_as_in_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_run(tmp_path / "run", ["text"], with_columns=["near", "dog"])
    (tmp_path / "a.csv").write_text("dog,text,near\nred,the cat,blue\n,a bird,bad\n")
    predict(str(tmp_path / "run"), Source(file=str(tmp_path / "a.csv")), str(tmp_path / "out.csv"), probabilities=True)
    model = attendrop.load(tmp_path / "run")
    found = model.predict(["near: blue | dog: red | the cat", "near: bad | a bird"], probabilities=True)
    assert [float(row["probability_no"]) for row in read_csv(tmp_path / "out.csv")] == [
        pytest.approx(row["probability_no"], abs=1e-5) for row in found
    ]
    assert not caplog.records
    model.predict(["the cat"])
    assert "trained on texts that begin as 'near: ... | dog: ... | ', and none of these does" in caplog.text
    pd.DataFrame({"text": ["the cat"], "Dog": ["red"]}).to_excel(tmp_path / "a.xlsx", index=False)
    with pytest.raises(AttendropError, match="has no column 'near'"):  # only in rows of JSON may one be left out
        predict(str(tmp_path / "run"), Source(file=str(tmp_path / "a.xlsx")), str(tmp_path / "out3.csv"))
    # Rows of JSON leave out what they lack.
    (tmp_path / "a.jsonl").write_text('{"text": "the cat", "dog": "red"}\n{"text": "a bird"}\n')
    source = Source(file=str(tmp_path / "a.jsonl"))
    run_folder.check_source(str(tmp_path / "run"), source, labelled=False)
    with pytest.warns(UserWarning, match="has no 'near' in its first rows, where it is read as blank"):
        predict(str(tmp_path / "run"), source, str(tmp_path / "out.jsonl"), probabilities=True)
    found = model.predict(["dog: red | the cat", "a bird"], probabilities=True)
    rows = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [row["probability_no"] for row in rows] == [pytest.approx(row["probability_no"], abs=1e-5) for row in found]
    (tmp_path / "a.jsonl").write_text('{"text": "the cat", "dog": "r\\ud83d"}\n')
    with pytest.warns(UserWarning), pytest.raises(AttendropError, match=r"line 1, column 'dog': .*half of a surrogate"):
        predict(str(tmp_path / "run"), source, str(tmp_path / "out2.csv"))


# Passes over rows: outputs in their order, whatever the order of evaluation, and vectors without padding

FIRST = [tiny.sentence(number) for number in range(12)]
SECOND = [tiny.sentence(number + 3) for number in range(12)]


@pytest.mark.parametrize(("name", "texts"), [("bert", (FIRST,)), ("bert", (FIRST, SECOND)), ("bart-class", (FIRST,))])
def test_features_are_the_mean_of_the_encoder_s_tokens(name: str, texts: tuple[list[str], ...], tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path))
    model = zoo.build(name, dropout=0.5).train()
    columns = dict(zip(("text", "text_pair"), texts, strict=False))
    encoded = encode_columns(columns, files_task(list(columns), YES_NO), tokenizer, 24)
    features = frozen_features(model, tokenizer, YES_NO, encoded, 5, "cpu")
    encoder = model.get_encoder() if name == "bart-class" else model.base_model
    for row, vector in zip(zip(*texts, strict=True), features, strict=True):
        read = tokenizer(*row, truncation=True, max_length=24, return_tensors="pt")
        if name == "bart-class":
            del read["token_type_ids"]
        with torch.no_grad():
            mean = encoder(**read).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(vector, mean / mean.norm(), atol=1e-5)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert", "deberta-v3", "gpt2"])
def test_the_fastest_form_of_each_device_predicts_the_same(
    family: str, bf16: bool, on_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU computes no padding, a GPU does; bfloat16 is for runs that trained in it, on a device that computes in it.

    DeBERTa gains nothing from leaving padding out, and GPT-2 has one form.
    """
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"amx_bf16": True})
    tokenizer = AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path))
    model, batch = zoo.build(family).eval(), zoo.batch_of(family, (9, 5, 12))
    batch.pop("labels")
    stock, buffers = copy.deepcopy(model), {name: value.dtype for name, value in model.named_buffers()}
    with few_kernels() if on_gpu else nullcontext(), torch.no_grad():
        to_fastest_form(model, tokenizer, torch.device("cpu"), bf16=bf16)
        found, expected = model(**batch).logits, stock(**batch).logits
    packed = any(isinstance(module, PackedLayer) for module in model.modules())
    assert packed == (not on_gpu and family not in ("deberta-v3", "gpt2"))
    assert found.dtype == (torch.bfloat16 if bf16 and family != "gpt2" else torch.float32)
    assert {name: value.dtype for name, value in model.named_buffers()} == buffers
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=5e-2 if bf16 else 1e-5)


def test_outputs_come_in_the_order_of_the_rows(shared: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shared / "model")
    model = AutoModelForSequenceClassification.from_pretrained(shared / "model", num_labels=2)
    texts = [tiny.sentence(number) for number in range(20)]
    rows = Dataset.from_dict({**tokenizer(texts), "labels": list(range(20))})
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    trainer = RunTrainer(
        model,
        TrainingArguments(str(tmp_path), per_device_eval_batch_size=3, report_to="none", use_cpu=True),
        eval_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        task_type=YES_NO,
        compute_loss_func=lambda outputs, labels, num_items_in_batch: outputs.logits.sum(),
        compute_metrics=lambda found: seen.append((found.predictions, found.label_ids)) or {},  # type: ignore[func-returns-value]
    )
    with torch.no_grad():
        expected = torch.cat([model.eval()(**tokenizer(text, return_tensors="pt")).logits for text in texts]).numpy()
    trainer.evaluate()
    found = trainer.predict(rows)
    assert len({len(ids) for ids in rows["input_ids"]}) > 3
    assert len(seen) == 2
    for predictions, labels in [*seen, (found.predictions, found.label_ids)]:
        assert np.abs(predictions - expected).max() < 1e-5
        assert labels.tolist() == list(range(20))


@pytest.mark.parametrize(
    ("options", "split", "score"),
    [
        ({"test_fraction": 0.25}, "dev", "score"),
        ({"selection_fraction": 0.25, "refit": False}, "selection", "selection_score"),
        ({"selection_fraction": 0.25, "refit": True}, None, None),  # they were trained on in the end
    ],
)
def test_without_a_file_the_held_out_rows_of_the_run_are_scored(
    files: Path, capsys: Captured, options: dict[str, Any], split: str | None, score: str | None
) -> None:
    (files / "train.csv").unlink()
    tiny.write_data(files)
    metrics = train(tiny.config(files, method="finetune", epochs=1, **({"eval_file": None} | options)))
    asked = ["evaluate", f"{files}/run", "--json", "--device", "cpu"]
    capsys.readouterr()
    if score is None:
        assert cli.main(asked) == 2 and "was trained on all rows of its file" in capsys.readouterr().err
        return
    assert cli.main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["split"], found["score"]) == (split, pytest.approx(metrics[score]))
    assert found["rows"] == metrics["data"]["rows"][split]
    assert cli.main([*asked, "--label-column", "other"]) == 2
    assert "label-column is for custom files; omit it for the rows that the run held out." in capsys.readouterr().err
    with (files / "train.csv").open("a") as file:
        file.write("the cat,a dog,yes\n")
    assert cli.main(asked) == 2 and "its held-out rows are no longer known" in capsys.readouterr().err


def test_a_model_alone_knows_how_many_texts_it_reads(files: Path) -> None:
    """As on the hub, where it is without its run."""
    train(tiny.config(files, method="finetune", epochs=1, selection_fraction=0.0))
    for name in ("run.json", "metrics.json"):
        (files / "run" / name).unlink()
    with pytest.raises(AttendropError, match="Text 0 has 1 text; the model reads 2 texts together, as a tuple"):
        load(files / "run").predict(["the cat sees a dog"])
    one = {"text_columns": ("sentence1",), "max_length": 2000}
    train(tiny.config(files, "one", method="finetune", epochs=1, selection_fraction=0.0, **one))
    card = (files / "one" / "README.md").read_text(encoding="utf-8")
    assert "max_length=2000" not in card and "max_length=" in card  # that of the model, which reads no more
    for name in ("run.json", "metrics.json"):
        (files / "one" / name).unlink()
    with pytest.raises(AttendropError, match="Text 0 has 2 texts; the model reads 1 text"):
        load(files / "one").predict([("the cat", "a dog")])


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-1+1", "@SUM(A1)", "\tthe cat", "\uff1d1+1"]


def test_cells_that_a_spreadsheet_would_compute_are_told_or_escaped(
    runs: Path, tmp_path: Path, capsys: Captured
) -> None:
    rows = [{"text": "the cat", "=note": text} for text in (*FORMULAS, "-1.5", "-", "a=b", "")]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["predict", f"{runs}/single", f"{tmp_path}/in.jsonl", "--output", f"{tmp_path}/out.csv", "--keep-columns"]
    asked += ["--text-columns", "text", "--device", "cpu", "--overwrite"]
    assert cli.main(asked) == 0 and "which spreadsheets compute when they open it" in capsys.readouterr().err
    assert [row["=note"] for row in read_rows(tmp_path / "out.csv")] == [row["=note"] for row in rows]
    assert cli.main([*asked, "--escape-formulas"]) == 0 and "spreadsheets" not in capsys.readouterr().err
    escaped = [*(f"'{text}" for text in FORMULAS), "-1.5", "'-", "a=b", ""]
    assert [row["'=note"] for row in read_rows(tmp_path / "out.csv")] == escaped


HOSTILE = "<img src=x onerror=alert(1)> | [x](javascript:alert(1)) `*`\n\n<script>"


def test_cards_hold_no_html_of_names_and_labels(shared: Path) -> None:
    metrics = tiny.read_metrics(shared / "plain")
    config = metrics["config"] | {"train_file": f"x/{HOSTILE.replace('/', '')}.csv", "eval_file": None, "task": None}
    constant = {"answer": HOSTILE, "scores": {metrics["metric"]: 0.5}}
    metrics |= {"config": config, "model": HOSTILE, "baseline": {"dev": constant}, "task": HOSTILE}
    metrics["all_scores"] = {"dev": {HOSTILE: 0.5, metrics["metric"]: 0.5}}
    task_type = Classification(label_names=("no", HOSTILE))
    for card in (model_card(metrics, task_type), baseline_card(metrics, task_type)):
        assert "<img" not in card and "<script" not in card and "x](" not in card
        assert "&lt;img src=x onerror" in card
        tables = [line for line in card.splitlines() if line.startswith("| dev")]
        assert all(line.replace(r"\|", "").count("|") == 3 for line in tables)
        assert yaml.safe_load(card.split("---")[1]).keys() <= {"library_name", "pipeline_tag", "base_model", "tags"}


def test_cards_of_baselines_say_what_was_trained(shared: Path) -> None:
    metrics, task_type = tiny.read_metrics(shared / "plain"), Classification(label_names=("no", "yes"))
    assert "Nothing was fine-tuned. Made with" in baseline_card(metrics, task_type)
    assert "SetFit trained the encoder on pairs of rows. Made" in baseline_card(
        metrics | {"method": "setfit"}, task_type
    )
    card = model_card(metrics | {"config": metrics["config"] | {"max_steps": 0}}, task_type)
    assert "with a linear model, on" in card and "Nothing was fine-tuned." in card
    assert "fine-tuned on" not in card and "epoch" not in card.partition("## Training")[0]


def test_bad_rows_are_left_out_of_scores_and_listed(runs: Path, tmp_path: Path, capsys: Captured) -> None:
    file, listed = tmp_path / "in.csv", tmp_path / "bad.jsonl"
    file.write_text("text,label\nthe cat,no\n,no\nNan,yes\na dog,maybe\n")
    asked = ["evaluate", f"{runs}/single", "--eval-file", str(file), "--text-columns", "text", "--device", "cpu"]
    assert cli.main(asked) == 2
    assert "line 3, column 'text': the text is empty. Correct it" in capsys.readouterr().err
    assert cli.main([*asked, "--skip-bad-rows", "--skipped-file", str(listed), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["skipped"]) == (2, 2)
    assert [json.loads(line)["place"] for line in listed.read_text().splitlines()] == ["line 3", "line 5"]
    run = save_run(tmp_path / "run", ["text"], eval_file=str(file), skip_bad_rows=True)  # as they were in training
    assert evaluate(str(run), Source(device="cpu"))["skipped"] == 2


@pytest.mark.parametrize(
    ("name", "suffix", "chunk"),
    [*((name, "csv", 1) for name in INPUTS), ("bad.csv", "txt", 1), ("bad.csv", "jsonl", 100)],
)
def test_there_is_an_answer_to_each_row_also_to_one_that_is_skipped(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, suffix: str, chunk: int
) -> None:
    """Rows are counted as by pandas: blank lines of a table are none."""
    monkeypatch.setattr("attendrop.runs.inference.CHUNK_ROWS", chunk)
    content, texts, ids = INPUTS[name]
    output = tmp_path / f"out.{suffix}"
    (tmp_path / name).write_text(content)
    source = Source(file=str(tmp_path / name), text_columns=["text"], device="cpu", skip_bad_rows=True)
    found = predict(str(runs / "single"), source, str(output), keep_columns=suffix != "txt" and ids is not None)
    assert found["rows"] == sum(text is not None for text in texts)
    if suffix == "txt":
        assert [bool(line) for line in output.read_text().split("\n")[:-1]] == [text is not None for text in texts]
        return
    rows = read_rows(output)
    label = "label" if ids is None else "predicted_label"
    for row, text in zip(rows, texts, strict=True):
        assert (text is None) == bool(row["skipped"]) == (not row[label]) == (not row["probability"])
    if ids is not None:
        assert [row["id"] or "" for row in rows] == ids


def test_labels_that_training_lacks_count_as_wrong_where_asked(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["yes", "maybe", "no", "yes", "never", "maybe", "no"]
    rows = [f"{tiny.sentence(n)},{label}\n" for n, label in enumerate(labels)]
    for name, kept in (("in", rows), ("known", [row for row in rows if row.endswith((",yes\n", ",no\n"))])):
        (tmp_path / f"{name}.csv").write_text("".join(["text,label\n", *kept]))
    asked = Source(file=str(tmp_path / "in.csv"), device="cpu")
    with pytest.raises(AttendropError, match="the label 'maybe' is not among those of training"):
        evaluate(str(runs / "single"), asked)
    known = evaluate(str(runs / "single"), Source(file=str(tmp_path / "known.csv"), device="cpu"))
    monkeypatch.setattr(inference, "CHUNK_ROWS", 2)
    found = evaluate(str(runs / "single"), replace(asked, unknown_labels="wrong"))
    assert found["unknown_labels"] == {"maybe": 2, "never": 1} and found["rows"] == 7
    assert found["all_scores"]["accuracy"] == pytest.approx(4 * known["all_scores"]["accuracy"] / 7)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ("the cat", "predict reads a list of texts, not the text 'the cat'"),
        ({"text": ["the cat"]}, "predict reads a list of texts, not a table; give one column of it."),
        (pd.DataFrame({"text": ["the cat"]}), "predict reads a list of texts, not a table; give one column of it."),
        ([PAIRS[0], "the cat"], "Text 1 has 1 text; the model reads 2 texts together"),
        ([PAIRS[0], ("a", " ")], "Text 1 cannot be predicted: the text is empty."),
        ([("a", 1.5)], "Text 0 cannot be predicted: 1.5 is not text."),
        ([("a", "half \ud83d")], "Text 0 cannot be predicted: it has a NUL character, or half of a surrogate pair"),
        ("in.csv", "was trained on 2 texts a row (sentence1, sentence2), not on 1 (text)"),
    ],
)
def test_texts_that_the_model_cannot_read_are_refused(pruned: Path, tmp_path: Path, texts: Any, problem: str) -> None:
    with pytest.raises(AttendropError, match=re.escape(problem)):
        if isinstance(texts, str) and texts == "in.csv":
            source = Source(file=str(write_rows(tmp_path / texts, 4)), text_columns=("text",))
            predict(str(pruned / "run"), source, "out.csv")
        else:
            attendrop.load(pruned / "run").predict(texts)


@pytest.mark.parametrize(
    "head", ["BertForMaskedLM", "BertForQuestionAnswering", "BertForNextSentencePrediction", "BertModel"]
)
def test_a_model_with_another_head_than_those_of_tasks_is_refused(tmp_path: Path, head: str) -> None:
    """The outputs of some can be read as those of a classifier, but do not mean that."""
    place = tiny.save_tiny_bert(tmp_path / "model")
    getattr(transformers, head).from_pretrained(place).save_pretrained(place)
    with pytest.raises(AttendropError, match=f"{head}, has no trained head for classification: fine-tune it first"):
        attendrop.load(place).predict(["the cat"])


def test_metadata_of_others_or_edited_by_hand(runs: Path, tmp_path: Path) -> None:
    """Many programs write a metrics.json; an edited number is read as one, or refused."""
    place = shutil.copytree(runs / "single", tmp_path / "model")
    (place / "metrics.json").write_text('{"accuracy": 0.9}')
    (kept := place / "run.json").rename(tmp_path / "run.json")
    alone = attendrop.load(place).predict(["the cat"], probabilities=True)
    shutil.copy(runs / "single" / "metrics.json", place)
    run = json.loads((tmp_path / "run.json").read_text())
    for length, refused in (("24", False), ("many", True)):
        kept.write_text(json.dumps(run | {"config": run["config"] | {"max_length": length}}))
        with pytest.raises(AttendropError, match="max_length='many' is no") if refused else nullcontext():
            assert attendrop.load(place).predict(["the cat"], probabilities=True) == alone
    with pytest.raises(AttendropError, match="split is for tasks, and the run has none"):
        evaluate(str(runs / "single"), Source(split="test"))
    kept.write_text(json.dumps(run))
    metrics = json.loads((place / "metrics.json").read_text())
    (place / "metrics.json").write_text(json.dumps(metrics | {"accept": {"wanted": 0.9}}))
    with pytest.raises(AttendropError, match="says 'accept' without a threshold"):
        attendrop.load(place).predict(["the cat"])


def test_a_damaged_tokenizer_is_told(runs: Path, tmp_path: Path) -> None:
    place = shutil.copytree(runs / "single", tmp_path / "model")
    (place / "tokenizer.json").write_text("{")
    with pytest.raises(AttendropError, match="model' cannot be loaded"):
        attendrop.load(place).predict(["the cat"])


def test_a_model_without_the_files_of_its_run_reads_as_it_was_trained(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As it is on the hub: only the weights, the configuration, the tokenizer and the card are uploaded."""
    long = {"text_columns": ("sentence1",), "max_length": 6, "long_texts": "windows", "selection_fraction": 0.0}
    train(tiny.config(files, method="finetune", epochs=None, max_steps=1, head_init="random", **long))
    texts = [tiny.sentence(number) for number in range(5, 25, 6)]
    whole = attendrop.load(files / "run").predict(texts, probabilities=True)
    card = (files / "run" / "README.md").read_text(encoding="utf-8")
    assert "With transformers alone; texts over 6 tokens are cut here, as they were not in training:" in card
    for name in ("run.json", "metrics.json"):
        (files / "run" / name).unlink()
    assert attendrop.load(files / "run").predict(texts, probabilities=True) == whole
    with pytest.raises(AttendropError, match="No label-column is given"):
        evaluate(str(files / "run"), Source(file=str(files / "dev.csv")))
    attendrop.load(files / "run").predict([*texts, "xyz"])
    assert "1 of 5 rows have no token that the model knows" in caplog.text


def test_rows_of_another_file_that_were_trained_on_are_counted(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tiny.config(files, method="finetune", max_steps=1, epochs=None, metric="f1"))
    header, *rows = (files / "train.csv").read_text().splitlines()
    (files / "other.csv").write_text("\n".join([header, *rows[:3], "a bird,sees,no", "a bird,is,maybe"]) + "\n")
    evaluate(str(files / "run"), Source(file=str(files / "other.csv"), device="cpu", unknown_labels="wrong"))
    assert "3 of 5 rows have a text that the model was trained on: scores on them are optimistic." in caplog.text
    assert "f1 is of the class 'yes' alone: rows with labels that training lacks may not lower it." in caplog.text


def test_full_stops_beside_unknown_words_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "!", "cat"]))
    tokenizer = BertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    for texts, unknown in ((["katze.", "hund!", "cat.", "katze cat"], 2), (["!", "..."], 0)):
        ids = tokenizer(texts)["input_ids"]
        assert unknown_rows({"input_ids": ids, "length": [len(each) for each in ids]}, tokenizer) == unknown
