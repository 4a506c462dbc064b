"""What heads with one prediction for a text share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attendrop.tasks.heads.base import Head
from attendrop.tasks.long_texts import LONG_TEXTS

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


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

    def model_class(self, config: PreTrainedConfig) -> Any:
        """Return the class of transformers; for the mean, where that has no such option, one of this library."""
        from attendrop.tasks.heads.model_classes import mean_pooling_class

        return mean_pooling_class(config) or super().model_class(config)
