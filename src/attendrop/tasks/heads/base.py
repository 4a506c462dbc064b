"""Base class of heads: one kind of task, its model, and what is told of its data."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from datasets import Dataset

from attendrop.attribution.predictions import CLASSES, LABELS, NUMBER, SPAN, TOKENS
from attendrop.errors import AttendropError
from attendrop.methods.core.options import check_options, read_options
from attendrop.tasks.heads.file_reader import FileReader
from attendrop.tasks.heads.output_scorer import Array, OutputScorer
from attendrop.tasks.heads.row_encoder import Columns, RowEncoder
from attendrop.tasks.long_texts import HEAD
from attendrop.tasks.tokenizers import limit_to_positions, load_tokenizer, set_padding

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from attendrop.tasks.heads.linear_fit import LinearFit


_ATTRIBUTED = {
    CLASSES: "the logit of the predicted class",
    LABELS: "the log-likelihood of the predicted labels",
    NUMBER: "minus the squared distance of the predicted number from the number one above it",
    TOKENS: "the log-likelihood of the predicted tokens",
    SPAN: "the logits of the first and the last token of the predicted answer",
}


@dataclass(frozen=True)
class Head(FileReader, RowEncoder, OutputScorer):
    """A kind of task, with its classes. To add one, write a subclass and add it to ``heads/builtin.py``.

    A subclass may have *options*, the values of ``--task-set``: further fields of its dataclass, each declared with
    its range (:func:`attendrop.methods.core.options.option`).

    What it reads from files, how it encodes rows and how it scores outputs can be overridden, too: see the bases.
    *Labels* are the values of the column ``"label"`` of a data set, *targets* the ``labels`` passed to the model. Rows
    are columns by name, as in :class:`attendrop.tasks.base.TaskData`. The *tokenizer* is what makes a model's inputs
    and is saved with it: :meth:`load_preprocessor` loads it, and for images it is an image processor.

    Attributes:
        label_names: The classes, in the order of their ids; empty if there are none.
        unknown_names: Labels of evaluation data that are none of these, so that the model cannot predict them; their
            ids follow.
        kind: Name of the kind of task, ``Task.kind``.
        label_type: Value of ``--label-type`` for labels of this kind.
        auto_class: Class of transformers that loads models of this kind.
        peft_task_type: Task type of models of this kind in PEFT; None: PEFT has none.
        problem_type: ``problem_type`` of the model's configuration, which selects the loss.
        pipeline_tag: Name of the task on the hub, for model cards.
        fitted_at: Metric, and its least value on the training rows for a model that has fitted them; None: unknown.
        output_kind: What the model predicts, one of ``OUTPUT_KINDS`` of :mod:`attendrop.attribution.predictions`, by
            which its predictions are attributed, and those of several passes compared.
        keeps_unknown: Whether there can be ``unknown_names``.
        has_class_weights: Whether the loss supports class weights.
        one_vector: Whether models read one vector for the whole input, for which a linear model can be fitted.
        has_pooling: Whether there is a choice of that vector.
        long_texts: What can be done with texts that are too long, see :mod:`attendrop.tasks.long_texts`.
        baselines: Baselines without fine-tuning that are defined for this kind of task.
        tokenizer_options: Arguments with which tokenizers of this kind of model are loaded.
        pretrained: Whether pre-trained models have the head's weights, as language models do. Otherwise it is new.
        most_fit_rows: Number of training rows on which the fit of a trained model is measured, at most.
        refused: Commands that do not work for this kind of task, with the reason, a part of a sentence.
    """

    label_names: tuple[str, ...] = ()
    unknown_names: tuple[str, ...] = ()

    kind: ClassVar[str]
    label_type: ClassVar[str]
    auto_class: ClassVar[str]
    peft_task_type: ClassVar[str | None] = None
    problem_type: ClassVar[Any] = None
    pipeline_tag: ClassVar[str]
    fitted_at: ClassVar[tuple[str, float] | None] = None
    output_kind: ClassVar[str]
    keeps_unknown: ClassVar[bool] = False
    has_class_weights: ClassVar[bool] = False
    one_vector: ClassVar[bool] = False
    has_pooling: ClassVar[bool] = False
    long_texts: ClassVar[tuple[str, ...]] = (HEAD,)
    baselines: ClassVar[tuple[str, ...]] = ()
    tokenizer_options: ClassVar[Mapping[str, Any]] = {}
    pretrained: ClassVar[bool] = False
    most_fit_rows: ClassVar[int] = 1000
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
    def attributed(self) -> str:
        """Score of a prediction that attribution explains."""
        return _ATTRIBUTED[self.output_kind]

    @property
    def answers(self) -> tuple[str, ...]:
        """Possible answers, for a list of tasks."""
        return (self.predicts,)

    def fits(self, other: Head) -> bool:
        """Tell whether outputs of a model with this head can be read as those of another head."""
        return (self.kind, len(self.output_names)) == (other.kind, len(other.output_names))

    # The model --------------------------------------------------------------------------------------------------------

    @classmethod
    def recognizes(cls, config: PreTrainedConfig) -> bool:
        """Tell whether a saved model has this head: by its class. Heads are tried in the order of the registry."""
        return cls._class_name(config) in (config.architectures or ())

    @classmethod
    @abstractmethod
    def from_config(cls, config: PreTrainedConfig) -> Self:
        """Make the head of a saved model that :meth:`recognizes` accepts."""

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
        """Set the class, the size, the names and the loss of the head in a model's configuration."""
        config.architectures = [name] if (name := self._class_name(config)) else None
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
        imports, load = (
            f"from transformers import {self.auto_class}, AutoTokenizer",
            f"{self.auto_class}.from_pretrained",
        )
        if not stock:
            imports, load = "import attendrop\nfrom transformers import AutoTokenizer", "attendrop.load"
        return f"""{imports}

model = {load}(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)"""

    def fit_linear(self, features: Array, targets: Sequence[Any], *, balanced: bool) -> LinearFit | None:
        """Fit a linear model of fixed features to targets, with as many outputs as the model has; None if none fits.

        Args:
            features: ``(rows, features)``.
            targets: As :meth:`targets` makes them.
            balanced: Whether classes have equal weight, instead of rows.
        """
        return None

    # Splits -----------------------------------------------------------------------------------------------------------

    @property
    def strata(self) -> tuple[str, ...]:
        """Names of the groups by which samples are stratified."""
        return ("the data",)

    def strata_of(self, rows: Dataset) -> Sequence[int]:
        """Return the group of each row, an index of :attr:`strata`."""
        return [0] * len(rows)

    # Reports on data --------------------------------------------------------------------------------------------------

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
