"""Options of a training run: their only declaration.

The command line and its help (:mod:`attendrop.cli.run_options`), ``run.yaml`` and study files
(:mod:`attendrop.runs.run_file`), ``docs/options.md`` and the errors are made from the fields of :class:`RunConfig`.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, InitVar, asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError
from attendrop.methods.core.declared import check_declared
from attendrop.methods.core.options import choice, read_options
from attendrop.runs.declared_options import FRACTION, PATH, at_least, check_fields, number, option
from attendrop.tasks.class_names import AUTO, check_label_names, check_unlabelled, why_no_names
from attendrop.tasks.heads.builtin import LABEL_TYPES, NUMBER, ONE_CLASS, SEVERAL_CLASSES
from attendrop.tasks.long_texts import LONG_TEXTS
from attendrop.tasks.table import UNKNOWN_LABELS, default_columns, default_label_type, files_of
from attendrop.wording import names_of

if TYPE_CHECKING:
    from attendrop.methods.core.base import Method
    from attendrop.runs.lora import LoraOptions


DEFAULT_METHOD = "ad-drop"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Options of a training run.

    Options of the training that are None follow from the rows and the model, see
    :mod:`attendrop.runs.small_data_recipe`. The optimizer is AdamW, with warmup over a tenth of the steps and linear
    decay to zero. Published settings are in :mod:`attendrop.runs.run_file`. Numbers and switches may be given as text.

    Raises:
        AttendropError: An option is out of range, or two options conflict.
    """

    model: str = option(MISSING, "model", "minilm, a folder, or a hub id.", PATH, shown="minilm")
    output_dir: str = option(MISSING, help="Folder of the run.", allowed=PATH)
    task: str | None = option(
        None, "task", "Name of a task, or of a kind of task with --train-file; `attendrop tasks` lists them."
    )
    data_dir: str | None = option(
        None, "data_dir", "Folder of the task's files. Default: $ATTENDROP_DATA, then the hub.", PATH
    )
    train_file: str | None = option(
        None,
        "files",
        "Training data: a .csv, .tsv, .xlsx, .json, .jsonl, .parquet, .conll, .conllu or .txt file, or A.txt,B.txt.",
        PATH,
    )
    eval_file: str | None = option(None, "files", "Evaluation data: a file to report on, once, at the end.", PATH)
    """Without one, the score is measured on held-out rows."""
    text_columns: tuple[str, ...] = option(
        (), "columns", "Text columns of your files, comma-separated.", shown="those that look like it"
    )
    """Their number depends on the kind of task. Some formats have default columns: ``tokens`` of column files (.conll,
    .conllu) and ``source`` of two parallel text files. Columns that the method reads are needed in the ``train_file``
    only."""
    label_column: str | None = option(
        None, "columns", "Label column of your files.", shown="the one that looks like it"
    )
    """Several, comma-separated: a column of zeros and ones for each label that a row may have. By default ``tags`` or
    ``upos`` of column files, and ``target`` of two text files."""
    label_type: str = option(
        "auto", "columns", f"Kind of task, by its labels: {', '.join(LABEL_TYPES[:-1])} or {LABEL_TYPES[-1]}."
    )
    label_map: str | None = option(
        None, "columns", "File that merges variants of labels: its columns label and meaning.", PATH
    )
    """``attendrop inspect --write-label-map`` writes a draft. A label that the file lacks is kept; one with an
    empty meaning becomes empty, so that ``skip_bad_rows`` leaves its rows out."""
    label_names: str | None = option(
        AUTO, "columns", "Names of classes as training rows: auto, none, or a file with columns label and text.", PATH
    )
    """With "auto", each class adds one training row, its name in words, if rows are few and the names are words, see
    :func:`attendrop.tasks.class_names.why_no_rows`; with a file, its texts are rows. For files with one text a row, of
    one class or several; None elsewhere. They are training rows of all models and baselines, beside those that
    ``shots`` and fractions count, and never held out, rewarded or scored."""
    unlabelled: str | None = option(
        None, "columns", "File of texts without labels, for linear models and the head's start.", PATH
    )
    """Its column of the training file's text column's name, or its only one. The linear model that a head starts from,
    and those of baselines, are fitted with these texts, too, if held-out training rows lose nothing by it, see
    :func:`attendrop.tasks.heads.linear_models.self_trained`. For files with one text a row, of one class."""
    task_options: Mapping[str, Any] = option(
        {},
        "columns",
        "Option of the kind of task: num_beams=4.",
        flags=["--task-set"],
        example="num_beams=4",
    )
    skip_bad_rows: bool = option(False, "rows", "Skip invalid rows of your files, and list them.")
    unknown_labels: str | None = option(
        None,
        "rows",
        "Labels of the eval file not in training: error, or count as wrong.",
        choice(*UNKNOWN_LABELS),
        shown="error",
    )
    test_fraction: float = option(
        0.0, "held_out", "Instead of --eval-file: fraction of the training data to report on.", FRACTION
    )
    """The same rows for every seed, stratified by class; rows with the same text are on the same side. For a named
    task, they replace its development set, which then stays unseen, so that settings can be chosen on them."""
    shift: bool | None = option(
        None,
        "held_out",
        "Also score on rows unlike the training rows: whole groups of similar texts, held out.",
        flags=["--shift"],
    )
    """One group in each class, of about the fraction ``test_fraction`` of its rows (a quarter if that is 0); see
    :func:`attendrop.tasks.likeness.hold_out_like`."""
    shift_column: str | None = option(
        None, "held_out", "With --shift: hold out the last whole values of this column, such as months."
    )
    group_column: str | None = option(
        None, "held_out", "Column of your files whose rows belong together, such as customer or thread."
    )
    """All splits keep the rows of a group, with the same value, on one side; intervals on new rows are about new
    groups. Rows with nearly the same text belong together without it, see
    :func:`attendrop.tasks.groups.near_duplicates`."""
    metric: str | None = option(
        None, "score", "Metric for model selection: f1_macro, balanced_accuracy ...", shown="the task's"
    )
    """Names are those of :func:`attendrop.tasks.metrics.with_metric`."""
    class_weights: str | None = option(
        None, "score", "balanced: classes have equal weight in the loss.", choice("balanced"), shown="none"
    )
    pooling: str = option(
        "auto",
        "start",
        "What the classifier reads: cls, mean (of all tokens) or auto.",
        choice("auto", "cls", "mean"),
    )
    """``"cls"`` is what the class of transformers reads, mostly the first token; ``"mean"`` the mean of the last hidden
    states over all tokens; ``"auto"`` the mean if the model was trained so."""
    head_start: str = option(
        "auto",
        "start",
        "Start of a new head: random, frozen (linear model) or auto.",
        choice("auto", "random", "frozen"),
    )
    """``"frozen"`` is a linear model fitted to the frozen encoder's features of the training rows; ``"auto"`` the same,
    if the head is one linear layer on trained features."""
    lora: Mapping[str, Any] | None = option(
        None, "start", "Train a LoRA adapter: r=8, alpha=16, dropout=0.05, targets=all-linear.", example="r=8"
    )
    """See :class:`attendrop.runs.lora.LoraOptions`: only the adapter and the head are trained and saved. None: the
    model itself is trained."""
    method: str = option(DEFAULT_METHOD)
    """Name of the method, or several joined by ``+``."""
    options: Mapping[str, Any] = option({}, flags=["--set"], example="p=0.3")
    """Options of the method."""
    epochs: int | None = option(None, "optimization", "Number of epochs, instead of steps.")
    max_steps: int | None = option(
        None,
        "optimization",
        "Number of training steps; overrides --epochs.",
        at_least(0),
        shown="by the number of rows",
    )
    """Optimizer steps; for comparisons between methods that train on different numbers of rows. 0: only a head that
    starts from the frozen encoder."""
    batch_size: int | None = option(None, "optimization", "Rows per process.", shown="16")
    """In a micro-batch."""
    eval_batch_size: int = option(64, "optimization")
    gradient_accumulation: int = option(1, "optimization", "Batches per step.")
    learning_rate: float | None = option(
        None,
        "optimization",
        allowed=number("a number above 0", lambda value: 0 < value < math.inf),
        shown="by the size of the model",
    )
    weight_decay: float = option(
        0.01, "optimization", allowed=number("at least 0", lambda value: 0 <= value < math.inf)
    )
    schedule: str = option(
        "linear", "optimization", "linear, constant or cosine.", choice("linear", "constant", "cosine")
    )
    warmup: float = option(0.1, "optimization", "Fraction of all steps.", FRACTION)
    """A warm-up of less than one step is left out."""
    max_length: int = option(128, "length", "In tokens.")
    long_texts: str | None = option(
        None,
        "length",
        "Texts over --max-length: head, head+tail, or windows with one score.",
        choice(*LONG_TEXTS),
        shown="head",
    )
    """``"head"`` truncates them; ``"head+tail"`` keeps their beginning and their end; ``"windows"`` trains on windows
    of this length, and averages the outputs of a text's windows."""
    max_train_samples: int | None = option(None, "sample", "Number of training rows to use.")
    shots: int | None = option(None, "sample", "Number of training rows per class to use.")
    """The selection split is taken from these, as from ``max_train_samples``."""
    protocol: str = option(
        "honest",
        "selection",
        "honest: select the epoch on held-out training data; paper: on the development set.",
        choice("honest", "paper"),
    )
    """``"honest"`` keeps the last epoch, or with a ``selection_fraction`` or ``patience`` the best one on held-out
    training data; ``"paper"`` chooses it on the development set, as the papers do."""
    selection_fraction: float | None = option(
        None,
        "selection",
        "Fraction of training data to hold out for selecting the epoch; 0 keeps the last.",
        FRACTION,
        shown="0, or 0.1 without evaluation data",
    )
    """Stratified by class; rows with the same text are on the same side. None: a tenth if ``patience``, ``refit``,
    ``calibrate`` or the method's rewards need it, or for a score if there are no evaluation data; otherwise none."""
    refit: bool | None = option(None, "selection", "Train again, including the held-out rows.", shown="if any are")
    """For the number of steps that was best with rows held out. None: if rows were held out, except for rewards."""
    patience: int | None = option(
        None,
        "selection",
        "Stop after this many epochs without improvement.",
        flags=["--patience", "--early-stopping"],
    )
    calibrate: bool | None = option(
        None, "selection", "Scale the logits so that probabilities fit held-out rows.", shown="no"
    )
    """By one temperature, in the weights of the last layer; predicted classes do not change. For classification."""
    save_steps: int | None = option(None, "checkpoints", "Number of steps between additional checkpoints.")
    """In addition to one after each epoch."""
    report_to: str = option(
        "none",
        "logs",
        "tensorboard, wandb, trackio or mlflow.",
        choice("none", "tensorboard", "wandb", "trackio", "mlflow"),
    )
    """Where metrics are logged while the run trains."""
    logging_steps: int | None = option(None, "logs", "Number of steps between logs.")
    """None logs after each epoch."""
    seed: int = option(
        0, "seed", "Several, such as 0,1,2: a run for each, and their mean.", at_least(0, bits=32), listed=True
    )
    """Seed of the head's weights, the splits, the order of batches, and all dropout."""
    device: str = option("auto", "machine", "auto or cpu.", choice("auto", "cpu"))
    bf16: bool = option(False, "machine", "bfloat16 mixed precision.")
    """In training, and to choose an epoch; final scores are those of the saved weights, in their precision."""
    fp16: bool = option(False, "machine", "float16 mixed precision; needs a GPU.")
    on_data: InitVar[Callable[[RunConfig], object] | None] = None
    """Called with the options before the method is created, which loads PyTorch, to check the data first."""

    def __post_init__(self, on_data: Callable[[RunConfig], object] | None) -> None:
        check_fields(self)
        self._read_kind_of_task()
        texts, label = default_columns(self.train_file)
        object.__setattr__(self, "text_columns", self.text_columns or texts)
        object.__setattr__(self, "label_column", label if self.label_column is None else self.label_column)
        if self.label_type == "auto":
            object.__setattr__(self, "label_type", default_label_type(self.train_file))
        self._check_data()
        self._settle_label_names()
        self._check_training()
        self._check_selection()
        if self.bf16 and self.fp16:
            raise AttendropError("bf16 and fp16 exclude each other; choose one.")
        check_declared(self.method, self.options)
        if on_data is not None:
            on_data(self)
        object.__setattr__(self, "options", self.regularizer.options())
        if self.adapter is not None:
            from attendrop.methods.core.base import refuse_with_adapter

            object.__setattr__(self, "lora", self.adapter.as_dict())
            refuse_with_adapter(self.regularizer)
        self._check_rows_of_method(self.regularizer)

    def _read_kind_of_task(self) -> None:
        """Read a task that is a type of labels, as for ``label_type``."""
        if self.task not in LABEL_TYPES:
            return
        if self.train_file is None:
            raise AttendropError(f"Task {self.task!r} is for custom files; give a train-file.")
        if self.label_type not in ("auto", self.task):
            raise AttendropError(f"Task {self.task!r} and label-type {self.label_type!r} differ; give one of them.")
        object.__setattr__(self, "label_type", self.task)
        object.__setattr__(self, "task", None)

    def _check_data(self) -> None:
        if self.task is None and self.train_file is None:
            raise AttendropError(
                "No data are given; give --train-file with rows of your own, or --task with one that `attendrop tasks` "
                "lists."
            )
        if self.task is not None and self.train_file is not None:
            raise AttendropError(
                f"With a train-file, task is the kind of its rows, one of {', '.join(LABEL_TYPES[1:])}, and not "
                f"{self.task!r}; give one of these, or omit one of the two."
            )
        if self.task is not None:
            refuse_options_of_files(self)
        if self.train_file is not None and self.data_dir is not None:
            raise AttendropError("data-dir is for tasks; omit it for a train-file.")
        if self.train_file is not None:
            self._complete_columns(self.train_file)
        if self.eval_file is not None and self.test_fraction:
            raise AttendropError("test-fraction and eval-file are both evaluation data; choose one.")
        if self.shift_column is not None and (self.task is not None or self.shift is False):
            raise AttendropError("shift-column is for custom files, with shift; omit it here.")
        if self.group_column is not None and self.task is not None:
            raise AttendropError("group-column is for custom files; omit it here.")
        if self.group_column is not None and self.group_column == self.label_column:
            raise AttendropError(f"group-column '{self.group_column}' is the label column; name another.")
        if self.shots is not None and self.max_train_samples is not None:
            raise AttendropError("shots and max-train-samples both limit the training data; choose one.")

    def _complete_columns(self, file: str) -> None:
        """Detect columns that are not given from the file, if they are unambiguous."""
        guessed = ("auto", *ONE_CLASS, *SEVERAL_CLASSES, *NUMBER)
        labelled, hint = self.label_column is not None or self.label_type not in guessed, ""
        if self.text_columns and labelled:
            return
        if not any(each.exists() for each in files_of(file)):
            raise AttendropError(f"There is no file '{file}'.")
        if self.label_type in guessed:
            from attendrop.tasks.inspection import candidate_columns

            texts, labels, hint = candidate_columns(file, self.text_columns, self.label_column, self.label_type)
            object.__setattr__(self, "text_columns", texts[0] if len(texts) == 1 else ())
            object.__setattr__(self, "label_column", labels[0] if len(labels) == 1 else None)
            labelled = labelled or self.label_column is not None
        missing = {"the texts (text-columns)": not self.text_columns, "the labels (label-column)": not labelled}
        if any(missing.values()):
            from attendrop.tasks.table import column_names

            held = " and ".join(name for name in missing if missing[name])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the reader of the run warns
                columns = names_of(column_names(file))
            hint = "" if labelled else hint
            raise AttendropError(f"It is not clear which columns of {file} hold {held}; name them, of {columns}.{hint}")

    def _settle_label_names(self) -> None:
        reason = why_no_names(self.task, self.label_type, len(self.text_columns))
        check_label_names(self.label_names, reason)
        if reason:  # known without reading the data
            object.__setattr__(self, "label_names", None)
        check_unlabelled(self.unlabelled, self.task, self.label_type, len(self.text_columns))

    def _check_training(self) -> None:
        if self.max_steps == 0 and (self.head_start != "frozen" or self.refit):
            raise AttendropError(
                "max-steps 0 trains nothing but the head's start; use it with head-start 'frozen', without refit."
            )
        if self.max_steps == 0 and self.lora is not None:
            raise AttendropError("max-steps 0 trains nothing but the head's start, so no adapter; omit lora.")

    def _check_selection(self) -> None:
        if self.protocol == "paper":
            if self.train_file is not None and not self._has_eval_rows:
                raise AttendropError("protocol 'paper' selects the epoch on the eval-file; give one.")
        elif self.patience is not None and self.selection_fraction == 0:
            raise AttendropError("patience needs a selection split, but selection-fraction is 0; raise it.")
        if self.calibrate and (self.protocol == "paper" or self.selection_fraction == 0):
            raise AttendropError("calibrate needs rows held out from training, but there are none; omit it.")
        if self.refit and (self.protocol == "paper" or self.selection_fraction == 0):
            raise AttendropError(
                "refit trains on the selection split, too, but no training rows are held out; omit it."
            )

    def _check_rows_of_method(self, method: Method) -> None:
        """Refuse a method that reads rows that the data do not have."""
        if self.rewarded_on == "eval" and self.train_file is not None and not self._has_eval_rows:
            raise AttendropError(f"{method.rewarded_by} scores models on the eval-file during training; give one.")

    @property
    def _has_eval_rows(self) -> bool:
        return self.eval_file is not None or self.test_fraction > 0

    @cached_property
    def regularizer(self) -> Method:
        """The method, built once from its name and options."""
        from attendrop.methods.core.registry import build_method

        return build_method(self.method, self.options)

    @cached_property
    def adapter(self) -> LoraOptions | None:
        """The options of the adapter, checked; None if the model itself is trained."""
        from attendrop.runs.lora import LoraOptions

        return None if self.lora is None else LoraOptions(**read_options(LoraOptions, self.lora, "lora"))

    @property
    def rewarded_on(self) -> str | None:
        """Rows on which models are scored during training."""
        return self.regularizer.rewarded_on()

    @property
    def label_names_file(self) -> str | None:
        """The file of ``label_names``; None if it is no file."""
        given = self.label_names
        return given if given != AUTO else None

    def filled(self, **options: Any) -> RunConfig:
        """Return a copy with other values, unchecked; it has the same method object, unless this has other options."""
        found = copy.copy(self)
        if "options" in options:
            vars(found).pop("regularizer", None)
        for name, value in options.items():
            object.__setattr__(found, name, value)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return all options as JSON values."""
        return asdict(self) | {"text_columns": list(self.text_columns), "options": dict(self.options)}


def default_output_dir(task: str | None, train_file: str | None, method: str, seeds: Sequence[int]) -> str:
    """Return the default folder of a run; custom files with the same name in different folders get different ones."""
    data = task or ""
    if train_file is not None:
        place = hashlib.sha256(os.path.realpath(train_file).encode()).hexdigest()
        data = f"{Path(train_file).stem}-{place[:6]}"
    return f"runs/{data}-{method}-seed{'-'.join(map(str, seeds))}"


def as_in_runs(name: str, group: str, **changed: Any) -> Any:
    """Declare an option of runs for another class, in another group, except for what is ``changed``."""
    field = next(field for field in dataclasses.fields(RunConfig) if field.name == name)
    metadata = {**field.metadata, "group": group, **changed}
    return dataclasses.field(default=field.default, default_factory=field.default_factory, metadata=metadata)


_OF_FILES = ("eval_file", "text_columns", "label_column", "label_map", "unknown_labels", "skip_bad_rows")


def refuse_options_of_files(options: Any, names: Sequence[str] = _OF_FILES) -> None:
    """Refuse the given options of files, since the data are those of a task.

    Raises:
        AttendropError: One is given.
    """
    if given := next((name for name in names if getattr(options, name, None)), None):
        raise AttendropError(f"{given.replace('_', '-')} is for custom files; omit it for a task.")
