"""Options of training runs, of evaluation and of prediction: their only declaration, and the files that hold them.

A field of a dataclass declares an option by :func:`option`: its help, allowed values and default. From the fields of
:class:`RunConfig` the command line and its help (:mod:`attendrop.cli.app`), ``run.yaml`` and study files,
``docs/options.md`` and the errors are made.
"""

from __future__ import annotations

import copy
import csv
import dataclasses
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, InitVar, asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_origin

import yaml

from attendrop.errors import AttendropError, check_choice, suggestion
from attendrop.methods.core.options import (
    SWITCH,
    Range,
    choice,
    count,
    option_types,
    positive,
    read_option,
    read_options,
    unit_interval,
)
from attendrop.support.files import MINILM
from attendrop.tasks import table
from attendrop.tasks.class_names import AUTO, check_texts
from attendrop.tasks.table import LABEL_TYPES
from attendrop.tasks.tokenization import LONG_TEXTS
from attendrop.wording import names_of

if TYPE_CHECKING:
    from attendrop.methods.core.base import Method

DEFAULT_METHOD = "ad-drop"
RUN_FILE = "run.yaml"
# Fraction of a training file that is held out for the final scores where they need it and no evaluation data are given.
DEFAULT_TEST_FRACTION = 0.25
# Options of custom files, with a task refused; those that name files of the data, and all that are paths.
OF_FILES = ("eval_file", "text_columns", "with_columns", "label_column", "label_map", "unknown_labels", "skip_bad_rows")
DATA = ("train_file", "eval_file", "label_map", "label_names", "unlabelled")
PATHS = (*DATA, "data_dir", "model")
# Options by which a model reads rows, which its configuration has, too, for folders without those of the run, as on the
# hub; and their name there.
READ_BY, AS_TRAINED = ("max_length", "long_texts", "with_columns", "task_options"), "attendrop_options"

# Declaration of options -----------------------------------------------------------------------------------------------


def option(default: Any, group: str = "", help: str = "", allowed: Range | None = None, **more: Any) -> Any:
    """Declare an option with its ``default``, ``MISSING`` if there is none, and its ``help``.

    ``group`` is that of options on the command line; empty: commands declare it themselves. ``allowed`` are the values
    besides None; None: those of its type, numbers of at least 1. ``more`` may have ``shown``, what ``--help`` shows as
    the default, by default the default itself; ``flags``, names on the command line, by default the option's own; of a
    mapping, an ``example`` NAME=VALUE; ``listed``, whether command line and files take several values: a run for each.
    """
    shown = ""
    if isinstance(default, int | float | str) and not isinstance(default, bool):
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    metadata: dict[str, Any] = {"group": group, "help": help, "range": allowed, "shown": shown, "flags": ()}
    metadata |= {"example": "", "listed": False, **more}
    if default == {}:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Read names, which may be one text, comma-separated, of which some are quoted; an empty text has none."""
    if isinstance(given, str):
        return tuple(part.strip() for part in next(csv.reader([given], skipinitialspace=True))) if given else ()
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
        raise AttendropError(f"{given!r} must be names, comma-separated.")
    return tuple(given)


def joined_names(given: Sequence[str]) -> str:
    """Write names as :func:`names` reads them."""
    return ",".join(f'"{name}"' if "," in name else name for name in given)


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise AttendropError(f"{name} must be a mapping such as {{p: 0.3}}, not {value!r}.")
    return value


def _text(name: str, value: Any) -> str:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(value, str):
        raise AttendropError(f"{name.replace('_', '-')}={value!r} is not a text.")
    return value


def _path(name: str, value: Any) -> str:
    """Replace ``~`` by the home folder, also in the second of two files, where no shell does."""
    return re.sub(r"(^|,\s*)(~[^,/]*)", lambda found: found[1] + os.path.expanduser(found[2]), _text(name, value))


PATH = Range("", _path)
FRACTION = unit_interval(zero=True)
_OF_TYPE: dict[Any, Range] = {
    int: count(1),
    bool: SWITCH,
    str: Range("", _text),
    tuple: Range("names, comma-separated", lambda name, value: names(value)),
    Mapping: Range("names with values", _mapping),
}


@cache
def declared(kind: Any) -> dict[str, Mapping[str, Any]]:
    """Return what :func:`option` declares of each option of a class, by name; ``range`` also if its type says it."""
    found = dict[str, Mapping[str, Any]]()
    for field in dataclasses.fields(kind):
        if "group" in field.metadata:
            (of_type,) = option_types(kind)[field.name] - {NoneType}
            allowed = field.metadata["range"] or _OF_TYPE.get(get_origin(of_type) or of_type)
            found[field.name] = {**field.metadata, "range": allowed}
    return found


def checked(kind: Any, name: str, value: Any) -> Any:
    """Convert a value, which may be text, to the type of an option of a class; raise AttendropError unless it fits."""
    found = read_option(kind, name, value)
    missing = found is None and NoneType in option_types(kind)[name]
    return None if missing else declared(kind)[name]["range"].check(name, found)


def check_fields(options: Any) -> None:
    """Convert and check all options of a frozen dataclass, as :func:`checked` does."""
    kind: Any = type(options)
    for name in declared(kind):
        object.__setattr__(options, name, checked(kind, name, getattr(options, name)))


@dataclass(frozen=True)
class LoraOptions:
    """Options of a LoRA adapter (Hu et al., 2022, https://arxiv.org/abs/2106.09685).

    A targeted layer computes ``W x + (alpha / r) B A x``, where only ``A`` and ``B`` are trained. Raises AttendropError
    if an option is out of its range.

    Attributes:
        r: Rank of the adapter, 1 or more; 8 is PEFT's default, and the paper's for GLUE.
        alpha: Scaling of the adapter, above 0. None: ``r``, so that the factor is 1.
        dropout: Dropout of the adapter's inputs, at least 0 and below 1; 0 is PEFT's default.
        targets: Names of the layers with an adapter, comma-separated, or ``"all-linear"``. None: PEFT's choice for the
            architecture, mostly the projections to queries and values.
    """

    r: int = option(8)
    alpha: float | None = option(None, allowed=positive())
    dropout: float = option(0.0, allowed=FRACTION)
    targets: str | None = option(None)

    def __post_init__(self) -> None:
        check_fields(self)


# Options of a run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Options of a training run.

    Options of the training that are None follow from the rows and the model, see :mod:`attendrop.runs.data`.
    The optimizer is AdamW, with warmup over a tenth of the steps and linear decay to zero. Published settings are in
    :func:`preset`. Numbers and switches may be given as text. Raises AttendropError if one is out of range, or two
    conflict.
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
        "Training data: a .csv, .tsv, .xlsx, .json, .jsonl, .parquet, .conll, .conllu or .txt file, A.txt,B.txt, "
        "FILE.xlsx:SHEET or hub:NAME.",
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
    with_columns: tuple[str, ...] | None = option(
        None, "columns", "Other columns to read in front of the text, as `channel: mail | ...`.", shown="none"
    )
    """For classes, labels and numbers. Splits are the same with and without them; a comparison also runs plain
    fine-tuning without them, and says whether they help."""
    label_type: str = option(
        "auto", "columns", f"Kind of task, by its labels: {', '.join(LABEL_TYPES[:-1])} or {LABEL_TYPES[-1]}."
    )
    label_map: str | None = option(
        None, "columns", "File that merges variants of labels: its columns label and meaning.", PATH
    )
    """``attendrop inspect`` lists variants. A label that the file lacks is kept; one with an
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
    """Read from the column named as the training file's text column, or from the only one. The linear model that a head
    starts from, and those of baselines, are fitted with these texts, too, if held-out training rows lose nothing by it,
    see :func:`attendrop.tasks.types.linear_models.self_trained`. For files with one text a row, of one class."""
    task_options: Mapping[str, Any] = option(
        {}, "columns", "Option of the kind of task: num_beams=4.", flags=["--task-set"], example="num_beams=4"
    )
    skip_bad_rows: bool = option(False, "rows", "Skip invalid rows of your files, and list them.")
    unknown_labels: str | None = option(
        None,
        "rows",
        "Labels of the eval file not in training: error, or count as wrong.",
        choice(*table.UNKNOWN_LABELS),
        shown="error",
    )
    test_fraction: float = option(
        0.0, "held_out", "Instead of --eval-file: fraction of the training data to report on.", FRACTION
    )
    """The same rows for every seed, stratified by class; rows with the same text are on the same side. For a named
    task, they replace its development set, which then stays unseen, so that settings can be chosen on them."""
    ood: bool | None = option(
        None,
        "held_out",
        "Also score an out-of-distribution split: whole groups of similar texts, held out.",
        flags=["--ood"],
    )
    """One group in each class, of about the fraction ``test_fraction`` of its rows (a quarter if that is 0); see
    :func:`attendrop.tasks.splits.hold_out_like`."""
    ood_column: str | None = option(
        None, "held_out", "With --ood: hold out the last whole values of this column, such as months."
    )
    group_column: str | None = option(
        None, "held_out", "Column of your files whose rows belong together, such as customer or thread."
    )
    """All splits keep the rows of a group, with the same value, on one side; intervals over examples are about other
    groups. Rows with nearly the same text belong together without it, see
    :func:`attendrop.tasks.splits.near_duplicates`."""
    metric: str | None = option(
        None, "score", "Metric for model selection: f1_macro, balanced_accuracy ...", shown="the task's"
    )
    """Names are those of :func:`attendrop.tasks.metrics.with_metric`."""
    class_weights: str | None = option(
        None, "score", "balanced: classes have equal weight in the loss.", choice("balanced"), shown="none"
    )
    accept: float | None = option(
        None, "score", "Accuracy of the answers that predict accepts, such as 0.95.", unit_interval(), shown="no"
    )
    """From a least confidence on, which is chosen on the evaluation rows with 90 % confidence, see
    :func:`attendrop.tasks.error_analysis.choose_threshold`. Without evaluation data, ``test_fraction`` is 0.25. For
    classification."""
    pooling: str = option(
        "auto", "start", "What the classifier reads: cls, mean (of all tokens) or auto.", choice("auto", "cls", "mean")
    )
    """``"cls"`` is what the class of transformers reads, mostly the first token; ``"mean"`` the mean of the last hidden
    states over all tokens; ``"auto"`` the mean if the model was trained so."""
    head_init: str = option(
        "auto",
        "start",
        "Initialisation of a new head: random, linear-probe or auto.",
        choice("auto", "random", "linear-probe"),
    )
    """``"linear-probe"`` is a linear model fitted to the frozen encoder's features of the training rows (LP-FT, Kumar
    et al., 2022); ``"auto"`` the same, if the head is one linear layer on trained features."""
    lora: Mapping[str, Any] | None = option(
        None, "start", "Train a LoRA adapter: r=8, alpha=16, dropout=0.05, targets=all-linear.", example="r=8"
    )
    """See :class:`LoraOptions`: only the adapter and the head are trained and saved. None: the
    model itself is trained."""
    method: str = option(DEFAULT_METHOD)
    """Name of the method, or several joined by ``+``."""
    options: Mapping[str, Any] = option({}, flags=["--set"], example="p=0.3")
    """Options of the method."""
    epochs: int | None = option(None, "optimization", "Number of epochs, instead of steps.")
    max_steps: int | None = option(
        None, "optimization", "Number of training steps; overrides --epochs.", count(0), shown="by the number of rows"
    )
    """Optimizer steps; for comparisons between methods that train on different numbers of rows. 0: only a head that
    starts from the frozen encoder."""
    batch_size: int | None = option(None, "optimization", "Rows per process.", shown="16")
    """In a micro-batch."""
    eval_batch_size: int = option(64, "optimization")
    gradient_accumulation: int = option(1, "optimization", "Batches per step.")
    learning_rate: float | None = option(None, "optimization", allowed=positive(), shown="by the size of the model")
    weight_decay: float = option(0.01, "optimization", allowed=positive(zero=True))
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
    halvings: int | None = option(None)
    """How often the training rows are halved, stratified by class: ``compare --curve``."""
    protocol: str = option(
        "held-out",
        "selection",
        "held-out: select the epoch on held-out training data; paper: on the development set.",
        choice("held-out", "paper"),
    )
    """``"held-out"`` keeps the last epoch, or with a ``selection_fraction`` or ``patience`` the best one on held-out
    training data; ``"paper"`` chooses it on the development set, as the papers do."""
    selection_fraction: float | None = option(
        None,
        "selection",
        "Fraction of training data to hold out for selecting the epoch; 0 keeps the last.",
        FRACTION,
        shown="0, or 0.1 without evaluation data",
    )
    """Stratified by class; rows with the same text are on the same side. None: a tenth if ``patience``, ``refit``
    or ``calibrate`` needs it, or for a score if there are no evaluation data; otherwise none."""
    refit: bool | None = option(None, "selection", "Train again, including the held-out rows.", shown="if any are")
    """For the number of steps that was best with rows held out. None: if rows were held out, except for rewards."""
    patience: int | None = option(
        None, "selection", "Stop after this many epochs without improvement.", flags=["--patience", "--early-stopping"]
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
    seed: int = option(0, "seed", "Several, such as 0,1,2: a run for each, and their mean.", count(0), listed=True)
    """Seed of the head's weights, the splits, the order of batches, and all dropout."""
    device: str = option("auto", "machine", "auto or cpu.", choice("auto", "cpu"))
    bf16: bool = option(False, "machine", "bfloat16 mixed precision.")
    """In training, and to choose an epoch; final scores are those of the saved weights, in their precision."""
    fp16: bool = option(False, "machine", "float16 mixed precision; needs a GPU.")
    on_data: InitVar[Callable[[RunConfig], object] | None] = None
    """Called with the options before the method is created, which loads PyTorch, to check the data first."""

    def __post_init__(self, on_data: Callable[[RunConfig], object] | None) -> None:
        check_fields(self)
        if self.task in LABEL_TYPES:  # it is a kind of rows
            if self.train_file is None:
                raise AttendropError(f"Task {self.task!r} is for custom files; give a train-file.")
            if self.label_type not in ("auto", self.task):
                raise AttendropError(f"Task {self.task!r} and label-type {self.label_type!r} differ; give one of them.")
            self._set(label_type=self.task, task=None)
        if self.task is not None and self.train_file is None:
            refuse_options_of_files(self, (*OF_FILES, "ood_column", "group_column"))
        if self.accept is not None and self.train_file is not None and self.eval_file is None:
            self._set(test_fraction=self.test_fraction or DEFAULT_TEST_FRACTION)
        # Options that contradict each other, before any file is read.
        has_task, has_file, paper = self.task is not None, self.train_file is not None, self.protocol == "paper"
        unscored, held_out = has_file and not (self.eval_file or self.test_fraction), self.selection_fraction != 0
        refused = {
            "No data are given; give --train-file with rows of your own, or --task with one that `attendrop tasks` "
            "lists.": not has_task and not has_file,
            f"With a train-file, task is the kind of its rows, one of {', '.join(LABEL_TYPES[1:])}, and not "
            f"{self.task!r}; give one of these, or omit one of the two.": has_task and has_file,
            "data-dir is for tasks; omit it for a train-file.": has_file and self.data_dir is not None,
            "max-steps 0 trains nothing but the head's start; use it with head-init 'linear-probe', without refit and "
            "lora.": self.max_steps == 0 and (self.head_init != "linear-probe" or self.refit or self.lora is not None),
            "protocol 'paper' selects the epoch on the eval-file; give one.": paper and unscored,
            "accept needs evaluation rows on which nothing else is chosen, as protocol 'paper' does; omit one of the "
            "two.": self.accept is not None and paper,
            "protocol 'paper' selects the epoch on the evaluation rows; omit selection-fraction.": paper
            and self.selection_fraction,
        }
        for one, other, conflict in (
            ("test_fraction", "eval_file", "are both evaluation data"),
            ("shots", "max_train_samples", "both limit the training data"),
            ("bf16", "fp16", "exclude each other"),
            ("with_columns", "unlabelled", "do not go together: such texts have no other columns"),
        ):
            message = f"{one.replace('_', '-')} and {other.replace('_', '-')} {conflict}; choose one."
            refused[message] = getattr(self, one) and getattr(self, other)
        for name in ("calibrate", "refit") if paper else ("patience", "calibrate", "refit"):
            message = f"{name} needs rows held out from training, but there are none; omit it."
            refused[message] = getattr(self, name) and (paper or not held_out)
        if message := next((each for each, is_so in refused.items() if is_so), ""):
            raise AttendropError(message)
        if self.train_file is not None:
            self._complete_columns(self.train_file)
        if self.group_column is not None and self.group_column == self.label_column:
            raise AttendropError(f"group-column '{self.group_column}' is the label column; name another.")
        of_names = (self.task, self.label_type, len(self.text_columns))
        if check_texts(self.label_names, self.unlabelled, *of_names):  # known without reading the data
            self._set(label_names=None)
        if on_data is not None:
            on_data(self)
        method = self.regularizer
        self._set(options=method.options())
        if self.adapter is not None:
            from attendrop.methods.core.base import refuse_with_adapter

            self._set(lora=asdict(self.adapter))
            refuse_with_adapter(method)
        if self.rewarded_on == "eval" and self.train_file and not (self.eval_file or self.test_fraction):
            raise AttendropError("reward_data='eval' scores models on the eval-file during training; give one.")
        if self.rewarded_on == "eval" and self.accept is not None:
            raise AttendropError("reward_data='eval' uses the evaluation rows, which accept needs; omit one.")

    def _set(self, **options: Any) -> None:
        for name, value in options.items():
            object.__setattr__(self, name, value)

    def _complete_columns(self, file: str) -> None:
        """Set columns that are not given: those of the file's format, or those that are unambiguous in it."""
        usual, label, label_type = table.default_columns(file)
        self._set(text_columns=self.text_columns or usual)
        self._set(label_column=label if self.label_column is None else self.label_column)
        if self.label_type == "auto":
            self._set(label_type=label_type)
        labelled, hint = self.label_column is not None or self.label_type not in table.GUESSED, ""
        if self.text_columns and labelled:
            return
        if not file.startswith(table.HUB) and not any(each.exists() for each in table.files_of(file)):
            raise AttendropError(f"There is no file '{file}'.")
        if self.label_type in table.GUESSED:
            from attendrop.tasks.inspection import inspect_files

            named = ("text_columns", "label_column", "label_type", "label_map")
            found = inspect_files(file, **{name: getattr(self, name) for name in named})
            texts, labels, hint = found.text_candidates, found.label_candidates, found.label_hint
            self._set(text_columns=texts[0] if len(texts) == 1 else ())
            self._set(label_column=labels[0] if len(labels) == 1 else None)
            labelled = labelled or self.label_column is not None
        missing = {"the texts (text-columns)": not self.text_columns, "the labels (label-column)": not labelled}
        if any(missing.values()):
            held = " and ".join(name for name in missing if missing[name])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the reader of the run warns
                columns = names_of(table.column_names(file))
            hint = "" if labelled else hint
            raise AttendropError(f"It is not clear which columns of {file} hold {held}; name them, of {columns}.{hint}")

    @cached_property
    def regularizer(self) -> Method:
        """The method, built once from its name and options."""
        from attendrop.methods.core.registry import build_method

        return build_method(self.method, self.options)

    @cached_property
    def adapter(self) -> LoraOptions | None:
        """The options of the adapter, checked; None if the model itself is trained."""
        return None if self.lora is None else LoraOptions(**read_options(LoraOptions, self.lora, "lora"))

    @property
    def rewarded_on(self) -> str | None:
        """Rows on which models are scored during training."""
        return self.regularizer.rewarded_on()

    def filled(self, **options: Any) -> RunConfig:
        """Return a copy with other values, unchecked; it has the same method object, unless this has other options."""
        found = copy.copy(self)
        if "options" in options:
            vars(found).pop("regularizer", None)
        found._set(**options)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return all options as JSON values."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    def read_by(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the options by which a model reads rows, for its configuration; with the columns of its texts."""
        found = {name: value for name, value in self.as_dict().items() if name in READ_BY and value}
        return found | {"text_columns": list(texts)}


def refuse_options_of_files(options: Any, refused: Sequence[str] = OF_FILES, data: str = "a task") -> None:
    """Raise AttendropError if an option of files is given, since the data are others."""
    if given := next((name for name in refused if getattr(options, name, None)), None):
        raise AttendropError(f"{given.replace('_', '-')} is for custom files; omit it for {data}.")


# Options of evaluation and prediction ---------------------------------------------------------------------------------


def as_in_runs(name: str, group: str, **changed: Any) -> Any:
    """Declare an option of runs for another class, in another group, except for what is ``changed``."""
    field = next(field for field in dataclasses.fields(RunConfig) if field.name == name)
    metadata = {**field.metadata, "group": group, **changed}
    return dataclasses.field(default=field.default, default_factory=field.default_factory, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data to evaluate or predict. Defaults are those of the run: its task and its folder, or the columns of its files.

    Raises AttendropError if an option is out of range, or two conflict.
    """

    task: str | None = option(None, "task", "Name of a task. Default: the task of the run.")
    split: str | None = option(None, "task", "Split of the task.")
    data_dir: str | None = as_in_runs("data_dir", "task")
    file: str | None = option(None, "file", "Your file instead of a task; - is stdin.", PATH)
    text_columns: tuple[str, ...] = as_in_runs("text_columns", "columns", shown="as in training")
    with_columns: tuple[str, ...] | None = as_in_runs("with_columns", "columns", shown="as in training")
    label_column: str | None = as_in_runs("label_column", "labels", shown="as in training")
    """Only to evaluate."""
    label_map: str | None = as_in_runs("label_map", "labels", shown="as in training")
    unknown_labels: str | None = as_in_runs("unknown_labels", "labels", shown="as in training")
    input_format: str | None = option(
        None, "format", "Format of stdin: csv, tsv, json, jsonl, conll, conllu or txt.", shown="csv"
    )
    skip_bad_rows: bool = as_in_runs("skip_bad_rows", "rows", flags=("--skip-bad-rows",))
    skipped_file: str | None = option(None, "rows", "File for the skipped rows, JSON lines.", PATH)
    overwrite: bool = option(
        False, "rows", "Replace existing files, except those that are read.", flags=["--overwrite"]
    )
    max_length: int | None = option(None, "rows", "In tokens.", shown="as in training")
    long_texts: str | None = as_in_runs("long_texts", "rows", shown="as in training")
    batch_size: int = as_in_runs("eval_batch_size", "rows")
    task_options: Mapping[str, Any] = as_in_runs("task_options", "rows")
    """They override those of the run."""
    device: str = as_in_runs("device", "rows")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.file is not None and (self.task or self.split or self.data_dir):
            raise AttendropError("Give a task (with its split and data-dir) or a file, and not both.")
        if self.task is not None:
            refuse_options_of_files(self)
        if self.input_format is not None and self.file != table.STDIN:
            raise AttendropError("input-format is for standard input (-); omit it for a file, whose extension says it.")
        if self.skipped_file is not None and not self.skip_bad_rows:
            raise AttendropError("skipped-file is for skip-bad-rows; omit it, or add skip-bad-rows.")

    def columns_of(
        self, file: str, trained: Mapping[str, Any], *, labelled: bool
    ) -> tuple[tuple[str, ...], str | None]:
        """Return the text columns and, if ``labelled``, the label column of a file.

        As given, as ``trained`` (the options of the run), or as usual in its format; otherwise raises AttendropError.
        """
        texts, label, _ = table.default_columns(f"x.{self.input_format}" if file == table.STDIN else file)
        as_trained, trained_label = tuple(trained.get("text_columns", ())), trained.get("label_column")
        if texts and table.default_columns(trained.get("train_file"))[0] != texts:
            as_trained, trained_label = (), None  # files of this format have their own columns
        columns = self.text_columns or as_trained or texts
        named = (name for name in (self.label_column, trained_label, label) if name is not None)  # "" is a name, too
        found = next(named, None) if labelled else None
        if columns and (found is not None or not labelled):
            return columns, found
        of_file = "" if file == table.STDIN else f" of {names_of(table.column_names(file))}"
        what = "label-column is given; give one" if columns else "text-columns are given; give some, comma-separated"
        raise AttendropError(f"No {what}{of_file}.")


# Files of options, and published ones ---------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Loader that refuses a key that is given twice, with dashes or underscores."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        known = set()
        for key, _ in node.value:
            if (name := str(key.value).replace("-", "_")) in known:
                problem = f"the key {key.value!r} is given twice; delete one"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            known.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path, what: str) -> Any:
    """Read a YAML file; raises AttendropError if it is missing or is not YAML, or a key is given twice."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise AttendropError(f"There is no {what} '{path}'.") from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise AttendropError(f"The {what} '{path}' cannot be read{line}: {error.problem}.") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # not UTF-8, no date, nested too deeply
        raise AttendropError(f"The {what} '{path}' cannot be read ({str(error).splitlines()[0]}).") from None


# By option, another that it excludes, or that would take precedence.
IN_PLACE_OF = {
    **{"epochs": "max_steps", "shots": "max_train_samples", "max_train_samples": "shots"},
    **{"eval_file": "test_fraction", "test_fraction": "eval_file", "bf16": "fp16", "fp16": "bf16"},
}


def overridden(options: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of runs, with ``others`` in place of them and of those which they exclude."""
    excluded = {IN_PLACE_OF.get(name) for name, value in others.items() if value} - {*others}
    return {name: value for name, value in options.items() if name not in excluded} | {**others}


def read_run_file(path: str) -> dict[str, Any]:
    """Read options by the names of :class:`RunConfig`'s fields, also ``preset``; ``seed`` may be a list.

    Names may have dashes, as on the command line; lists may be written as there, with commas. ``RUN/run.yaml`` of a
    run that is not finished is where the run is made.
    """
    file = Path(path)
    if not file.exists() and file.name == RUN_FILE and (unfinished := partial_of(file.parent) / RUN_FILE).exists():
        file = unfinished
    found = read_yaml(file, "config file")
    if not isinstance(found, dict):
        raise AttendropError(f"The config file '{path}' must hold options such as 'epochs: 4'.")
    options = {str(name).replace("-", "_"): value for name, value in found.items()}
    known = tuple(declared(RunConfig))
    for name in options:
        if name not in (*known, "preset"):  # a preset is for options that the file does not set
            raise AttendropError(f"The config file '{path}' has an unknown option {name!r}.{suggestion(name, known)}")
    where = f"The config file '{path}'"
    return {name: convert_option(where, name, value) for name, value in options.items() if value is not None}


def convert_option(where: str, name: str, value: Any) -> Any:
    """Convert a value to the type of its option, and check it; YAML reads ``5e-5`` as a string.

    Errors begin with ``where`` it is given, such as "The config file 'run.yaml'".
    """
    if name not in declared(RunConfig):
        return value
    try:
        if declared(RunConfig)[name]["listed"]:
            values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
            return [checked(RunConfig, name, each) for each in values]
        return checked(RunConfig, name, value)
    except AttendropError as error:
        raise AttendropError(f"{where}: {error}") from None


def run_file(config: RunConfig, seeds: Sequence[int] = ()) -> str:
    """Write the options of a run with one or several seeds, except its folder; paths are made absolute."""
    given = {name: value for name, value in config.as_dict().items() if name != "output_dir"}
    if config.task is not None and not config.data_dir:
        given["data_dir"] = os.environ.get("ATTENDROP_DATA") or None
    options = {name: value for name, value in located(given).items() if value is not None}
    if config.label_names is None:
        options["label_names"] = "none"  # which is not the default
    if seeds:
        options["seed"] = list(seeds)
    text: str = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
    return f"# Repeats this run: attendrop train --config run.yaml --output-dir FOLDER\n{text}"


def located(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's options with absolute paths of files and folders that exist, which are found from other folders.

    A hub id, and words for no file, stay as they are.
    """
    found = dict(options)
    for name in PATHS:
        value = found.get(name)
        if value not in (None, MINILM, AUTO) and all(file.exists() for file in table.files_of(value)):
            found[name] = table.with_files(value, os.path.abspath)
    return found


def by_content(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that distinguish a run from others with the same data, regardless of folders."""
    named = {name: table.with_files(value, lambda file: file.name) for name in DATA if (value := options.get(name))}
    return {name: value for name, value in options.items() if name not in ("data_dir", "output_dir")} | named


def partial_of(folder: Path) -> Path:
    """Return the folder in which a run is made whose output folder is ``folder``."""
    folder = folder if folder.name not in ("", "..") else folder.resolve()
    return folder.with_name(f".{folder.name}.partial")


# The fine-tuning of Yang et al. (2022) and of their code (SST-2 and the three large sets train for fewer epochs and
# stop sooner). Among the values that they searched (learning rate 1, 2, 3e-5; batch 16, 32, 64) these are the middle
# and the first; the best epoch is chosen on the development set.
_PAPER: dict[str, Any] = {
    **{"learning_rate": 2e-5, "batch_size": 16, "schedule": "constant", "warmup": 0.0, "weight_decay": 0.01},
    **{"epochs": 50, "patience": 5, "protocol": "paper", "pooling": "cls", "head_init": "random"},
}
_PAPER_BY_TASK: dict[str, dict[str, Any]] = {
    **{task: {"max_length": length} for task, length in (("cola", 47), ("rte", 128), ("mrpc", 100), ("stsb", 100))},
    "sst2": {"epochs": 20},
    **{task: {"epochs": 10, "patience": 3} for task in ("qnli", "mnli", "qqp")},
}


def preset(name: str, task: str | None, method: str) -> dict[str, Any]:
    """Look up the options of a preset, as keywords of :class:`RunConfig`; raise AttendropError if there is none.

    ``"paper"`` is fine-tuning as in Yang et al. (2022), and what the method's own paper says where it differs
    (:meth:`attendrop.methods.core.base.Method.preset`). The ``task`` decides length, epochs and patience, and options
    of some methods; a ``method`` may be several, joined by ``+``.
    """
    check_choice("preset", name, ("paper",))
    from attendrop.methods.core.registry import get_method

    training = {**_PAPER, **_PAPER_BY_TASK.get(task or "", {})}
    options: dict[str, dict[str, Any]] = {}
    for part in method.split("+"):
        published = (each := get_method(part.strip())).preset(name, task)
        training |= published.training
        options |= {each.info.name: dict(published.options)} if published.options else {}
    return training | {"options": options if "+" in method else options.get(each.info.name, {})}
