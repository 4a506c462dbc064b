"""Options of a training run, and their checks."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendrop.argument_checks import check_choice, check_least
from attendrop.errors import AttendropError
from attendrop.tasks.file_formats import default_columns, default_label_type, files_of
from attendrop.tasks.heads.builtin import LABEL_TYPES
from attendrop.tasks.long_texts import LONG_TEXTS
from attendrop.tasks.table import UNKNOWN_LABELS

if TYPE_CHECKING:
    from attendrop.methods.core.base import Method
    from attendrop.runs.lora import LoraOptions


DEFAULT_METHOD = "ad-drop"
PROTOCOLS = ("honest", "paper")
SCHEDULES = ("linear", "constant", "cosine")
DEVICES = ("auto", "cpu")
CLASS_WEIGHTS = ("balanced",)
POOLINGS = ("auto", "cls", "mean")
HEAD_STARTS = ("auto", "random", "frozen", "contrastive")
REPORT_TO = ("none", "tensorboard", "wandb", "trackio", "mlflow")
_AT_LEAST = {
    "epochs": 1,
    "max_steps": 0,
    "batch_size": 1,
    "eval_batch_size": 1,
    "gradient_accumulation": 1,
    "max_length": 1,
    "max_train_samples": 1,
    "shots": 1,
    "patience": 1,
    "save_steps": 1,
    "logging_steps": 1,
}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Options of a training run.

    Options of the training that are None follow from the rows and the model, see
    :mod:`attendrop.runs.small_data_recipe`. The optimizer is AdamW, with warmup over a tenth of the steps and linear
    decay to zero. Published settings are in :mod:`attendrop.runs.presets`.

    Attributes:
        model: Folder, hub id or ``"minilm"``.
        output_dir: Folder of the run.
        task: Name of a task; None for custom files. With a ``train_file``, a ``label_type``, such as ``"mlm"``.
        data_dir: Folder of the task's files; None: ``$ATTENDROP_DATA``, then the hub.
        train_file, eval_file: Custom files, or folders of images, with ``text_columns`` (as many as the kind of task
            reads), ``label_column`` and ``label_type`` (``"auto"``, or one of a kind of task). Files of some formats
            have columns by default: of column files (.conll, .conllu) ``tokens``, and ``tags`` or ``upos``; of two
            parallel text files ``source`` and ``target``; of folders ``image`` and ``label``. Without an ``eval_file``,
            the score is one on held-out rows. Columns that the method reads are needed in the ``train_file`` only.
        task_options: Options of the kind of task, such as the number of beams of a translation.
        unknown_labels: What is done with classes and tags of the ``eval_file`` that training lacks: ``"error"``, they
            are refused; ``"wrong"``, they count as wrong, and are counted in the report on the data. None: the former.
        skip_bad_rows: Skip invalid rows of custom files, and list them in the run's folder.
        metric: Metric that selects the best epoch, named as for :func:`attendrop.tasks.metrics.with_metric`; None:
            the task's own.
        class_weights: ``"balanced"``: classes have equal weight in the loss; None: rows have equal weight.
        pooling: What the classifier reads: ``"mean"``, the mean of the last hidden states over all tokens; ``"cls"``,
            what the class of transformers reads, mostly the first token; ``"auto"``: the mean if the model was trained
            so.
        head_start: Start of a new head: ``"random"``; ``"frozen"``, a linear model fitted to the frozen encoder's
            features of the training rows; ``"auto"``: the latter, where the head is one linear layer on trained
            features; ``"contrastive"``: the same, after SetFit's contrastive stage on these rows (package setfit).
        lora: Options of a LoRA adapter, see :class:`attendrop.runs.lora.LoraOptions`: only the adapter and the head are
            trained and saved. None: the model itself is trained.
        method: Name of the method, or several joined by ``+``, with its ``options``.
        epochs, batch_size, gradient_accumulation, learning_rate, weight_decay, schedule, warmup: Options of the
            optimization. ``batch_size`` counts rows per process and micro-batch; ``warmup`` is a fraction of all steps.
        max_steps: Number of optimizer steps, instead of ``epochs``; for comparisons between methods that
            train on different numbers of rows. None: ``epochs``, and without these what the recipe says. 0: only a
            head that starts from the frozen encoder.
        max_length: Maximum length in tokens.
        long_texts: What is done with longer texts: ``"head"``, truncate them; ``"head+tail"``, keep their beginning and
            their end; ``"windows"``, train on windows of this length, and average the outputs of a text's windows.
            None: ``"head"``.
        test_fraction: Fraction of the training rows to set aside as the evaluation data, where there is no
            ``eval_file``: the same rows for every seed, stratified by class; rows with the same text are on the same
            side. Of a task, they take the place of its development set, which then stays unseen: settings can be chosen
            on them.
        shift: Whether to score on rows that are unlike the training rows, too: in each class, a whole group of like
            texts is held out, about as many rows as ``test_fraction`` (a quarter, where that is 0); see
            :func:`attendrop.tasks.likeness.hold_out_like`.
        shift_column: Column of the training file whose whole values are held out instead, such as a month or an author.
        max_train_samples, shots: Number of rows of the training data to use, in total or of each class; the selection
            split is taken from these.
        protocol: ``"honest"`` keeps the last epoch, or with a ``selection_fraction`` or ``patience`` the best one on
            held-out training data; ``"paper"`` chooses it on the development set, as the papers do.
        selection_fraction: Fraction of the training data to hold out for that choice, stratified by class; rows with
            the same text are on the same side. 0: none. None: a tenth if ``patience``, ``refit`` or the method's
            rewards need it, or for a score if there are no evaluation data; otherwise none.
        refit: Train the final model again, on all rows, for as many steps as were best with a part held out. None:
            wherever a part was held out, but for rewards.
        patience: Stop after this many epochs without a better selection score; None never stops early.
        save_steps: Number of optimizer steps between checkpoints, in addition to one after each epoch.
        report_to: Where metrics are logged while the run trains: ``"tensorboard"``, ``"wandb"``, ``"trackio"``,
            ``"mlflow"`` or ``"none"``.
        logging_steps: Number of optimizer steps between logs; None logs after each epoch.
        seed: Seed of the head's weights, the splits, the order of batches, and all dropout.
        device: ``"auto"`` or ``"cpu"``.
        bf16, fp16: Mixed precision.

    Raises:
        AttendropError: An option is out of range, or two options conflict.
    """

    model: str
    output_dir: str
    task: str | None = None
    data_dir: str | None = None
    train_file: str | None = None
    eval_file: str | None = None
    text_columns: tuple[str, ...] = ()
    label_column: str | None = None
    label_type: str = "auto"
    task_options: Mapping[str, Any] = field(default_factory=dict)
    skip_bad_rows: bool = False
    unknown_labels: str | None = None
    test_fraction: float = 0.0
    shift: bool | None = None
    shift_column: str | None = None
    metric: str | None = None
    class_weights: str | None = None
    pooling: str = "auto"
    head_start: str = "auto"
    lora: Mapping[str, Any] | None = None
    method: str = DEFAULT_METHOD
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    max_steps: int | None = None
    batch_size: int | None = None
    eval_batch_size: int = 64
    gradient_accumulation: int = 1
    learning_rate: float | None = None
    weight_decay: float = 0.01
    schedule: str = "linear"
    warmup: float = 0.1
    max_length: int = 128
    long_texts: str | None = None
    max_train_samples: int | None = None
    shots: int | None = None
    protocol: str = "honest"
    selection_fraction: float | None = None
    refit: bool | None = None
    patience: int | None = None
    save_steps: int | None = None
    report_to: str = "none"
    logging_steps: int | None = None
    seed: int = 0
    device: str = "auto"
    bf16: bool = False
    fp16: bool = False

    def __post_init__(self) -> None:
        self._read_kind_of_task()
        texts, label = default_columns(self.train_file)
        object.__setattr__(self, "text_columns", tuple(self.text_columns) or texts)
        object.__setattr__(self, "label_column", self.label_column or label)
        if self.label_type == "auto":
            object.__setattr__(self, "label_type", default_label_type(self.train_file))
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None:
                check_least(name, value, least)
        check_least("seed", self.seed, 0, bits=32)
        if self.learning_rate is not None and not (0 < self.learning_rate < math.inf):
            raise AttendropError(f"learning-rate must be a number above 0, not {self.learning_rate}.")
        if not (0 <= self.weight_decay < math.inf):
            raise AttendropError(f"weight-decay must be at least 0, not {self.weight_decay}.")
        for name in ("warmup", "selection_fraction", "test_fraction"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise AttendropError(f"{_words(name)} must be at least 0 and below 1, not {getattr(self, name)}.")
        check_choice("protocol", self.protocol, PROTOCOLS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("device", self.device, DEVICES)
        check_choice("report_to", self.report_to, REPORT_TO)
        check_choice("pooling", self.pooling, POOLINGS)
        check_choice("head_start", self.head_start, HEAD_STARTS)
        if self.long_texts is not None:
            check_choice("long_texts", self.long_texts, LONG_TEXTS)
        if self.unknown_labels is not None:
            check_choice("unknown_labels", self.unknown_labels, UNKNOWN_LABELS)
        if self.class_weights is not None:
            check_choice("class_weights", self.class_weights, CLASS_WEIGHTS)
        self._check_data()
        self._check_training()
        self._check_selection()
        if self.bf16 and self.fp16:
            raise AttendropError("bf16 and fp16 exclude each other; choose one.")
        object.__setattr__(self, "options", self.regularizer.options())
        if self.adapter is not None:
            from attendrop.methods.core.declarations import refuse_with_adapter

            object.__setattr__(self, "lora", self.adapter.as_dict())
            refuse_with_adapter(self.regularizer)
        self._check_rows_of_method(self.regularizer)

    def _read_kind_of_task(self) -> None:
        """Read a task that is a type of labels, as for ``label_type``."""
        if self.task is None:
            return
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
            raise AttendropError("Give a task or a train-file, and not both.")
        own = ("eval_file", "text_columns", "label_column", "unknown_labels")
        given = [name for name in own if getattr(self, name)]
        if self.task is not None and given:
            raise AttendropError(f"{_words(given[0])} is for custom files; omit it for a task.")
        if self.train_file is not None and self.data_dir is not None:
            raise AttendropError("data-dir is for tasks; omit it for a train-file.")
        if self.train_file is not None and not self.text_columns:
            if not any(file.exists() for file in files_of(self.train_file)):
                raise AttendropError(f"There is no file or folder '{self.train_file}'.")
            raise AttendropError(
                "No text-columns are given for the train-file; give some, comma-separated, of "
                f"{self._columns_of_train_file()}."
            )
        if self.train_file is not None and self.label_column is None and self.label_type == "auto":
            raise AttendropError(
                f"No label-column is given for the train-file; give one of {self._columns_of_train_file()}."
            )
        if self.task is not None and self.skip_bad_rows:
            raise AttendropError("skip-bad-rows is for custom files; omit it for a task.")
        if self.eval_file is not None and self.test_fraction:
            raise AttendropError("test-fraction and eval-file are both evaluation data; choose one.")
        if self.shift_column is not None and (self.task is not None or self.shift is False):
            raise AttendropError("shift-column is for custom files, with shift; omit it here.")
        if self.shots is not None and self.max_train_samples is not None:
            raise AttendropError("shots and max-train-samples both limit the training data; choose one.")

    def _columns_of_train_file(self) -> str:
        from attendrop.tasks.table_files import column_names  # loads pyarrow

        return ", ".join(map(repr, column_names(str(self.train_file))))

    def _check_training(self) -> None:
        if self.max_steps == 0 and (self.head_start not in ("frozen", "contrastive") or self.refit):
            raise AttendropError(
                "max-steps 0 trains nothing but the head's start; use it with head-start 'frozen' or 'contrastive', "
                "without refit."
            )
        if self.head_start == "contrastive" and self.lora is not None:
            raise AttendropError("head-start 'contrastive' trains the model itself, and lora an adapter; choose one.")
        if self.max_steps == 0 and self.lora is not None:
            raise AttendropError("max-steps 0 trains nothing but the head's start, so no adapter; omit lora.")

    def _check_selection(self) -> None:
        if self.protocol == "paper":
            if self.train_file is not None and not self._has_eval_rows:
                raise AttendropError("protocol 'paper' selects the epoch on the eval-file; give one.")
        elif self.patience is not None and self.selection_fraction == 0:
            raise AttendropError("patience needs a selection split, but selection-fraction is 0; raise it.")
        if self.refit and (self.protocol == "paper" or self.selection_fraction == 0):
            raise AttendropError(
                "refit trains on the selection split, too, but no training rows are held out; omit it."
            )

    def _check_rows_of_method(self, method: Method) -> None:
        """Refuse a method that reads rows or columns that the data do not have."""
        if self.rewarded_on == "eval" and self.train_file is not None and not self._has_eval_rows:
            raise AttendropError(f"{method.rewarded_by} scores models on the eval-file during training; give one.")
        if self.rewarded_on == "selection" and self.selection_fraction == 0:
            raise AttendropError(
                f"{method.rewarded_by} scores on the selection split, but selection-fraction is 0; raise it."
            )
        if self.rewarded_on == "selection" and self.refit:
            raise AttendropError(f"{method.rewarded_by} scores on the selection split, so refit cannot train on it.")
        missing = sorted(set(method.columns) - set(self._task_columns)) if self.task is not None else []
        if missing:
            raise AttendropError(
                f"The data of task {self.task!r} has no column {missing[0]!r}, which method "
                f"{self.method!r} reads with these options; give a train-file that has it, or other options."
            )

    @property
    def _task_columns(self) -> tuple[str, ...]:
        """Columns of the task that methods can read."""
        from attendrop.tasks.registry import get_task

        return () if self.task is None else get_task(self.task).token_columns

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
        from attendrop.runs.lora import lora_options

        return None if self.lora is None else lora_options(self.lora)

    @property
    def rewarded_on(self) -> str | None:
        """Rows on which models are scored during training; under protocol 'paper', "selection" is "eval"."""
        found = self.regularizer.rewarded_on()
        return "eval" if found == "selection" and self.protocol == "paper" else found

    def filled(self, **options: Any) -> RunConfig:
        """Return a copy with other values of options that the method does not read; it has the same method object."""
        found = copy.copy(self)
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
        place = hashlib.sha256(str(Path(train_file).resolve()).encode()).hexdigest()
        data = f"{Path(train_file).stem}-{place[:6]}"
    return f"runs/{data}-{method}-seed{'-'.join(map(str, seeds))}"


def _words(name: str) -> str:
    return name.replace("_", "-")
