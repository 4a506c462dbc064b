"""Base class of heads: what a kind of task reads from files, its model, its predictions and their scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from datasets import Dataset

from attendrop.attribution.predictions import CLASSES, LABELS, NUMBER, SPAN, TOKENS
from attendrop.errors import AttendropError
from attendrop.methods.core.options import check_options, read_options
from attendrop.tasks.long_texts import DOCUMENT, HEAD, of_documents
from attendrop.tasks.table import Table
from attendrop.tasks.token_columns import TokenColumn, align
from attendrop.tasks.tokenizers import length_limit, limit_to_positions, load_tokenizer, set_padding
from attendrop.tasks.values import text_problem, value_problem

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Array = np.ndarray[Any, np.dtype[Any]]
Columns = Mapping[str, list[Any]]
_ATTRIBUTED = {
    CLASSES: "the logit of the predicted class",
    LABELS: "the log-likelihood of the predicted labels",
    NUMBER: "minus the squared distance of the predicted number from the number one above it",
    TOKENS: "the log-likelihood of the predicted tokens",
    SPAN: "the logits of the first and the last token of the predicted answer",
}
# Up to this many classes are listed; for more, only the smallest and the largest number of rows are shown.
MOST_LISTED = 12


@dataclass(frozen=True)
class Metric:
    """A score of model outputs.

    Attributes:
        score: Function that computes it from labels and outputs, one row per example.
        span: Largest possible difference of two scores.
        selects: Whether models can be selected by it, because greater is better.
        right: Function that tells of each row whether it is right; None: the score is not the fraction of these rows.
    """

    score: Callable[[Array, Array], float]
    span: float = 1.0
    selects: bool = True
    right: Callable[[Array, Array], Array] | None = None

    @classmethod
    def counting(cls, right: Callable[[Array, Array], Array]) -> Self:
        """Make the fraction of rows that are right."""
        return cls(lambda labels, outputs: float(np.mean(right(labels, outputs))), right=right)


@dataclass(frozen=True)
class LinearFit:
    """Linear model of features.

    Attributes:
        kind: Such as "logistic regression".
        weight: ``(outputs, features)``.
        bias: ``(outputs,)``.
        settings: Chosen strength of the regularisation, such as ``{"C": 10.0}``.
        score: Name and value of its score on the rows that it was fitted to: accuracy, micro F1 or R2.
    """

    kind: str
    weight: Array
    bias: Array
    settings: dict[str, float]
    score: tuple[str, float]

    def outputs(self, features: Array) -> Array:
        """Compute outputs ``(rows, outputs)`` of features ``(rows, features)``."""
        outputs: Array = features @ self.weight.T + self.bias
        return outputs


@dataclass(frozen=True)
class Head(ABC):
    """A kind of task, with its classes. To add one, write a subclass and add it to ``heads/builtin.py``.

    A subclass may have *options*, the values of ``--task-set``: further fields of its dataclass, each declared with
    its range (:func:`attendrop.methods.core.options.option`).

    *Rows* are columns by name, as in :class:`attendrop.tasks.base.TaskData`. *Labels* are the values of the column
    ``"label"``, *targets* the ``labels`` passed to the model. *Raw outputs* are what passes of the model return,
    collected over batches, and *outputs* an array with one entry per row of the data, which :meth:`row_outputs` makes
    of them. Metrics compare outputs with *references*, one entry per row. The *tokenizer* is what makes a model's
    inputs and is saved with it: :meth:`load_preprocessor` loads it, and for images it is an image processor.

    Attributes:
        label_names: The classes, in the order of their ids; empty if there are none.
        unknown_names: Labels of evaluation data that are none of these, so that the model cannot predict them; their
            ids follow.
        kind: Name of the kind of task, ``Task.kind``.
        label_type: Value of ``--label-type`` for labels of this kind.
        output_kind: What the model predicts, one of ``OUTPUT_KINDS`` of :mod:`attendrop.attribution.predictions`, by
            which its predictions are attributed, and those of several passes compared.
        inputs: Columns of a data set that the head can read.
        input_name: What an input is called in messages.
        least_inputs: Least number of ``--text-columns``, of which :meth:`read_texts` makes the inputs.
        most_inputs: Greatest number of those.
        needs_labels: Whether rows for training and scoring need a label.
        auto_class: Class of transformers that loads models of this kind.
        peft_task_type: Task type of models of this kind in PEFT; None: PEFT has none.
        problem_type: ``problem_type`` of the model's configuration, which selects the loss.
        pipeline_tag: Name of the task on the hub, for model cards.
        preprocessor: Name, class and further arguments of what makes inputs, in the code of model cards.
        tokenizer_options: Arguments with which tokenizers of this kind of model are loaded.
        pretrained: Whether pre-trained models have the head's weights, as language models do. Otherwise it is new.
        one_vector: Whether models read one vector for the whole input, for which a linear model can be fitted.
        has_pooling: Whether there is a choice of that vector.
        has_class_weights: Whether the loss supports class weights.
        long_texts: What can be done with texts that are too long, see :mod:`attendrop.tasks.long_texts`.
        training_columns: Columns of encoded rows that :meth:`training_collator` reads, and no model.
        no_token_columns: Why columns with an entry for each token are refused, a part of a sentence, if they are.
        padding: Value with which raw outputs of batches are padded to one size.
        in_sequence: Whether rows are parts of running text, so that neighbours are alike.
        reads_labels: Whether raw outputs depend on the labels, if there are any.
        rewarded_by_loss: Whether methods are not rewarded by scores, because these are not of the logits of one pass.
        answer_column: Column of the prediction; it is called ``predicted_...`` beside columns of the input.
        has_probabilities: Whether predictions can come with the probabilities of all classes.
        keeps_unknown: Whether there can be ``unknown_names``.
        default_metrics: Metrics of custom files; models are selected by the first.
        metric_aliases: Alternative names of metrics.
        fitted_at: Metric, and its least value on the training rows for a model that has fitted them; None: unknown.
        most_fit_rows: Number of training rows on which the fit of a trained model is measured, at most.
        baselines: Baselines without fine-tuning that are defined for this kind of task.
        refused: Commands that do not work for this kind of task, with the reason, a part of a sentence.
    """

    label_names: tuple[str, ...] = ()
    unknown_names: tuple[str, ...] = ()

    kind: ClassVar[str]
    label_type: ClassVar[str]
    output_kind: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    input_name: ClassVar[str] = "text"
    least_inputs: ClassVar[int] = 1
    most_inputs: ClassVar[int] = 2
    needs_labels: ClassVar[bool] = True
    auto_class: ClassVar[str]
    peft_task_type: ClassVar[str | None] = None
    problem_type: ClassVar[Any] = None
    pipeline_tag: ClassVar[str]
    preprocessor: ClassVar[tuple[str, str, str]] = ("tokenizer", "AutoTokenizer", "")
    tokenizer_options: ClassVar[Mapping[str, Any]] = {}
    pretrained: ClassVar[bool] = False
    one_vector: ClassVar[bool] = False
    has_pooling: ClassVar[bool] = False
    has_class_weights: ClassVar[bool] = False
    long_texts: ClassVar[tuple[str, ...]] = (HEAD,)
    training_columns: ClassVar[tuple[str, ...]] = ()
    no_token_columns: ClassVar[str] = ""
    padding: ClassVar[float] = 0
    in_sequence: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = False
    rewarded_by_loss: ClassVar[bool] = False
    answer_column: ClassVar[str] = "label"
    has_probabilities: ClassVar[bool] = False
    keeps_unknown: ClassVar[bool] = False
    default_metrics: ClassVar[tuple[str, ...]]
    metric_aliases: ClassVar[Mapping[str, str]] = {}
    fitted_at: ClassVar[tuple[str, float] | None] = None
    most_fit_rows: ClassVar[int] = 1000
    baselines: ClassVar[tuple[str, ...]] = ()
    refused: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        check_options(self)

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """Return the head with other options, by name; values may be text.

        Raises:
            AttendropError: An option is unknown, or a value is of the wrong type or out of its range.
        """
        return replace(self, **read_options(type(self), given, f"the task, {self.kind},")) if given else self

    def options(self) -> dict[str, Any]:
        """Return the options by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if "range" in each.metadata}

    def with_unknown(self, labels: Sequence[Any]) -> Self:
        """Return the head with those of some labels that it does not know among its ``unknown_names``.

        Args:
            labels: Values of a file, without a :meth:`value_problem`.

        Raises:
            AttendropError: There can be none in this kind of task.
        """
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
    def all_names(self) -> tuple[str, ...]:
        """Names of labels, in the order of their ids: those of the classes, and the unknown ones."""
        return (*self.label_names, *self.unknown_names)

    def refuse(self, command: str) -> None:
        """Raise AttendropError if a command does not work for this kind of task."""
        if command in self.refused:
            raise AttendropError(f"`attendrop {command}` does not work for {self.kind}: {self.refused[command]}.")

    def fits(self, other: Head) -> bool:
        """Tell whether outputs of a model with this head can be read as those of another head."""
        return (self.kind, len(self.output_names)) == (other.kind, len(other.output_names))

    # In words ---------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def predicts(self) -> str:
        """What the model predicts, such as "2 classes" or "a number"."""

    @property
    def labels_are(self) -> str:
        """What the labels are, such as "numbers to predict"."""
        return self.predicts

    @property
    def answers(self) -> tuple[str, ...]:
        """Possible answers, for a list of tasks."""
        return (self.predicts,)

    @property
    def attributed(self) -> str:
        """Score of a prediction that attribution explains."""
        return _ATTRIBUTED[self.output_kind]

    # Files ------------------------------------------------------------------------------------------------------------

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        """Tell whether texts, those of the first row of a file, may be of this kind, if nobody said what labels are."""
        return False

    @classmethod
    def may_label(cls, label: Any) -> bool:
        """Tell whether a label, the first of a file, may be of this kind, if nobody said what labels are."""
        return True

    @classmethod
    def suits(cls, tables: Mapping[str, Table], column: str) -> bool:
        """Tell whether labels of files, of which nobody said what they are, are of this kind.

        Args:
            tables: As for :meth:`from_labels`; the head :meth:`may_read` the texts and :meth:`may_label`.
            column: As for :meth:`from_labels`.

        Raises:
            AttendropError: It is unclear.
        """
        return True

    @classmethod
    def inputs_of(cls, text_columns: int) -> tuple[str, ...]:
        """Return the columns of a data set that are made of so many text columns of a file."""
        return cls.inputs[:text_columns]

    @classmethod
    def located(cls, table: Table, columns: Sequence[str]) -> Table:
        """Return a table in which inputs that are names of files can be opened from here.

        Args:
            table: Rows of a file.
            columns: Its text columns, some of which may be missing.
        """
        return table

    @staticmethod
    def text_problem(value: Any, column: int = 0) -> str | None:
        """Describe what is wrong with a text of a file, in the text column of this number, or return None."""
        return text_problem(value)

    @classmethod
    def texts_problem(cls, texts: Sequence[Any]) -> str | None:
        """Describe what is wrong with the texts of a row, each without a :meth:`text_problem`, or return None."""
        return None

    @classmethod
    def leaves_out(cls, texts: Sequence[Any]) -> bool:
        """Tell whether a row with these texts is no row of data to train or score on, such as an empty line."""
        return False

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
        """Make the head for the labels in files; by default, any labels will do.

        Args:
            tables: By split: "train", "dev" or both.
            column: Column of the labels; none has a :meth:`value_problem`.
            asked: Whether the user said what the labels are.

        Raises:
            AttendropError: No model can be trained on these labels.
        """
        return cls()

    def label_problem(self, value: Any) -> str | None:
        """Describe what is wrong with a label that has no :meth:`value_problem`, or return None."""
        return None

    def unknown_labels(self, value: Any) -> list[str]:
        """List the classes or tags in a label that has no :meth:`value_problem` which the head does not know."""
        return []

    def row_problem(self, inputs: Sequence[Any], label: Any) -> str | None:
        """Describe in what a row's values, as of :meth:`read_texts`, and its label do not fit, or return None."""
        return None

    def read_labels(self, values: Sequence[Any]) -> list[Any]:
        """Convert values of a file that have no :meth:`label_problem` to labels."""
        return list(values)

    # The model --------------------------------------------------------------------------------------------------------

    @classmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        """Tell whether a saved model has this head: by its class. Heads are tried in the order of the registry."""
        return cls._class_name(config) in (config.architectures or ())

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> Self:
        """Make the head of a saved model that :meth:`recognizes` accepts: by default, with its classes."""
        return cls(saved_classes(config))

    @property
    def num_classes(self) -> int:
        """Number of classes whose logits form a row of the outputs; 0 if outputs are not class logits."""
        return 0

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the model's outputs per prediction."""
        return self.label_names

    def model_class(self, config: PreTrainedConfig) -> Any:
        """Return the class that loads the model with this configuration."""
        import transformers

        return getattr(transformers, self.auto_class)

    @classmethod
    def saved_class(cls, name: str, model_type: str) -> Any:
        """Return the class of this library that loads a saved model; None for another kind, or a class of transformers.

        Args:
            name: Name of the class with which it was saved.
            model_type: As in its configuration.
        """
        return None

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the class, the size, the names and the loss of the head in a model's configuration.

        The output layer of a pre-trained head stays as it is.
        """
        config.architectures = [name] if (name := self._class_name(config)) else None
        if not self.pretrained:
            config.num_labels = len(self.output_names)
            config.problem_type = self.problem_type
            config.id2label = dict(enumerate(self.output_names))
            config.label2id = {name: number for number, name in enumerate(self.output_names)}

    @classmethod
    def _class_name(cls, config: PreTrainedConfig) -> str | None:
        """Return the name of the class of transformers for a configuration; None if its family has none."""
        import transformers

        mapping = getattr(transformers, cls.auto_class)._model_mapping
        if type(config) not in mapping:
            return None
        found = mapping[type(config)]
        return str((found[0] if isinstance(found, tuple) else found).__name__)

    def load_preprocessor(self, place: str) -> Any:
        """Load the tokenizer of a model, or what takes its place.

        Args:
            place: Folder or hub id of the model.
        """
        return load_tokenizer(place, **self.tokenizer_options)

    def fit_preprocessor(self, name: str, model: PreTrainedModel, tokenizer: Any) -> None:
        """Adapt a model and its tokenizer, or what takes its place, to each other.

        Args:
            name: Name of the model, for messages.
            model: The model.
            tokenizer: What :meth:`load_preprocessor` returned.

        Raises:
            AttendropError: They do not belong together.
        """
        set_padding(name, model, tokenizer)
        limit_to_positions(model, tokenizer)

    def prepare(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Set what the options ask for in a loaded model and its tokenizer.

        Raises:
            AttendropError: The model cannot do what an option asks for.
        """
        return  # most kinds have no options

    def usage(self, num_texts: int, max_length: int, *, stock: bool = True) -> str:
        """Return Python code that loads and calls the model, for its card.

        Args:
            num_texts: Number of texts of an input.
            max_length: In tokens.
            stock: Whether the model's class is one of transformers.
        """
        texts = ", ".join(("text", "second_text")[:num_texts])
        return f"""{self.loading(stock=stock)}
inputs = tokenizer({texts}, truncation=True, max_length={max_length}, return_tensors="pt")
logits = model(**inputs).logits"""

    def loading(self, *, stock: bool) -> str:
        """Return Python code that loads the model and its tokenizer; the arguments are those of :meth:`usage`."""
        name, loader, options = self.preprocessor
        imports, load = f"from transformers import {self.auto_class}, {loader}", f"{self.auto_class}.from_pretrained"
        if not stock:
            imports, load = f"import attendrop\nfrom transformers import {loader}", "attendrop.load"
        return f"""{imports}

model = {load}(folder)
{name} = {loader}.from_pretrained(folder{options})"""

    def fit_linear(self, features: Array, targets: Sequence[Any], *, balanced: bool) -> LinearFit | None:
        """Fit a linear model of fixed features to targets, with as many outputs as the model has; None if none fits.

        Args:
            features: ``(rows, features)``.
            targets: As :meth:`targets` makes them.
            balanced: Whether classes have equal weight, instead of rows.
        """
        return None

    # Encoding ---------------------------------------------------------------------------------------------------------

    @classmethod
    def inputs_in(cls, columns: Collection[str]) -> list[str]:
        """List the columns that the head reads, of those that rows have."""
        return [name for name in cls.inputs if name in columns]

    @classmethod
    def joins_pairs(cls, columns: Collection[str]) -> bool:
        """Tell whether rows with these columns are tokenized as pairs of texts."""
        return len(cls.inputs_in(columns)) > 1

    def without_answers(self, columns: Columns) -> dict[str, Any]:
        """Return rows without what is to be predicted."""
        return {name: values for name, values in columns.items() if name != "label"}

    def training_rows(self, rows: Dataset) -> Dataset:
        """Return training rows as :meth:`tokenize` is to see them."""
        return rows

    def tokenize(self, columns: Columns, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> BatchEncoding:
        """Tokenize the texts of rows, without padding; with ``max_length=None``, without truncation."""
        texts = [columns[name] for name in self.inputs_in(columns)]
        encoding: BatchEncoding = tokenizer(*texts, **truncation(max_length))
        return encoding

    def length_limit(self, tokenizer: PreTrainedTokenizerBase, max_length: int, columns: Collection[str]) -> int:
        """Return the number of tokens to which rows with these columns are truncated, given the one that was asked for.

        Raises:
            AttendropError: It leaves no room for text.
        """
        return length_limit(tokenizer, max_length, pair=self.joins_pairs(columns))

    def lengths(self, encoded: Mapping[str, Any]) -> list[int]:
        """Return the length of each row, in tokens."""
        return [len(ids) for ids in encoded["input_ids"]]

    def truncated(self, rows: Dataset, lengths: Sequence[int], tokenizer: PreTrainedTokenizerBase, limit: int) -> int:
        """Count the rows that were truncated to a limit, given their lengths: those that fill it and are longer."""
        full = [row for row, length in enumerate(lengths) if length >= limit]
        if not full:
            return 0
        whole = self.tokenize(rows.select(full).to_dict(), tokenizer, None)
        return sum(length > limit for length in self.lengths(whole))

    def input_report(
        self, rows: Dataset, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, limit: int
    ) -> dict[str, int]:
        """Count what encoding lost, for the report on data.

        Args:
            rows: The rows.
            encoded: The same rows, encoded.
            tokenizer: The tokenizer.
            limit: Length to which rows were truncated.

        Returns:
            ``truncated`` (rows longer than the limit) and ``unknown`` (see :meth:`unknown_rows`); empty for inputs that
            can be neither.
        """
        return {
            "truncated": self.truncated(rows, of_documents(encoded["length"], encoded), tokenizer, limit),
            "unknown": self.unknown_rows(encoded, tokenizer),
        }

    def unknown_rows(self, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> int:
        """Count the rows that have no token known to the tokenizer."""
        special, rows = set(tokenizer.all_special_ids), self.row_numbers(encoded)
        known = {row for row, ids in zip(rows, self.token_ids(encoded), strict=True) if set(ids) - special}
        return len(set(rows) - known)

    def row_numbers(self, encoded: Mapping[str, Any]) -> Sequence[Any]:
        """Return for each encoded row the number of its row, of which there are several where texts are in windows."""
        return encoded[DOCUMENT][:] if DOCUMENT in encoded else range(len(encoded["length"]))

    def token_ids(self, encoded: Mapping[str, Any]) -> Sequence[Sequence[int]]:
        """Return all token ids of each row."""
        return encoded["input_ids"]  # type: ignore[no-any-return]

    def align(
        self,
        token_columns: Sequence[TokenColumn],
        columns: Columns,
        encoded: BatchEncoding,
        tokenizer: PreTrainedTokenizerBase,
    ) -> dict[str, list[Any]]:
        """Make columns with an entry for each token of the encoded rows, from those of the rows.

        Args:
            token_columns: The columns.
            columns: Rows, with these columns and "place".
            encoded: The same rows, tokenized and truncated.
            tokenizer: The tokenizer.

        Raises:
            AttendropError: A row has more or fewer entries than its whole input has tokens, or no such column is read.
        """
        if self.no_token_columns:
            raise AttendropError(
                f"The column {token_columns[0].name!r} has entries for the tokens of {self.no_token_columns}; "
                "use a method without such a column."
            )
        return align(token_columns, columns, self.tokenize(columns, tokenizer, None), encoded, tokenizer)

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: PreTrainedTokenizerBase) -> list[Any]:
        """Make the ``labels`` of the model, without padding: by default, class ids."""
        return [int(label) for label in labels]

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[Any]], Any]:
        """Return a function that makes a batch of encoded rows: tensors, padded to the longest."""
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(tokenizer)

    def training_collator(
        self, collate: Callable[[list[Any]], Any], tokenizer: PreTrainedTokenizerBase, seed: int
    ) -> Callable[[list[Any]], Any]:
        """Return a function that makes a batch of training rows; the trainer sets its ``epoch``, if it has one.

        Args:
            collate: That of :meth:`collator`.
            tokenizer: The tokenizer.
            seed: Seed of the training.
        """
        return collate

    # Outputs ----------------------------------------------------------------------------------------------------------

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> Array:
        """Compute the raw outputs of a model for a batch; called without gradients."""
        logits: Array = model(**batch).logits.float().cpu().numpy()
        return logits

    def trainer_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], logits: Any) -> Any:
        """Return the raw outputs that a trainer keeps for scoring, as tensors.

        Args:
            model: The model, in evaluation mode; called without gradients.
            batch: The batch, with labels.
            logits: What the model returned for it, beside the loss.
        """
        return logits[0] if isinstance(logits, tuple) else logits  # some models return more than logits

    def concatenate(self, parts: Sequence[Any]) -> Array:
        """Concatenate the raw outputs of several batches, padded to the largest."""
        arrays = [np.asarray(part) for part in parts]
        size = np.max([array.shape[1:] for array in arrays], axis=0)
        padding = [[(0, 0), *((0, most - own) for most, own in zip(size, a.shape[1:], strict=True))] for a in arrays]
        pairs = zip(arrays, padding, strict=True)
        return np.concatenate([np.pad(array, pad, constant_values=self.padding) for array, pad in pairs])

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Array:
        """Convert raw outputs to outputs, one entry per row of the data, that can be decoded and scored.

        Args:
            raw: Raw outputs of all encoded rows, in their order.
            encoded: All columns that :meth:`tokenize` made, and "labels"; in training, of the batches on which a
                method is rewarded, only "labels".
            tokenizer: The tokenizer.
        """
        return raw

    def references(self, encoded: Mapping[str, Any]) -> Array:
        """Return what outputs are scored against, one entry per row of the data; as for :meth:`row_outputs`."""
        return self.label_array(encoded["labels"][:])

    def label_array(self, labels: Sequence[Any]) -> Array:
        """Convert labels of rows to references."""
        return np.asarray(labels)

    def checked(self, outputs: Array) -> Array:
        """Convert outputs to float64, unless they are objects.

        Raises:
            AttendropError: An output is NaN or infinite.
        """
        outputs = outputs if outputs.dtype == object else np.asarray(outputs, dtype=np.float64)
        good = self.finite(outputs) if len(outputs) else np.ones(0, dtype=bool)
        if not good.all():
            raise AttendropError(
                f"the model's output is NaN or infinite for {int(np.sum(~good))} of {len(good)} rows: training "
                "diverged; lower the learning rate."
            )
        return outputs

    def finite(self, outputs: Array) -> Array:
        """Tell of each row whether its outputs are what a model can return that did not diverge."""
        good: Array = np.asarray(np.isfinite(outputs.reshape(len(outputs), -1)).all(axis=1))
        return good

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
        """Return the texts of each row, for comparison."""
        return list(zip(*(rows[name][:] for name in self.inputs_in(rows.column_names)), strict=True))

    def titles(self, rows: Dataset) -> list[tuple[str, ...]]:
        """Return the texts of each row, for display."""
        return self.texts(rows)

    def row_ids(self, columns: Columns) -> tuple[str, Sequence[Any]]:
        """Return what tells the rows in a file of predictions: the name of the column, and its values."""
        return "index", columns["index"][:]

    def shown_label(self, label: Any) -> Any:
        """Return a label for display."""
        return label

    @abstractmethod
    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        """Summarize the labels of some rows as JSON values, for :meth:`label_lines`."""

    @abstractmethod
    def label_lines(self, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        """Return the lines of a table of labels: a title, and a cell for each result of :meth:`describe_labels`."""

    def label_warnings(self, train: Mapping[str, Any]) -> list[str]:
        """Return warnings about the training labels, given their :meth:`describe_labels`."""
        return []

    def similar_classes(self) -> list[list[str]]:
        """Return pairs of classes that differ only in case and spaces."""
        return []


def saved_classes(config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the classes in the configuration of a saved model, in the order of their ids."""
    names: dict[int, str] = config.id2label or {}  # type: ignore[assignment]  # JSON keys are converted back
    return tuple(names[number] for number in sorted(names))


def truncation(max_length: int | None) -> dict[str, Any]:
    """Return the arguments of a tokenizer that truncate to a number of tokens, or with None do not."""
    return {"verbose": False} if max_length is None else {"truncation": True, "max_length": max_length}


def row_array(rows: Sequence[Any]) -> Array:
    """Make an array of objects, one for each row."""
    found = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):  # not at once: rows of the same length would become a dimension
        found[number] = row
    return found


def count_names(numbers: Sequence[int] | Array, names: Sequence[str]) -> dict[str, int]:
    """Count the numbers that have a name, by name; names that occur only."""
    counts = Counter(np.asarray(numbers, dtype=int).tolist())
    return {name: counts[number] for number, name in enumerate(names) if counts[number]}


def count_lines(counts: Sequence[Mapping[str, int]], title: str, form: str = "{} to {}") -> list[list[str]]:
    """Return the lines of a table with the counts of each class in each part.

    Args:
        counts: Counts by class, of each part.
        title: Title of a line with the smallest and the largest, instead of a line for each of more than 12 classes.
        form: Form of these two.
    """
    if len(counts[0]) <= MOST_LISTED:
        return [[f"  {name}", *(str(part[name]) for part in counts)] for name in counts[0]]
    return [[title, *(form.format(min(part.values()), max(part.values())) for part in counts)]]


def word_counts(texts: Sequence[str]) -> dict[str, Any]:
    """Summarize the numbers of words of texts, for :func:`word_line`."""
    words = [len(text.split()) for text in texts]
    return {"words": {"mean": float(np.mean(words)), "max": max(words)}}


def word_line(title: str, parts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the line of a table with the mean and the largest number of words of each part."""
    return [[title, *("{mean:.1f}, up to {max}".format(**part["words"]) for part in parts)]]
