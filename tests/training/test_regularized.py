"""Trainers of other packages that take a regularizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from helpers import tiny
from helpers.training import examples, history, trainer_of
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer

from attendrop import (
    L2SP,
    SAM,
    ADDrop,
    AttendropError,
    ChildTuning,
    DropAttention,
    FineTune,
    RDrop,
    RegularizedTrainer,
    UniDrop,
    regularized,
)

pytestmark = pytest.mark.filterwarnings("ignore")
ARGUMENTS: dict[str, Any] = {"max_steps": 4, "per_device_train_batch_size": 4, "report_to": "none", "use_cpu": True}


def test_which_class_it_is(tmp_path: Path) -> None:
    class Own(Trainer):
        pass

    assert regularized(Trainer) is RegularizedTrainer and regularized(RegularizedTrainer) is RegularizedTrainer
    found = regularized(Own)
    assert issubclass(found, Own) and found.__name__ == "RegularizedOwn" and regularized(found) is found

    class Strict(RegularizedTrainer):
        def __init__(self, model: Any, args: Any, train_dataset: Any, data_collator: Any) -> None:
            super().__init__(model=model, args=args, train_dataset=train_dataset, data_collator=data_collator)

    class Open(RegularizedTrainer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)

    found = regularized(Strict)
    assert issubclass(found, Strict) and found.__name__ == "RegularizedStrict" and regularized(found) is found
    assert regularized(Open) is Open
    for kind in (found, Open, regularized(Own)):
        trainer = trainer_of(tmp_path, RDrop(alpha=0.5), kind=kind, reward_dataset=examples(count=2))
        assert trainer.regularizer == RDrop(alpha=0.5) and len(trainer.reward_dataset) == 2
    assert trainer_of(tmp_path, None, kind=found).regularizer == FineTune()
    with pytest.raises(AttendropError, match="not a subclass"):
        regularized(torch.nn.Linear)  # type: ignore[arg-type]


def fine_tuned(folder: Path, regularizer: Any, **options: Any) -> Any:
    """A trainer of TRL that has trained on eight sentences."""
    trl = pytest.importorskip("trl")
    tiny.save_tiny_llama(folder / "model")
    trainer = regularized(trl.SFTTrainer)(
        model=AutoModelForCausalLM.from_pretrained(folder / "model"),
        args=trl.SFTConfig(
            **ARGUMENTS, output_dir=str(folder / "run"), learning_rate=1e-2, logging_steps=1, bf16=False,
            save_strategy="no", **options,
        ),
        train_dataset=Dataset.from_list([{"text": tiny.sentence(number)} for number in range(8)]),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        regularizer=regularizer,
    )  # fmt: skip
    trainer.train()
    return trainer


def test_supervised_fine_tuning_of_trl(tmp_path: Path) -> None:
    method = ADDrop(attribution="recorded", layers="all")

    def losses(regularizer: Any) -> list[float]:
        return history(fine_tuned(tmp_path, regularizer), "loss")

    plain, found = losses(None), losses(method)
    assert len(found) == 4 and found != plain and found[:2] == plain[:2]  # the first epoch records
    with pytest.raises(AttendropError, match="returns no logits"):  # their loss builds none to compare
        losses(RDrop())
    with pytest.raises(AttendropError, match="never ran its last projection"):  # nor does it call the head
        losses(UniDrop(token=0))


@pytest.mark.parametrize("method", [SAM(), ChildTuning(variant="D")])
def test_passes_of_a_method_are_not_in_the_metrics_of_trl(method: Any, tmp_path: Path) -> None:
    plain, found = (fine_tuned(tmp_path, each, gradient_accumulation_steps=2) for each in (None, method))
    assert history(found, "num_tokens") == history(plain, "num_tokens")
    assert not found._metrics["eval"]  # which would be logged at the next evaluation


def test_sentence_transformers(tmp_path: Path) -> None:
    """Their trainer calls the model once for each text of a row."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.losses import CosineSimilarityLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    tiny.save_tiny_bert(tmp_path / "model")
    rows = Dataset.from_list(
        [{"a": tiny.sentence(number), "b": tiny.sentence(number + 3), "label": number % 2} for number in range(8)]
    )

    def weights(regularizer: Any, rows: Any = rows) -> torch.Tensor:
        words = Transformer(str(tmp_path / "model"))
        body = library.SentenceTransformer(
            modules=[words, Pooling(words.get_embedding_dimension(), pooling_mode="mean")], device="cpu"
        )
        arguments = library.SentenceTransformerTrainingArguments(
            **ARGUMENTS, output_dir=str(tmp_path / "run"), learning_rate=1e-2, save_strategy="no"
        )
        trainer = regularized(library.SentenceTransformerTrainer)(
            model=body, args=arguments, train_dataset=rows, loss=CosineSimilarityLoss(body), regularizer=regularizer
        )
        trainer.train()
        return words.auto_model.get_input_embeddings().weight.detach()

    plain = weights(None)
    for method in (L2SP(alpha=0.5), ChildTuning(variant="D")):
        assert not torch.equal(plain, weights(method))
    several = {"one": rows, "other": rows.select(range(4))}
    assert not torch.equal(weights(None, several), weights(L2SP(alpha=0.5), several))
    with pytest.raises(AttendropError, match="pass train_data"):
        weights(ChildTuning(variant="D"), several)
    for method, reason in (
        (DropAttention(), "as one mapping"),
        (ADDrop(attribution="recorded"), "makes its own batches"),
    ):
        with pytest.raises(AttendropError, match=reason):
            weights(method)
