"""What heads with one prediction for the whole input share: the model class and its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.output_scorer import Array
from attendrop.tasks.long_texts import LONG_TEXTS, document_means, of_documents

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class SequenceHead(Head):
    """Head that reads one vector for the whole input: the first token's, the last one's, or the mean over all."""

    auto_class = "AutoModelForSequenceClassification"
    peft_task_type: ClassVar[str | None] = "SEQ_CLS"
    pipeline_tag = "text-classification"
    one_vector = True
    has_pooling = True
    long_texts: ClassVar[tuple[str, ...]] = LONG_TEXTS
    baselines: ClassVar[tuple[str, ...]] = ("majority", "tfidf", "frozen")

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        """Accept anything but lists; what is no text is refused later."""
        return not any(isinstance(text, list) for text in texts)

    @classmethod
    def may_label(cls, label: Any) -> bool:
        """Accept anything but lists; what is no label is refused later."""
        return not isinstance(label, list)

    @classmethod
    def saved_class(cls, name: str, model_type: str) -> Any:
        """Return the class with which a model that pools the mean was saved."""
        from attendrop.tasks.heads.mean_pooling import find_mean_pooling_class

        return find_mean_pooling_class(name, model_type)

    def row_outputs(self, raw: Array, encoded: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Array:
        """Return the outputs of each text; of a text in windows, their mean."""
        return document_means(raw, encoded)

    def references(self, encoded: Mapping[str, Any]) -> Array:
        """Return the target of each text."""
        return self.label_array(of_documents(encoded["labels"][:], encoded))

    def model_class(self, config: PreTrainedConfig) -> Any:
        """Return the class of transformers; for the mean, where that has no such option, one of this library."""
        from attendrop.tasks.heads.mean_pooling import mean_pooling_class

        return mean_pooling_class(config) or super().model_class(config)
