"""Base class of heads: the model of a kind of task, its inputs, its predictions and their scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from string import Template
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

from attendrop.attribution.predictions import CLASSES, LABELS, NUMBER, TOKENS
from attendrop.errors import AttendropError
from attendrop.methods.core.options import check_options, read_options
from attendrop.support.models import logits_of
from attendrop.tasks.heads.linear_models import LinearFit
from attendrop.tasks.long_texts import DOCUMENT, HEAD, document_means, of_documents
from attendrop.tasks.table import Table
from attendrop.tasks.tokenizers import length_limit, limit_to_positions, load_tokenizer, set_padding
from attendrop.tasks.values import text_problem, value_problem

Array = np.ndarray[Any, np.dtype[Any]]
Columns = Mapping[str, list[Any]]
Tokenizer = PreTrainedTokenizerBase
# Rows that are tokenised together, where only their lengths are kept: a token takes 120 bytes until then.
_AT_A_TIME = 1000
_ATTRIBUTED = {
    CLASSES: "the logit of the predicted class",
    LABELS: "the log-likelihood of the predicted labels",
    NUMBER: "minus the squared difference between the predicted number and that number plus one",
    TOKENS: "the log-likelihood of the predicted tokens",
}
# What SentencePiece writes for a space; a token of its own before a word that it does not know.
_SPACE = "▁"


@dataclass(frozen=True)
class Metric:
    """A score of model outputs. Errors are negated, and named ``neg_...``: their best is 0, that of others 1."""

    score: Callable[[Array, Array], float]  # of labels and outputs, one row per example
    span: float = 1.0  # largest possible difference of two scores
    selects: bool = True  # whether models can be selected by it, because greater is better
    # Whether each row is right; None: the score is not the fraction of these rows.
    right: Callable[[Array, Array], Array] | None = None
    # What is counted in each row, ``(rows, counts)``, and the score of the sums of counts; None: the score needs rows.
    of_sums: tuple[Callable[[Array, Array], Array], Callable[[Array], float]] | None = None

    @classmethod
    def summing(cls, counts: Callable[[Array, Array], Array], score: Callable[[Array], float]) -> Self:
        """Make a score of the sums over all rows of what is counted in each."""
        return cls(lambda labels, outputs: score(counts(labels, outputs).sum(axis=0)), of_sums=(counts, score))

    @classmethod
    def counting(cls, right: Callable[[Array, Array], Array]) -> Self:
        """Make the fraction of rows that are right."""
        return cls(lambda labels, outputs: float(np.mean(right(labels, outputs))), right=right)

    @classmethod
    def of(cls, score: Callable[..., Any], read: Callable[[Array], Array], span: float = 1.0, **options: Any) -> Self:
        """Make a score of scikit-learn, with options, of what a function reads from the outputs."""
        return cls(lambda labels, outputs: float(score(labels, read(outputs), **options)), span)


@dataclass(frozen=True)
class Head(ABC):
    """A kind of task, with its classes. To add one, write a subclass and add it to ``heads/builtin.py``.

    Most members have defaults. A simple head defines the facts :attr:`kind`, :attr:`label_type`, :attr:`output_kind`,
    :attr:`default_metrics`, :attr:`predicts` and :attr:`metrics`, and, unless it is a ``SequenceHead``,
    :attr:`auto_class` and :attr:`pipeline_tag`; identifies its saved models by :meth:`recognizes` if another head has
    the same class; reads labels of files by :meth:`label_problem` and :meth:`read_labels`; converts them to the model's
    by :meth:`targets`; reads outputs by :meth:`decode` and :meth:`prediction_rows`; and reports on data by
    :meth:`describe_labels` and :meth:`label_lines`. Start from a copy of ``regression.py``.

    A subclass may have *options*, the values of ``--task-set``: further fields of its dataclass, each declared with
    its range (:func:`attendrop.methods.core.options.option`).

    *Rows* are columns by name, as in :class:`attendrop.tasks.base.TaskData`; *labels* the column ``"label"``, *targets*
    the ``labels`` passed to the model. *Raw outputs* are those of the model's passes, *outputs* an array with one entry
    per row of the data, and *references* what metrics compare them with. The *tokenizer* makes a model's inputs and is
    saved with it. A *problem* is what is wrong with a value of a file: a sentence
    without its full stop.

    Attributes:
        label_names: The classes, in the order of their ids; empty if there are none.
        unknown_names: Labels of evaluation data that are not among these, so that the model cannot predict them; their
            ids follow.
    """

    label_names: tuple[str, ...] = ()
    unknown_names: tuple[str, ...] = ()

    kind: ClassVar[str]  # ``Task.kind``
    label_type: ClassVar[str]  # value of ``--label-type``
    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair")  # columns of a data set that the head can read
    least_inputs: ClassVar[int] = 1  # of ``--text-columns``, of which `read_texts` makes the inputs
    most_inputs: ClassVar[int] = 2
    keeps_unknown: ClassVar[bool] = False  # whether there can be `unknown_names`
    in_sequence: ClassVar[bool] = False  # whether rows are parts of running text, so that neighbours are alike
    long_texts: ClassVar[tuple[str, ...]] = (HEAD,)  # what can be done with long texts, see `tasks/long_texts.py`
    refused: ClassVar[Mapping[str, str]] = {}  # commands that do not work, with the reason, a part of a sentence
    baselines: ClassVar[tuple[str, ...]] = ()  # baselines without fine-tuning that are defined

    # The model
    output_kind: ClassVar[str]  # what the model predicts, see `declare_output`
    auto_class: ClassVar[str]  # class of transformers that loads models of this kind
    peft_task_type: ClassVar[str | None] = None  # task type in PEFT, if it has one
    problem_type: ClassVar[Any] = None  # of the model's configuration, which selects the loss
    pipeline_tag: ClassVar[str]  # name of the task on the hub, for model cards
    # Python code that calls the model, for its card
    example: ClassVar[str] = """\
inputs = tokenizer($texts, truncation=True, max_length=$max_length, return_tensors="pt")
logits = model(**inputs).logits"""
    # Arguments with which the tokenizer is loaded. Positions of models such as GPT-2 count padding on the left.
    tokenizer_options: ClassVar[Mapping[str, Any]] = {"padding_side": "right"}
    pretrained: ClassVar[bool] = False  # whether pre-trained models have the head's weights, as language models do
    one_vector: ClassVar[bool] = False  # whether models read one vector for the input: a linear model can be fitted
    has_pooling: ClassVar[bool] = False  # whether there is a choice of that vector
    has_class_weights: ClassVar[bool] = False  # whether the loss supports class weights

    # Outputs and scores
    padding: ClassVar[float] = 0  # value with which raw outputs of batches are padded to one size
    reads_labels: ClassVar[bool] = False  # whether raw outputs depend on the labels, if there are any
    reference_column: ClassVar[str] = "labels"  # encoded column from which references are made
    rewarded_by_loss: ClassVar[bool] = False  # whether methods are rewarded by the loss: scores need several passes
    answer_column: ClassVar[str] = "label"  # column of the prediction, ``predicted_...`` beside columns of the input
    analysed_by: ClassVar[str] = ""  # errors are counted by "class" or, for several, by "label"; empty: no analysis
    has_probabilities: ClassVar[bool] = False  # whether predictions can come with the probabilities of all classes
    default_metrics: ClassVar[tuple[str, ...]]  # metrics of custom files; models are selected by the first
    metric_aliases: ClassVar[Mapping[str, str]] = {}  # alternative names of metrics
    fitted_at: ClassVar[tuple[str, float] | None] = None  # metric, and its minimum on rows that have been fitted
    most_fit_rows: ClassVar[int] = 1000  # number of training rows on which the fit is measured, at most

    def __post_init__(self) -> None:
        check_options(self)

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """Return the head with other options, by name; values may be text.

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
            raise AttendropError(
                f"The model predicts {self.predicts}: it has no probabilities of classes; leave out the option."
            )

    def fits(self, other: Head) -> bool:
        """Return whether outputs of a model with this head can be read as those of another head."""
        return (self.kind, len(self.output_names)) == (other.kind, len(other.output_names))

    @property
    def num_classes(self) -> int:
        """Number of classes whose logits form a row of the outputs; 0 if outputs are not class logits."""
        return 0

    @property
    def answers(self) -> tuple[str, ...]:
        """Possible answers, for a list of tasks."""
        return (self.predicts,)

    @property
    def attributed(self) -> str:
        """Score of a prediction that attribution explains."""
        return _ATTRIBUTED[self.output_kind]

    # Rows of files ----------------------------------------------------------------------------------------------------

    @property
    def all_names(self) -> tuple[str, ...]:
        """Names of labels, the unknown ones last, in the order of their ids."""
        return (*self.label_names, *self.unknown_names)

    def with_unknown(self, labels: Sequence[Any]) -> Self:
        """Add labels that the head does not know to ``unknown_names``; raise AttendropError if there can be none."""
        if not self.keeps_unknown:
            raise AttendropError(
                f"unknown-labels 'wrong' is for classes and for tags of words; omit it for {self.labels_are}."
            )
        new = dict.fromkeys(chain.from_iterable(map(self.unknown_labels, labels)))
        return replace(self, unknown_names=(*self.unknown_names, *new)) if new else self

    def unknown_counts(self, labels: Sequence[Any] | Array) -> dict[str, int]:
        """Count the classes, or tags of words, that the model cannot predict, by name."""
        counts = Counter(chain.from_iterable(map(np.atleast_1d, labels if self.unknown_names else ())))
        named = enumerate(self.unknown_names, start=len(self.label_names))
        return {name: counts[number] for number, name in named if counts[number]}

    @property
    @abstractmethod
    def predicts(self) -> str:
        """What the model predicts, such as "2 classes" or "a number"."""

    @property
    def labels_are(self) -> str:
        """What the labels are, such as "numbers to predict"."""
        return self.predicts

    @classmethod
    def inputs_in(cls, columns: Collection[str]) -> list[str]:
        """List the columns that the head reads, of those that rows have."""
        return [name for name in cls.inputs if name in columns]

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        """With label type "auto", tell whether the texts of the first row of a file may be of this kind."""
        return False

    @classmethod
    def may_label(cls, label: Any) -> bool:
        """With label type "auto", tell whether the first label of a file may be of this kind."""
        return True

    @classmethod
    def suits(cls, tables: Mapping[str, Table], column: str) -> bool:
        """With label type "auto", tell whether all labels are of this kind; raise AttendropError if it is unclear."""
        return True

    @classmethod
    def inputs_of(cls, text_columns: int) -> tuple[str, ...]:
        """Return the columns of a data set that are made of this number of text columns of a file."""
        return cls.inputs[:text_columns]

    @staticmethod
    def text_problem(value: Any, column: int = 0) -> str | None:
        """Describe what is wrong with a text of a file, in the text column of this number, or return None."""
        return text_problem(value)

    @classmethod
    def texts_problem(cls, texts: Sequence[Any]) -> str | None:
        """Describe what is wrong with the texts of a row, each without a :meth:`text_problem`, or return None."""
        return None

    @classmethod
    def read_texts(cls, texts: Sequence[Any]) -> list[Any]:
        """Convert the texts of a row, without a :meth:`texts_problem`, to the values of :meth:`inputs_of`."""
        return list(texts)

    @staticmethod
    def value_problem(value: Any) -> str | None:
        """Describe what is wrong with a label, independent of the classes, or return None."""
        return value_problem(value)

    @classmethod
    def from_labels(cls, tables: Mapping[str, Table], column: str, *, asked: bool = True) -> Self:
        """Make the head for the labels in files, none of which has a :meth:`value_problem`.

        Args:
            tables: By split: "train", and "dev" if there is one.
            column: Column of the labels.
            asked: Whether the user said what the labels are.

        Raises:
            AttendropError: No model can be trained on these labels.
        """
        return cls()

    def unknown_labels(self, value: Any) -> list[str]:
        """List the names in a label without a :meth:`value_problem` that the head does not know."""
        return []

    def label_problem(self, value: Any) -> str | None:
        """Describe what is wrong with a label that has no :meth:`value_problem`, or return None."""
        return None

    def row_problem(self, inputs: Sequence[Any], label: Any) -> str | None:
        """Describe why a row's inputs, as :meth:`read_texts` returns them, and its label do not fit, or return None."""
        return None

    def read_labels(self, values: Sequence[Any]) -> list[Any]:
        """Convert values of a file that have no :meth:`label_problem` to labels."""
        return list(values)

    # The model --------------------------------------------------------------------------------------------------------

    @classmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        """Return whether a saved model has this head: by its class. Heads are tried in the order of the registry."""
        return cls._class_name(config) in (config.architectures or ())

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> Self:
        """Make the head of a saved model that :meth:`recognizes` accepts: with its classes, if it has any."""
        names: Any = {} if cls.pretrained else config.id2label or {}  # JSON keys are converted back
        return cls(tuple(names[number] for number in sorted(names)))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the model's outputs per prediction."""
        return self.label_names

    def model_class(self, config: PreTrainedConfig) -> Any:
        """Return the class that loads the model; raise AttendropError if its family has none for this kind of task."""
        if self._class_name(config) is None:
            raise AttendropError(
                f"Models of the family {config.model_type!r} are none of transformers' {self.auto_class}, which "
                f"{self.kind} needs; give another model."
            )
        return getattr(transformers, self.auto_class)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the class and, unless it is pre-trained, the size, the names and the loss of the head."""
        config.architectures = [name] if (name := self._class_name(config)) else None
        if not self.pretrained:
            config.num_labels = len(self.output_names)
            config.problem_type = self.problem_type
            config.id2label = dict(enumerate(self.output_names))
            config.label2id = {name: number for number, name in enumerate(self.output_names)}

    @classmethod
    def _class_name(cls, config: PreTrainedConfig) -> str | None:
        """Return the name of the class of transformers for a configuration; None if its family has none."""
        found = getattr(transformers, cls.auto_class)._model_mapping.get(type(config), None)
        return None if found is None else str((found[0] if isinstance(found, tuple) else found).__name__)

    def load_tokenizer(self, place: str) -> Any:
        """Load the tokenizer of a model, given the model's folder or hub id."""
        return load_tokenizer(place, **self.tokenizer_options)

    def fit_tokenizer(self, name: str, model: PreTrainedModel, tokenizer: Any) -> None:
        """Adapt a model and its tokenizer to each other; raise AttendropError, with ``name``, if they do not fit."""
        set_padding(name, model, tokenizer)
        limit_to_positions(model, tokenizer)

    def prepare(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        """Set what the options ask for in a loaded model and its tokenizer; raise AttendropError if it cannot be."""
        return  # most kinds have no options

    def usage(self, num_texts: int, max_length: int, *, stock: bool = True, options: str = "") -> str:
        """Return Python code that loads and calls the model, for its card; ``stock``: with transformers alone."""
        texts = ", ".join(("text", "second_text")[:num_texts])
        code = Template(self.example).substitute(texts=texts, max_length=max_length, **self.example_values(stock=stock))
        imports = "import torch\n" if "torch." in code else ""
        return f"{imports}{self.loading(stock=stock, options=options)}\n{code}"

    def example_values(self, *, stock: bool) -> dict[str, str]:
        """Return the values of :attr:`example`, by name, beside ``texts`` and ``max_length``."""
        return {}

    def loading(self, *, stock: bool, options: str = "") -> str:
        """Return Python code that loads the model and its tokenizer, with further arguments for transformers."""
        imports, model = "import attendrop\nfrom transformers import AutoTokenizer", "attendrop.load(folder)"
        if stock:
            imports = f"from transformers import {self.auto_class}, AutoTokenizer"
            model = f"{self.auto_class}.from_pretrained(folder{options})"
        return f"""{imports}

model = {model}
tokenizer = AutoTokenizer.from_pretrained(folder{options})"""

    def fit_linear(
        self, features: Array, targets: Sequence[Any], *, balanced: bool, groups: Sequence[Any] | None = None
    ) -> LinearFit | None:
        """Fit a linear model of features ``(rows, features)``, classes weighted equally if ``balanced``, or None.

        Cross-validation keeps the rows of each of the ``groups``, one for each row, together.

        The head's start is copied from it, and baselines use its outputs as they are, without :meth:`raw_outputs` and
        :meth:`row_outputs`. So what transforms outputs, such as a link function, belongs in :meth:`decode` and
        :attr:`metrics`.
        """
        return None

    # Encoding ---------------------------------------------------------------------------------------------------------

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        """Tokenize the texts of rows, without padding; with ``max_length=None``, without truncation.

        A head that makes several encoded rows of one adds the column "document": the number of the row of each.
        """
        texts = [columns[name] for name in self.inputs_in(columns)]
        encoding: BatchEncoding = tokenizer(*texts, **truncation(max_length))
        return encoding

    def length_limit(self, tokenizer: Tokenizer, max_length: int, columns: Collection[str]) -> int:
        """Lower ``max_length``, in tokens, to what the tokenizer reads; raise AttendropError if there is no room."""
        return length_limit(tokenizer, max_length, pair=len(self.inputs_in(columns)) > 1)

    def lengths(self, encoded: Mapping[str, Any]) -> list[int]:
        """Return the length of each row, in tokens."""
        return [len(ids) for ids in encoded["input_ids"]]

    def input_report(
        self, rows: Dataset, encoded: Mapping[str, Any], tokenizer: Tokenizer, limit: int
    ) -> dict[str, int]:
        """Count rows ``truncated`` to ``limit`` tokens, and ``unknown``, without a known token, if there can be any."""
        lengths = of_documents(encoded["length"], encoded)
        full = [row for row, length in enumerate(lengths) if length >= limit]
        parts = rows.select(full).iter(_AT_A_TIME)
        whole = (length for part in parts for length in self.lengths(self.tokenize(part, tokenizer, None)))
        truncated = sum(length > limit for length in whole)
        return {"truncated": truncated, "unknown": self.unknown_rows(encoded, tokenizer)}

    def unknown_rows(self, encoded: Mapping[str, Any], tokenizer: Tokenizer) -> int:
        """Count the rows that have no token known to the tokenizer."""
        rows, others = self.row_numbers(encoded), {*tokenizer.all_special_ids, tokenizer.convert_tokens_to_ids(_SPACE)}
        known = {row for row, ids in zip(rows, self.token_ids(encoded), strict=True) if set(ids) - others}
        return len(set(rows) - known)

    def row_numbers(self, encoded: Mapping[str, Any]) -> Sequence[Any]:
        """Return the row number of each encoded row; all windows of a text have the same."""
        return encoded[DOCUMENT][:] if DOCUMENT in encoded else range(len(encoded["length"]))

    def token_ids(self, encoded: Mapping[str, Any]) -> Sequence[Sequence[int]]:
        """Return all token ids of each row."""
        return encoded["input_ids"]  # type: ignore[no-any-return]

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[Any]:
        """Make the ``labels`` of the model, without padding, from those of the encoded rows: by default, class ids."""
        return [int(label) for label in labels]

    def collator(self, tokenizer: Tokenizer) -> Callable[[list[Any]], Any]:
        """Return a function that makes a batch of encoded rows: tensors, padded to the longest."""
        return DataCollatorWithPadding(tokenizer)

    # Outputs ----------------------------------------------------------------------------------------------------------

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Array:
        """Compute the raw outputs of a model for a batch; called without gradients."""
        raw: Array = self.raw_outputs(model, batch, model(**batch)).float().cpu().numpy()
        return raw

    def raw_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], outputs: Any) -> Tensor:
        """Return what is kept of a pass for decoding and scoring, one row per encoded row: by default, the logits."""
        return logits_of(outputs)

    def concatenate(self, parts: Sequence[Any]) -> Array:
        """Concatenate the raw outputs of several batches, padded to the largest."""
        arrays = [np.asarray(part) for part in parts]
        size = np.max([array.shape[1:] for array in arrays], axis=0)
        padding = [[(0, 0), *((0, most - own) for most, own in zip(size, a.shape[1:], strict=True))] for a in arrays]
        pairs = zip(arrays, padding, strict=True)
        return np.concatenate([np.pad(array, pad, constant_values=self.padding) for array, pad in pairs])

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: Tokenizer) -> Array:
        """Convert raw outputs, of all encoded rows, to outputs; by default, those of a text in windows to their mean.

        ``encoded`` has all columns that :meth:`tokenize` made, and "labels"; for the batches on which a method is
        rewarded in training, only "labels".
        """
        return document_means(raw, encoded)

    def references(self, encoded: Mapping[str, Any]) -> Array:
        """Return what outputs are scored against, one entry per row of the data; as for :meth:`row_outputs`."""
        column = self.reference_column if self.reference_column in encoded else "labels"
        return self.label_array(of_documents(encoded[column][:], encoded))

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Convert labels of rows to references."""
        return np.asarray(labels)

    def checked(self, outputs: Array) -> Array:
        """Convert outputs to float64, unless they are objects; raise AttendropError if one is NaN or infinite."""
        outputs = outputs if outputs.dtype == object else np.asarray(outputs, dtype=np.float64)
        good = self.finite(outputs) if len(outputs) else np.ones(0, dtype=bool)
        if not good.all():
            raise AttendropError(
                f"the model's output is NaN or infinite for {int(np.sum(~good))} of {len(good)} rows: training "
                "diverged; lower the learning rate."
            )
        return outputs

    def finite(self, outputs: Array) -> Array:
        """Return for each row whether its outputs, or the ``scores`` of an object, are free of signs of divergence."""
        if outputs.dtype == object:
            return np.array([np.isfinite(getattr(row, "scores", row)).all() for row in outputs])
        return np.asarray(np.isfinite(outputs.reshape(len(outputs), -1)).all(axis=1))

    @abstractmethod
    def decode(self, outputs: Array) -> list[Any]:
        """Return the predicted labels."""

    @abstractmethod
    def prediction_rows(self, outputs: Array, *, probabilities: bool) -> list[dict[str, Any]]:
        """Return the columns of a file of predictions for each row, :attr:`answer_column` first."""

    # Scores -----------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """Metrics by name; the names are those of scikit-learn's scorers where it has them."""

    def constant_answer(self, train: Array, references: Array) -> tuple[str | float, Array] | None:
        """Return the best constant prediction, given the references of training, and outputs that make it; or None."""
        return None

    def predicted_counts(self, outputs: Array) -> dict[str, int]:
        """Count the predictions of each class, for classes with any; empty if there are no classes."""
        return {}

    # Reports on data --------------------------------------------------------------------------------------------------

    @property
    def strata(self) -> tuple[str, ...]:
        """Names of the groups by which samples are stratified."""
        return ("the data",)

    def strata_of(self, rows: Dataset) -> Sequence[int]:
        """Return the group of each row, an index of :attr:`strata`."""
        return [0] * len(rows)

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        """Return the texts of each row, for comparison and display."""
        return list(zip(*(rows[name][:] for name in self.inputs_in(rows.column_names)), strict=True))

    def shown_label(self, label: Any) -> Any:
        """Return a label for display."""
        return label

    @abstractmethod
    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        """Summarize the labels of some rows as JSON values, for :meth:`label_lines`."""

    @abstractmethod
    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        """Return the lines of a table of labels: a title, and a cell for each result of :meth:`describe_labels`."""

    def label_warnings(self, train: Mapping[str, Any], scored: Sequence[Mapping[str, Any]] = ()) -> list[str]:
        """Return warnings about the training labels, given the :meth:`describe_labels` of these and of scored rows."""
        return []

    def similar_classes(self) -> list[list[str]]:
        """Return pairs of classes that differ only in case and spaces."""
        return []


def truncation(max_length: int | None) -> dict[str, Any]:
    """Return the arguments of a tokenizer that truncate to a number of tokens, or with None do not."""
    return {"verbose": False} if max_length is None else {"truncation": True, "max_length": max_length}


def row_array(rows: Sequence[Any]) -> Array:
    """Make an array of objects, one for each row."""
    found = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):  # not at once: rows of the same length would become a dimension
        found[number] = row
    return found
