"""Every option of a run, from the command line to what it configures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny, tiny_translators
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.run_folder import SELECTION
from attendrop.runs.run_trainer import RunCallback
from attendrop.tasks.types.modeling_mean_pooling import MeanPooling
from attendrop.training.trainer import RegularizedTrainer

Look = Callable[[Any], Any]
OWN = {
    **{"train_file": "train.csv", "eval_file": "dev.csv", "text_columns": "sentence1,sentence2"},
    **{"label_column": "label", "model": "model", "device": "cpu", "output_dir": "run"},
    "head_init": "random",
}
TASK = dict.fromkeys(("train_file", "eval_file", "text_columns", "label_column")) | {"task": "sst2", "data_dir": "glue"}
TRANSLATED = dict.fromkeys(("eval_file", "text_columns", "label_column")) | {
    "model": "translator", "train_file": "train.en,train.ro",
}  # fmt: skip
ALL = {"eval_file": None, "selection_fraction": "0"}
HELD_OUT = {"selection_fraction": "0.2"}
SHORT = {"text_columns": "sentence1", "max_length": "6"}


def argument(name: str) -> Look:
    return lambda trainer: getattr(trainer.args, name)


def callback(kind: type[TrainerCallback], name: str) -> Look:
    return lambda trainer: [getattr(c, name) for c in trainer.callback_handler.callbacks if isinstance(c, kind)]


def rows(trainer: Any) -> int:
    return len(trainer.train_dataset)


def held_out(trainer: Any) -> int:
    return len(trainer.eval_dataset or ())


def labels(trainer: Any) -> int:
    return int(trainer.model.config.num_labels)


def ranks(trainer: Any) -> list[int]:
    return [adapter.r for adapter in getattr(trainer.model, "peft_config", {}).values()]


def unlabelled(trainer: Any) -> int:
    return len((trainer.head_init or {}).get("unlabelled", ()))  # whether they are used, and why


def first_text(trainer: Any) -> str:
    return str(trainer.processing_class.decode(trainer.train_dataset[0]["input_ids"]))


# Option, its value on the command line, where it is seen, what is seen there with it and not without it, and other
# options with which it is seen, if any.
CASES: tuple[tuple[str, str, Look, Any, dict[str, Any]], ...] = (
    ("model", "wide", lambda trainer: trainer.model.config.hidden_size, 32, {}),
    ("output_dir", "elsewhere", lambda trainer: Path(trainer.args.output_dir).name, ".elsewhere.partial", {}),
    ("task", "cola", first_text, "[CLS] a cat [SEP]", TASK),
    ("data_dir", "other", first_text, "[CLS] a bird [SEP]", TASK),
    ("train_file", "dev.csv", rows, 12, {}),
    ("eval_file", "train.csv", held_out, 40, {"protocol": "paper"}),
    ("text_columns", "sentence2", lambda trainer: first_text(trainer).count("[SEP]"), 1, {}),
    ("label_column", "size", labels, 3, {"eval_file": None}),
    ("label_type", "number", labels, 1, {"eval_file": None, "label_column": "size"}),
    ("label_map", "map.csv", labels, 2, {"eval_file": None, "label_column": "size"}),
    ("with_columns", "sentence2", lambda trainer: "[UNK]" in first_text(trainer), True, {"text_columns": "sentence1"}),
    ("label_names", "names.csv", rows, 43, {"text_columns": "sentence1"}),
    ("unlabelled", "texts.csv", unlabelled, 2, {"text_columns": "sentence1", "head_init": "linear-probe"}),
    ("task_options", "num_beams=2", lambda trainer: trainer.model.generation_config.num_beams, 2, TRANSLATED),
    ("unknown_labels", "wrong", held_out, 13, {"eval_file": "unknown.csv", "protocol": "paper"}),
    ("skip_bad_rows", "", rows, 40, {"train_file": "bad.csv"}),
    ("test_fraction", "0.25", rows, 30, {"eval_file": None, "selection_fraction": "0"}),
    ("ood", "", lambda trainer: rows(trainer) < 40, True, ALL),
    ("ood_column", "size", rows, 27, ALL),
    ("group_column", "size", rows, 27, ALL | {"test_fraction": "0.25"}),
    ("metric", "macro-f1", argument("metric_for_best_model"), "eval_f1_macro", HELD_OUT),
    ("class_weights", "balanced", lambda trainer: trainer.compute_loss_func is not None, True, {}),
    ("accept", "0.9", rows, 30, {"eval_file": None, "selection_fraction": "0"}),
    ("pooling", "mean", lambda trainer: isinstance(trainer.model, MeanPooling), True, {}),
    ("head_init", "linear-probe", lambda trainer: trainer.model.classifier.bias.any().item(), True, {}),
    ("lora", "r=3", ranks, [3], {}),
    ("method", "r-drop", lambda trainer: trainer.regularizer.name, "r-drop", {}),
    ("options", "p=0.4", lambda trainer: trainer.regularizer.p, 0.4, {}),
    ("epochs", "7", argument("num_train_epochs"), 7, {}),
    ("max_steps", "9", argument("max_steps"), 9, {}),
    ("batch_size", "5", argument("per_device_train_batch_size"), 5, {}),
    ("eval_batch_size", "6", argument("per_device_eval_batch_size"), 6, {}),
    ("gradient_accumulation", "3", argument("gradient_accumulation_steps"), 3, {}),
    ("learning_rate", "0.003", argument("learning_rate"), 0.003, {}),
    ("weight_decay", "0.2", argument("weight_decay"), 0.2, {}),
    ("schedule", "cosine", argument("lr_scheduler_type"), "cosine", {}),
    ("warmup", "0.3", lambda trainer: trainer.args.get_warmup_steps(100), 30, {}),
    ("warmup", "0", argument("lr_scheduler_type"), "constant", {"schedule": "constant"}),
    ("max_length", "6", lambda trainer: max(trainer.train_dataset["length"]), 6, {}),
    ("long_texts", "windows", lambda trainer: rows(trainer) > 40, True, SHORT),
    ("max_train_samples", "12", rows, 12, {}),
    ("shots", "4", rows, 8, {}),
    ("protocol", "paper", held_out, 12, {}),
    ("selection_fraction", "0.25", held_out, 10, {}),
    ("refit", "", lambda trainer: Path(trainer.args.output_dir).name, SELECTION, {}),
    ("patience", "4", callback(EarlyStoppingCallback, "early_stopping_patience"), [4], HELD_OUT),
    ("calibrate", "", held_out, 4, {}),
    ("save_steps", "5", callback(RunCallback, "save_steps"), [5], {}),
    ("report_to", "tensorboard", argument("report_to"), ["tensorboard"], {}),
    (  # one callback, since the trainer warns of two of a class
        *("logging_steps", "6", callback(RunCallback, "log_steps")),
        *([6], {"save_steps": "5"}),
    ),
    ("seed", "7", argument("seed"), 7, {}),
    ("seed", "7", argument("data_seed"), 7, {}),
    ("device", "auto", argument("use_cpu"), False, {}),
    ("bf16", "", argument("bf16"), True, {}),
    ("fp16", "", argument("fp16"), True, {"device": "auto"}),
)
DEVICES = {"auto": "cuda", "cpu": "cpu"}
# What is random as a training begins, but for the order of the batches, which is argument "data_seed".
SAMPLED: dict[str, Look] = {
    "head": lambda trainer: trainer.model.classifier.weight.tolist(),
    "weights that the method re-initialises": lambda trainer: trainer.model.bert.pooler.dense.weight.tolist(),
    "rows": lambda trainer: trainer.train_dataset["input_ids"][:],
}
FLAGS = {"options": "--set", "task_options": "--task-set"}


def flagged(name: str, value: str) -> tuple[str, str]:
    """Return an option as on the command line."""
    return FLAGS.get(name, "--" + name.replace("_", "-")), value


def test_every_option_has_a_case() -> None:
    fields = {field.name for field in dataclasses.fields(RunConfig)}
    assert {name for name, *_ in CASES} == fields - {"halvings"}  # of learning curves, not of the command line


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Function that returns the trainer of a run on the command line as its training begins; None if it is refused."""
    folder = tmp_path_factory.mktemp("every-option")
    tiny.save_tiny_bert(folder / "model")
    tiny.save_tiny_bert(folder / "wide", hidden_size=32)
    tiny_translators.save_tiny_marian(folder / "translator")
    tiny_translators.write_pairs(folder, "train", range(20))
    train, dev = tiny.write_data(folder)
    lines = train.read_text().splitlines()
    train.write_text("\n".join([f"{lines[0]},size", *(f"{line},{n % 3}" for n, line in enumerate(lines[1:]))]))
    (folder / "unknown.csv").write_text(f"{dev.read_text()}a cat,a dog,maybe\n")
    (folder / "map.csv").write_text("label,meaning\n2,1\n")
    (folder / "names.csv").write_text("label,text\nyes,all is well\nyes,good\nno,bad\n")
    (folder / "texts.csv").write_text("sentence1\nnot a cat\n")
    (folder / "bad.csv").write_text("\n".join([*lines, ",,yes"]))
    for place, sst2, cola in (("glue", "a dog", "a cat"), ("other", "a bird", "")):
        for part in ("train", "dev"):
            for name, text in (("SST-2", f"sentence\tlabel\n{sst2}\t1\n"), ("CoLA", f"x\t1\t\t{cola}\n")):
                (folder / place / name).mkdir(parents=True, exist_ok=True)
                (folder / place / name / f"{part}.tsv").write_text(text)
    trainers: list[RegularizedTrainer] = []

    def stop(trainer: RegularizedTrainer, *_: Any, **__: Any) -> None:
        trainers.append(trainer)
        raise AttendropError("Enough is seen.")

    @cache
    def begin(*options: tuple[str, str | None]) -> RegularizedTrainer | None:
        line = [part for option in options if option[1] is not None for part in flagged(*option) if part]
        assert cli.main(["train", *line, "--quiet"]) == 2
        return trainers.pop() if trainers else None

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(RegularizedTrainer, "train", stop)
        patch.setattr("attendrop.runs.train._ALSO", {"tensorboard": ("torch",)})
        patch.setitem(INTEGRATION_TO_CALLBACK, "tensorboard", TrainerCallback)
        for module in ("train", "run_trainer"):  # as on a machine with a GPU
            patch.setattr(f"attendrop.runs.{module}.compute_device", lambda name: torch.device(DEVICES[name]))
        yield begin


@pytest.mark.parametrize(("name", "value", "look", "expected", "others"), CASES)
def test_every_option_reaches_what_it_configures(
    name: str, value: str, look: Look, expected: Any, others: dict[str, Any], begun: Callable[..., Any]
) -> None:
    without, with_it = (begun(*(OWN | others | option).items()) for option in ({}, {name: value}))
    assert look(with_it) == expected != (without and look(without))


@pytest.mark.parametrize("rows", [HELD_OUT, {"max_train_samples": "30"}, {"shots": "10"}], ids=str)
def test_the_seed_decides_all_that_is_random(rows: dict[str, str], begun: Callable[..., Any]) -> None:
    options = OWN | rows | {"method": "layer-reinit"}
    one, other = (begun(*(options | {"seed": seed}).items()) for seed in ("1", "2"))
    assert [name for name, look in SAMPLED.items() if look(one) == look(other)] == []
