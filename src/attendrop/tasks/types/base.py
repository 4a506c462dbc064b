"""Kinds of tasks: the model of each, its inputs, its predictions and their scores."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
import transformers
from datasets import Dataset
from torch import Tensor
from transformers import (
    BatchEncoding,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from attendrop.errors import AttendropError, did_you_mean
from attendrop.methods.core.options import check_options, read_options
from attendrop.support.models import logits_of
from attendrop.tasks.table import COUNT_AS_WRONG, BadValue, Table, class_name, read_text
from attendrop.tasks.tokenization import DEFAULT_MAX_LENGTH, document_means, load_tokenizer, of_documents
from attendrop.tasks.types.linear_models import LinearFit
from attendrop.wording import names_of

Array = np.ndarray[Any, np.dtype[Any]]
Answer = dict[str, Any]  # columns of a file of predictions
Columns = Mapping[str, list[Any]]
Tokenizer = PreTrainedTokenizerBase
# Number of names that a message lists.
_SHOWN = 10
# What an unknown name may stand for: remembered, for many rows have the same, and names may be many.
_meant = lru_cache(maxsize=1000)(did_you_mean)


@dataclass(frozen=True)
class Metric:
    """A score of model outputs. Errors are negated, and named ``neg_...``: their best is 0, that of others 1."""

    # The score of labels and outputs, which have one entry per row; None: one of the two below.
    function: Callable[[Array, Array], float] | None = None
    span: float = 1.0  # largest possible difference of two scores
    selects: bool = True  # whether models can be selected by it, because greater is better
    right: Callable[[Array, Array], Array] | None = None  # whether each row is; the score is the fraction of these rows
    # What is counted in each row, ``(rows, counts)``, and the score of the sums of counts over all rows.
    of_sums: tuple[Callable[[Array, Array], Array], Callable[[Array], float]] | None = None

    def score(self, labels: Array, outputs: Array) -> float:
        """Compute the score; NaN where it is undefined."""
        if self.function is not None:
            return self.function(labels, outputs)
        if self.of_sums is None:
            return float(np.mean(self.right(labels, outputs)))  # type: ignore[misc]
        counts_of, score_of = self.of_sums
        return score_of(counts_of(labels, outputs).sum(axis=0))


@dataclass(frozen=True)
class TaskType(ABC):
    """A kind of task, with its classes. To add one, add a subclass to ``TASK_TYPES`` (``tasks/base.py``).

    A subclass declares the facts below, and defines how labels are read from files (:meth:`read_names`,
    :meth:`from_labels`, :meth:`label_of`), what outputs mean (:meth:`decode`, :meth:`prediction_rows`,
    :attr:`metrics`) and how labels are reported (:meth:`describe_labels`). Start from ``Regression``. Its *options*,
    the values of ``--task-set``, are further fields (:func:`attendrop.methods.core.options.option`).

    *Rows* are columns by name, as in :class:`attendrop.tasks.base.TaskData`; *labels* the column ``"label"``, *targets*
    the ``labels`` passed to the model. *Raw outputs* are those of the model's passes, *outputs* an array with one entry
    per row of the data, and *references* what metrics compare them with. The *tokenizer* makes a model's inputs and is
    saved with it.

    Attributes:
        label_names: The classes, in the order of their ids; empty if there are none.
        unknown_names: Labels of evaluation data that are not among these, so that the model cannot predict them; their
            ids follow.
    """

    label_names: tuple[str, ...] = ()
    unknown_names: tuple[str, ...] = ()

    kind: ClassVar[str]  # ``Task.kind``
    label_type: ClassVar[str]  # value of ``--label-type``
    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair")  # columns of a data set that the model can read
    least_inputs: ClassVar[int] = 1  # of ``--text-columns``, of which `read_inputs` makes the inputs
    most_inputs: ClassVar[int] = 2
    # Where labels are made of `label_names`: what a value in a file is called, a name, and several names.
    label_noun: ClassVar[tuple[str, str, str]] = ("", "", "")
    separator: ClassVar[str] = ", "  # of names that are shown
    prediction: ClassVar[str]  # what the model predicts, such as "{} classes"
    label_words: ClassVar[str] = ""  # what labels are, if they are called otherwise
    has_classes: ClassVar[bool] = False  # whether each row has one of `label_names`
    keeps_unknown: ClassVar[bool] = False  # whether there can be `unknown_names`
    in_sequence: ClassVar[bool] = False  # whether rows are parts of running text, so that neighbours are alike
    refused: ClassVar[Mapping[str, str]] = {}  # commands that do not work, with the reason, a part of a sentence
    baselines: ClassVar[tuple[str, ...]] = ()  # baselines without fine-tuning that are defined

    # The model
    output_kind: ClassVar[str]  # what the model predicts, see `declare_output`
    auto_class: ClassVar[str]  # class of transformers that loads models of this kind
    peft_task_type: ClassVar[str | None] = None  # task type in PEFT, if it has one
    problem_type: ClassVar[Any] = None  # of the model's configuration, which selects the loss
    target_type: ClassVar[type] = int  # of the numbers in `targets`
    pipeline_tag: ClassVar[str]  # name of the task on the hub, for model cards
    # Python code that calls the model, for its card
    example: ClassVar[str] = """\
inputs = tokenizer($texts, truncation=True, max_length=$max_length, return_tensors="pt")
logits = model(**inputs).logits"""
    # Arguments with which the tokenizer is loaded. Positions of models such as GPT-2 count padding on the left.
    tokenizer_options: ClassVar[Mapping[str, Any]] = {"padding_side": "right"}
    one_vector: ClassVar[bool] = False  # whether models read one vector for the input, of which a linear model is made
    # Whether the model is one of language, as pre-trained ones are, and writes text. Its raw outputs depend on the
    # labels, if there are any, and methods are rewarded by the loss, because a score takes several passes.
    generates: ClassVar[bool] = False
    linear_model: ClassVar[Callable[..., LinearFit | None] | None] = None  # fits one, see `linear_models`
    collator_class: ClassVar[Any] = DataCollatorWithPadding

    # Outputs and scores
    padding: ClassVar[float] = 0  # value with which raw outputs of batches are padded to one size
    answer_column: ClassVar[str] = "label"  # column of the prediction, ``predicted_...`` beside columns of the input
    has_probabilities: ClassVar[bool] = False  # whether predictions can come with the probabilities of all classes
    attributed: ClassVar[str]  # score of a prediction that attribution explains
    default_metrics: ClassVar[tuple[str, ...]]  # metrics of custom files; models are selected by the first
    metric_aliases: ClassVar[Mapping[str, str]] = {}  # names of metrics beside `metrics.ALIASES`
    fitted_at: ClassVar[tuple[str, float] | None] = None  # metric, and its minimum on rows that have been fitted

    def __post_init__(self) -> None:
        check_options(self)

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """Return the kind with other options, by name; values may be text.

        Raises:
            AttendropError: An option is unknown, or a value is of the wrong type or out of its range.
        """
        return replace(self, **read_options(type(self), given, f"the task, {self.kind},")) if given else self

    def options(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if "range" in each.metadata}

    def refuse(self, command: str) -> None:
        """Raise AttendropError if a command does not work for this kind of task."""
        if command in self.refused:
            raise AttendropError(f"`attendrop {command}` does not work for {self.kind}: {self.refused[command]}.")

    def check_probabilities(self) -> None:
        """Raise AttendropError if predictions have no probabilities of classes."""
        if not self.has_probabilities:
            said = f"The model predicts {self.predicts}: it has no probabilities of classes; leave out the option."
            raise AttendropError(said)

    def fits(self, other: TaskType) -> bool:
        """Return whether outputs of a model of this kind can be read as those of another."""
        return (self.kind, len(self.output_names)) == (other.kind, len(other.output_names))

    @property
    def num_classes(self) -> int:
        """Number of classes whose logits form a row of the outputs; 0 if outputs are not class logits."""
        return len(self.label_names) if self.has_classes else 0

    @property
    def predicts(self) -> str:
        """What the model predicts, such as "2 classes" or "a number"."""
        return self.prediction.format(len(self.label_names))

    @property
    def labels_are(self) -> str:
        """What the labels are, such as "numbers to predict"."""
        return self.label_words or self.predicts

    # Rows of files ----------------------------------------------------------------------------------------------------

    @property
    def all_names(self) -> tuple[str, ...]:
        """Names of labels, the unknown ones last, in the order of their ids."""
        return (*self.label_names, *self.unknown_names)

    @classmethod
    def inputs_in(cls, columns: Collection[str]) -> list[str]:
        """List the columns that the model reads, of those that rows have."""
        return [name for name in cls.inputs if name in columns]

    @classmethod
    def inputs_of(cls, text_columns: int) -> tuple[str, ...]:
        """Return the columns of a data set that are made of this number of text columns of a file; of one, all."""
        return cls.inputs if cls.most_inputs == 1 else cls.inputs[: max(text_columns, cls.least_inputs)]

    @classmethod
    def read_inputs(cls, *texts: Any) -> list[Any]:
        """Convert the texts of a row of a file to the values of :meth:`inputs_of`; raise BadValue."""
        for place, text in enumerate(texts):
            try:
                read_text(text)
            except BadValue as problem:
                raise BadValue(str(problem), place) from None
        return list(texts)

    @classmethod
    def read_names(cls, value: Any) -> list[str]:
        """Return the names in a label of a file, if labels have names; raise BadValue if it cannot be one."""
        return []

    @classmethod
    def from_labels(cls, train: Table, column: str) -> Self:
        """Make the kind for the labels in a column of the training file, which :meth:`read_names` reads.

        Raises:
            AttendropError: No model can be trained on these labels, such as a single class.
        """
        if not any(cls.label_noun):
            return cls()
        names = {name for value in train.column(column) for name in cls.read_names(value)}
        if len(names) < 2:
            found = "".join(f"only one {cls.label_noun[1]}, {name!r}" for name in names) or f"no {cls.label_noun[1]}"
            raise AttendropError(f"{train.path} has {found}; training needs at least two.")
        return cls(tuple(cls.in_order(names)))

    @classmethod
    def in_order(cls, names: Collection[str]) -> list[str]:
        """Sort the names in labels, whose places are their ids."""
        return sorted(names)

    @cached_property
    def label_ids(self) -> dict[str, int]:
        """The ids of names; those of classes that are whole numbers also without ``.0``."""
        ids = {name: number for number, name in enumerate(self.all_names)}
        return {class_name(name): number for name, number in ids.items() if self.has_classes} | ids

    def read_label(self, value: Any, inputs: Sequence[Any] | None = None) -> Any:
        """Convert a value of a file to a label, which has to fit the inputs of its row; raise BadValue."""
        return self.label_of(self.read_names(value))

    def label_of(self, names: Sequence[str]) -> Any:
        """Convert the names in a label to a label; raise BadValue for one that is not among those of training."""
        if unknown := [name for name in names if name not in self.label_ids]:
            noun, _, several = self.label_noun
            counts = f" {COUNT_AS_WRONG}" if self.keeps_unknown else ""
            hint = _meant(unknown[0], self.label_names)
            hint = hint or f"; the {several} are {names_of(self.label_names, most=_SHOWN)}"
            text = f"the {noun} {unknown[0]!r} is not among those of training{counts}{hint.removesuffix('.')}"
            raise BadValue(text, 0)
        return [self.label_ids[name] for name in names]

    def with_unknown(self, values: Iterable[Any]) -> Self:
        """Add names in labels that this kind does not know to ``unknown_names``; refuse it if there can be none."""
        if not self.keeps_unknown:
            raise AttendropError(f"unknown-labels 'wrong' is for classes and for tags of words, not {self.labels_are}.")
        names = dict.fromkeys(name for value in values for name in self.read_names(value))
        new = [name for name in names if name not in self.label_ids]
        return replace(self, unknown_names=(*self.unknown_names, *new)) if new else self

    def unknown_counts(self, labels: Sequence[Any] | Array) -> dict[str, int]:
        """Count the classes, or tags of words, that the model cannot predict, by name."""
        counts = Counter(chain.from_iterable(map(np.atleast_1d, labels if self.unknown_names else ())))
        named = enumerate(self.unknown_names, start=len(self.label_names))
        return {name: counts[number] for number, name in named if counts[number]}

    # The model --------------------------------------------------------------------------------------------------------

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the model's outputs per prediction."""
        return self.label_names

    @classmethod
    def class_name(cls, config: PreTrainedConfig) -> str | None:
        """Return the name of the class of transformers for a configuration; None if its family has none."""
        found = getattr(transformers, cls.auto_class)._model_mapping.get(type(config), None)
        return None if found is None else str((found[0] if isinstance(found, tuple) else found).__name__)

    def model_class(self, config: PreTrainedConfig) -> Any:
        """Return the class that loads the model; raise AttendropError if its family has none for this kind of task."""
        if self.class_name(config) is None:
            raise AttendropError(
                f"Models of the family {config.model_type!r} are none of transformers' {self.auto_class}, which "
                f"{self.kind} needs; give another model."
            )
        return getattr(transformers, self.auto_class)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the class and, unless it is pre-trained, the size, the names and the loss of the head."""
        config.architectures = [name] if (name := self.class_name(config)) else None
        if not self.generates:
            config.num_labels = len(self.output_names)
            config.problem_type = self.problem_type
            config.id2label = dict(enumerate(self.output_names))
            config.label2id = {name: number for number, name in enumerate(self.output_names)}

    def load_tokenizer(self, place: str) -> Any:
        """Load the tokenizer of a model, given the model's folder or hub id."""
        return load_tokenizer(place, **self.tokenizer_options)

    def prepare(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        """Set what the options ask for in a loaded model and its tokenizer; raise AttendropError if it cannot be."""
        # Classifiers with a decoder read the last end of a text, of which all rows of a batch need as many.
        tokenizer.end_is_text = self.one_vector and model.config.is_encoder_decoder

    def example_values(self, *, stock: bool) -> dict[str, str]:
        """Return the values of :attr:`example`, by name, beside ``texts`` and ``max_length``."""
        return {}

    def fit_linear(self, features: Array, targets: Sequence[Any], **options: Any) -> LinearFit | None:
        """Fit :attr:`linear_model` with its options to features ``(rows, features)``; None if there is none.

        Its outputs are used as they are: what transforms outputs, such as a link function, belongs in :meth:`decode`
        and :attr:`metrics`.
        """
        fit = type(self).linear_model
        return fit and fit(features, targets, len(self.output_names), **options)

    # Encoding ---------------------------------------------------------------------------------------------------------

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        """Tokenize the texts of rows, without padding; with ``max_length=None``, without truncation."""
        texts = [columns[name] for name in self.inputs_in(columns)]
        if getattr(tokenizer, "end_is_text", False):  # such as </s> of HTML
            end = tokenizer.eos_token
            texts = [[text.replace(end, f"{end[0]} {end[1:]}") for text in column] for column in texts]
        encoding: BatchEncoding = tokenizer(*texts, **truncation(max_length))
        return encoding

    def length_limit(self, tokenizer: Tokenizer, max_length: int, columns: Collection[str]) -> int:
        """Lower ``max_length``, in tokens, to the limit of the tokenizer, with a warning unless it is the default.

        Raises:
            AttendropError: It leaves no room for text.
        """
        special, limit = (
            tokenizer.num_special_tokens_to_add(len(self.inputs_in(columns)) > 1),
            tokenizer.model_max_length,
        )
        if max_length <= special:
            problem = f"a maximum length of {max_length} leaves no room for text"
            raise AttendropError(f"{problem}: the tokenizer adds {special} special tokens; raise it.")
        if max_length > limit and max_length != DEFAULT_MAX_LENGTH:
            warnings.warn(f"the maximum length {max_length} was lowered to the model's {limit} tokens.", stacklevel=2)
        return min(max_length, limit)

    def positive_class(self, metric: str) -> str | None:
        """Return the class that a metric is of, if it is of one of two."""
        return None

    def lengths(self, encoded: Mapping[str, Any]) -> list[int]:
        """Return the length of each row, in tokens: of the longest choice; the longer of a text and its translation."""
        rows = zip(*(encoded[name] for name in ("input_ids", "target_ids") if name in encoded), strict=True)
        parts = (chain(*(ids if ids and isinstance(ids[0], list) else [ids] for ids in row)) for row in rows)
        return [max(map(len, row)) for row in parts]

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[Any]:
        """Make the ``labels`` of the model, without padding, from those of the encoded rows."""
        return list(np.asarray(labels, dtype=self.target_type).tolist())

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        """Return a function that makes a batch of encoded rows: tensors, padded to the longest."""
        collate: Callable[[list[Any]], Any] = self.collator_class(tokenizer)
        return collate

    # Outputs ----------------------------------------------------------------------------------------------------------

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Array:
        """Compute the raw outputs of a model for a batch; called without gradients."""
        outputs = model(**batch) if "labels" in batch or not self.generates else None
        raw: Array = self.raw_outputs(model, batch, outputs).float().cpu().numpy()
        return raw

    def raw_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], outputs: Any) -> Tensor:
        """Return what is kept of a pass for decoding and scoring, one row per encoded row: by default, the logits."""
        return logits_of(outputs)

    def concatenate(self, parts: Sequence[Any]) -> Array:
        """Concatenate the raw outputs of several batches, padded to the largest."""
        shapes = np.array([np.shape(part) for part in parts])
        missing = shapes.max(axis=0) - shapes
        missing[:, 0] = 0  # batches may have different numbers of rows
        pairs = zip(parts, missing, strict=True)
        return np.concatenate([np.pad(part, [(0, n) for n in to], constant_values=self.padding) for part, to in pairs])

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: Tokenizer) -> Array:
        """Convert raw outputs, of all encoded rows, to outputs; by default, those of a text in windows to their mean.

        ``encoded`` has all columns that :meth:`tokenize` made, and "labels"; for the batches on which a method is
        rewarded in training, only "labels".
        """
        return document_means(raw, encoded)

    def references(self, encoded: Mapping[str, Any]) -> Array:
        """Return what outputs are scored against, one entry per row of the data; as for :meth:`row_outputs`."""
        return np.asarray(of_documents(encoded["labels"][:], encoded))

    def checked(self, outputs: Array) -> Array:
        """Convert outputs to float64, unless they are objects; raise AttendropError if one is NaN or infinite."""
        outputs = outputs if outputs.dtype == object else np.asarray(outputs, dtype=np.float64)
        if outputs.dtype != object and np.isfinite(outputs).all():
            return outputs
        if bad := sum(not np.isfinite(getattr(row, "log_likelihood", row)).all() for row in outputs):
            problem = f"the model's output is NaN or infinite for {bad} of {len(outputs)} rows"
            raise AttendropError(f"{problem}: training diverged; lower the learning rate.")
        return outputs

    def decode(self, outputs: Array) -> list[Any]:
        """Return the predicted labels; by default, where the logits of a row are largest."""
        return [int(np.argmax(row)) for row in outputs]

    def prediction_rows(self, outputs: Array, columns: Columns | None = None, *, probabilities: bool) -> list[Answer]:
        """Return the columns of a file of predictions for each row, :attr:`answer_column` first.

        ``columns`` are those of the rows, if they are known, for answers that refer to their texts.
        """
        return [{self.answer_column: answer} for answer in self.decode(outputs)]

    def named_probabilities(self, row: Array) -> dict[str, float]:
        """Return the columns of the probabilities of all classes, or labels, of a row."""
        return {f"probability_{name}": round(float(p), 6) for name, p in zip(self.label_names, row, strict=True)}

    # Scores and reports on data ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """Metrics by name; the names are those of scikit-learn's scorers where it has them."""

    def constant_answer(self, train: Array, references: Array) -> tuple[str | float, Array] | None:
        """Return the best constant prediction, given the references of training, and outputs that make it.

        By default, it is the most common name, of each row or of each word in it; None if labels have no names.
        """
        if not self.label_names:
            return None
        counts = np.array(list(self.counted(train).values()))
        rows = [np.tile(np.log(counts + 1), (*np.shape(row), 1)) for row in references]
        answer = self.shown_label(counts.argmax())
        return answer, row_array(rows) if references.dtype == object else np.array(rows).reshape(len(rows), len(counts))

    def ids_in(self, label: Any) -> Iterable[int]:
        """Return the ids of the names in a label."""
        return np.atleast_1d(label)

    def counted(self, labels: Iterable[Any]) -> dict[str, int]:
        """Count each of ``label_names`` in labels."""
        counts = Counter(map(int, chain.from_iterable(map(self.ids_in, labels))))
        return {name: counts[number] for number, name in enumerate(self.label_names)}

    def predicted_counts(self, outputs: Array) -> dict[str, int]:
        """Count the predictions of each name, for names with any; empty if labels have no names."""
        counts = self.counted(self.decode(outputs)) if any(self.label_noun) else {}
        return {name: count for name, count in counts.items() if count}

    @property
    def strata(self) -> tuple[str, ...]:
        """Names of the groups by which samples are stratified: the classes, if there is one for each row."""
        return tuple(f"class {name!r}" for name in self.label_names) if self.num_classes else ("the data",)

    def strata_of(self, rows: Dataset) -> Sequence[int]:
        """Return the group of each row, an index of :attr:`strata`."""
        return rows["label"][:] if self.num_classes else [0] * len(rows)

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        """Return the texts of each row, for comparison and display."""
        return list(zip(*(rows[name][:] for name in self.inputs_in(rows.column_names)), strict=True))

    def shown_label(self, label: Any) -> Any:
        """Return a label for display."""
        named = any(self.label_noun)
        return self.separator.join(self.all_names[number] for number in self.ids_in(label)) if named else label

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        """Summarize the labels of some rows as JSON values, see :func:`attendrop.runs.data.report_table`."""
        return {self.label_noun[-1]: self.counted(rows["label"][:])}


def truncation(max_length: int | None) -> dict[str, Any]:
    """Return the arguments of a tokenizer that truncate to a number of tokens, or with None do not."""
    return {"verbose": False} if max_length is None else {"truncation": True, "max_length": max_length}


def row_array(rows: Sequence[Any]) -> Array:
    """Make an array of objects, one for each row."""
    found = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):  # not at once: rows of the same length would become a dimension
        found[number] = row
    return found
