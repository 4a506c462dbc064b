"""Trainers of other packages that take a regularizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from helpers import tiny, zoo
from helpers.training import ALWAYS, examples, history, take_step, trainer_of
from transformers import AutoModelForCausalLM as LanguageModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer

from attendrop import (
    ADDrop,
    AttendOut,
    AttendropError,
    ChildTuning,
    DropHead,
    FineTune,
    LayerDrop,
    Mixout,
    RDrop,
    RegularizedTrainer,
    Vanilla,
    regularize,
    regularized,
)
from attendrop_methods import L2SP, R3F, SAM, DropAttention, UniDrop

pytestmark = pytest.mark.filterwarnings("ignore")
ARGUMENTS: dict[str, Any] = {"max_steps": 4, "per_device_train_batch_size": 4, "report_to": "none", "use_cpu": True}


def test_which_class_it_is(tmp_path: Path) -> None:
    class Own(Trainer):
        pass

    assert regularized(Trainer) is RegularizedTrainer and regularized(RegularizedTrainer) is RegularizedTrainer
    found = regularized(Own)
    assert issubclass(found, Own) and found.__name__ == "RegularizedOwn" and regularized(found) is found

    trainer = trainer_of(tmp_path, RDrop(alpha=0.5), kind=found, reward_dataset=examples(count=2))
    assert trainer.regularizer == RDrop(alpha=0.5) and len(trainer.reward_dataset) == 2
    assert trainer_of(tmp_path, None, kind=found).regularizer == FineTune()
    with pytest.raises(AttendropError, match="not a subclass"):
        regularized(torch.nn.Linear)  # type: ignore[arg-type]


def of_trl(folder: Path, name: str, regularizer: Any) -> Any:
    """A trainer of TRL that has trained a tiny Llama on eight sentences, or pairs of them."""
    trl = pytest.importorskip("trl")
    tiny.save_tiny_llama(folder / "model")
    torch.manual_seed(0)  # for the head of a reward model
    kind, head = (AutoModelForSequenceClassification, {"num_labels": 1}) if name == "Reward" else (LanguageModel, {})
    rows = []
    for number in range(8):
        sides = {"text": number} if name == "SFT" else {"prompt": number, "chosen": number + 3, "rejected": number + 5}
        rows.append({side: tiny.sentence(of) for side, of in sides.items()})
    arguments = ARGUMENTS | {"learning_rate": 1e-2, "logging_steps": 1, "bf16": False, "save_strategy": "no"}
    trainer = regularized(getattr(trl, f"{name}Trainer"))(
        model=kind.from_pretrained(folder / "model", attention_dropout=0.1, **head),
        args=getattr(trl, f"{name}Config")(output_dir=str(folder / "run"), **arguments),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        regularizer=regularizer,
    )
    trainer.train()
    return trainer


RECORDED = ADDrop(attribution="recorded", layers="all")
COPYING = AttendOut(dropout_step=2)
IN_ALL = [
    Vanilla(p=0.4), DropHead(), LayerDrop(p=0.9), Mixout(), ChildTuning(), SAM(), ADDrop(target="loss"),
    ADDrop(target="loss", attribution="integrated_gradient"), ADDrop(attribution="attention"),
    ADDrop(attribution="random"),
]  # fmt: skip
WORKING = [("SFT", ADDrop()), ("SFT", RECORDED), ("Reward", RDrop()), ("Reward", COPYING)]


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("DPO", ADDrop(target="loss")),
        ("Reward", ADDrop()),
        *(pytest.param(name, method, marks=pytest.mark.slow) for name in ("SFT", "DPO", "Reward") for method in IN_ALL),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in WORKING),
    ],
)
def test_methods_act_in_trainers_of_trl(name: str, method: Any, tmp_path: Path) -> None:
    """As docs/support.md lists them."""
    plain, found = (history(of_trl(tmp_path, name, each), "loss") for each in (None, method))
    assert len(found) == 4 and found != plain
    if method == RECORDED:
        assert found[:2] == pytest.approx(plain[:2], abs=1e-5)  # the first epoch records


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("SFT", RDrop(), "returns no logits .* cannot be compared"),  # the loss builds none
        ("SFT", UniDrop(token=0), "never ran its last projection"),  # nor does it call the head
        ("DPO", ADDrop(), "target='pseudo_label' has none to read: set target='loss'"),
        ("Reward", ADDrop(target="gold_label"), "declare_output"),
        pytest.param("SFT", COPYING, "The forward pass of LlamaForCausalLM was replaced", marks=pytest.mark.slow),
        pytest.param("DPO", RECORDED, "made 8 rows of 4", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_act_in_trainers_of_trl(name: str, method: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match=message):
        of_trl(tmp_path, name, method)


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
    for method in (L2SP(alpha=0.5), ChildTuning(variant="D"), Mixout()):
        assert not torch.equal(plain, weights(method))
    for method, rows_of, reason in (
        (ChildTuning(variant="D"), {"one": rows, "other": rows.select(range(4))}, "pass train_data"),
        (DropAttention(), rows, "as one mapping"),
        (ADDrop(attribution="recorded"), rows, "makes its own batches"),
    ):
        with pytest.raises(AttendropError, match=reason):
            weights(method, rows_of)


@pytest.mark.slow
def test_optuna(tmp_path: Path) -> None:
    """Settings of the trainer by its own search, and options of a method by an objective that makes a trainer."""
    optuna = pytest.importorskip("optuna")
    how: dict[str, Any] = {"max_steps": 1, "eval_dataset": examples(count=4), "model_init": lambda: zoo.build("bert")}
    found: list[float] = []

    def rates(trial: Any) -> dict[str, float]:
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)}

    def objective(trial: Any) -> float:
        trainer = trainer_of(tmp_path, ADDrop(p=trial.suggest_float("p", 0.1, 0.9), layers="all"), **how)
        trainer.train()
        found.append(history(trainer, "ad_drop/dropped")[-1])
        return trainer.evaluate()["eval_loss"]

    best = trainer_of(tmp_path, ALWAYS, **how).hyperparameter_search(rates, n_trials=2, backend="optuna")
    assert 1e-4 <= best.hyperparameters["learning_rate"] <= 1e-2
    optuna.create_study().optimize(objective, n_trials=2)
    assert len(set(found)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("method", [ALWAYS, Mixout(), R3F()], ids=lambda m: m.name)
def test_lightning_fabric(method: Any) -> None:
    """On one device, training is that of the model itself."""
    library = pytest.importorskip("lightning_fabric")
    found = []
    for wrapped in (False, True):
        model, batch = zoo.build("bert", dropout=0.1), zoo.batch_of("bert")
        run: Any = model
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if wrapped:
            run, optimizer = library.Fabric(accelerator="cpu", devices=1).setup(model, optimizer)
        torch.manual_seed(0)
        with regularize(run, method, optimizer=optimizer) as reg:
            for _ in range(3):
                take_step(reg, batch)
        found.append({name: value.detach() for name, value in model.named_parameters()})
    zoo.assert_same(*found)
