"""R-Drop: two copies of every row, and how far their predictions are apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.training import Gradients, trainer_of
from torch import Tensor, nn
from torch.nn import functional

from attendrop import ADDrop, Compose, RDrop, regularize
from attendrop.methods.common.losses import predictions
from attendrop.methods.r_drop import repeat_rows


def two_passes(name: str, model: Any, batch: zoo.Batch) -> tuple[Tensor, Tensor, Any, Any]:
    """What the copies predict, found by running the repeated batch in the model as it is, and its loss."""
    doubled = {key: value.repeat_interleave(2, 0) for key, value in batch.items()}
    outputs = model(**doubled)
    return outputs.logits[0::2], outputs.logits[1::2], outputs.loss, doubled


CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "classes": ("bert", {}, None),
    "tokens": ("bert-tokens", {}, None),
    "choice": ("bert-choice", {}, None),
    "regression": ("bert", {"num_labels": 1}, torch.tensor([0.1, 0.7, 0.3])),
    "labels": ("bert", {"problem_type": "multi_label_classification"}, torch.eye(3)),
    "sequence to sequence": ("bart", {}, None),
    "language model": ("gpt2", {}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_that_of_both_copies_and_their_divergence(case: str) -> None:
    name, options, labels = CASES[case]
    model, batch = zoo.build(name, dropout=0.2, **options), zoo.batch_of(name)
    batch = batch if labels is None else batch | {"labels": labels}
    torch.manual_seed(7)
    first, second, plain, _ = two_passes(name, model, batch)
    expected: list[Tensor] = []
    for row in range(len(first)):
        if case in ("regression",):
            expected.append((first[row] - second[row]).square().sum())
        elif case == "labels":
            for x, y in zip(first[row], second[row], strict=True):
                p, q = torch.stack([x, x * 0]).softmax(0), torch.stack([y, y * 0]).softmax(0)
                both = functional.kl_div(q.log(), p, reduction="sum") + functional.kl_div(p.log(), q, reduction="sum")
                expected.append(both / 2)
        else:
            positions: list[Any] = [None]
            if first.ndim == 3:
                gold = batch["labels"][row]
                gold = torch.cat([gold[1:], gold.new_tensor([-100])]) if case == "language model" else gold
                positions = [n for n in range(first.shape[1]) if gold[n] != -100]
            for position in positions:
                x, y = (each[row] if position is None else each[row, position] for each in (first, second))
                p, q = x.softmax(-1), y.softmax(-1)
                both = functional.kl_div(q.log(), p, reduction="sum") + functional.kl_div(p.log(), q, reduction="sum")
                expected.append(both / 2)
    mean = torch.stack(expected).sum() / (3 if case == "labels" else len(expected))
    torch.manual_seed(7)
    with regularize(model, RDrop(alpha=3.0, reduction="mean")) as reg:
        loss = reg.loss(batch)
        logs = reg.logs()
    torch.testing.assert_close(loss, plain + 1.5 * mean, rtol=1e-4, atol=1e-6)
    assert logs["r_drop/divergence"] == pytest.approx(float(mean), rel=1e-4)
    assert float(mean) > 1e-4


def authors_loss(code: str, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """The loss of the authors' GLUE runs: cross-entropies are means, divergences are summed over the batch."""
    divergence = sum(
        functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="sum")
        for x, y in ((first, second), (second, first))
    )
    both = functional.cross_entropy(first, labels) + functional.cross_entropy(second, labels)
    return both + 0.5 * divergence / 2 if code == "bert" else both / 2 + 0.7 * divergence / 2


@pytest.mark.parametrize(("code", "alpha", "factor"), [("bert", 0.5, 2), ("roberta", 1.4, 1)])
def test_a_sum_is_the_loss_of_the_authors_code(code: str, alpha: float, factor: float) -> None:
    model, batch = zoo.build("bert", dropout=0.2), zoo.batch_of("bert")
    torch.manual_seed(7)
    first, second, *_ = two_passes("bert", model, batch)
    torch.manual_seed(7)
    with regularize(model, RDrop(alpha=alpha, reduction="sum")) as reg:
        found = reg.loss(batch)
    torch.testing.assert_close(factor * found, authors_loss(code, first, second, batch["labels"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("counted", [True, False], ids=["model counts the items of a step", "does not"])
def test_a_sum_is_over_the_global_batch(counted: bool, tmp_path: Path) -> None:
    """However it is cut into micro-batches; copies differ by the draws of AD-DROP, which are keyed by row."""
    found = []
    for size, steps in ((8, 1), (2, 4)):
        kept = Gradients()
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "max_steps": 2}
        method = Compose(RDrop(reduction="sum"), ADDrop(layers="all"))
        model = zoo.build("bert", dtype=torch.float64)
        trainer = trainer_of(tmp_path, method, model=model, callbacks=[kept], max_grad_norm=0.0, **options)
        trainer.model_accepts_loss_kwargs = counted
        trainer.train()
        found.append(kept.steps)
    for one, other in zip(*found, strict=True):
        zoo.assert_same(one, other, 1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_passes_that_are_equal_are_warned_of(dropout: float, caplog: pytest.LogCaptureFixture) -> None:
    model, batch = zoo.build("bert", dropout=dropout), zoo.batch_of("bert")
    with regularize(model, RDrop()) as reg:
        for _ in range(4):
            reg.loss(batch)
            reg.step()
    assert [record.message[:42] for record in caplog.records] == ["R-Drop: both passes give the same predicti"] * (
        not dropout
    )
    assert all("of T5, dropout_rate; of GPT-2, resid_pdrop" in record.message for record in caplog.records)


def test_what_an_encoder_gave_is_repeated_as_its_rows_are() -> None:
    model, batch = zoo.build("bart"), zoo.batch_of("bart")
    encoded = model.get_encoder()(batch["input_ids"], attention_mask=batch["attention_mask"])
    before = {name: value for name, value in batch.items() if name != "input_ids"} | {"encoder_outputs": encoded}
    torch.testing.assert_close(model(**repeat_rows(before, 2)).logits, model(**repeat_rows(batch, 2)).logits)


def test_spans_are_compared_at_both_ends() -> None:
    torch.manual_seed(0)
    outputs = type("Outputs", (), {"start_logits": torch.randn(4, 6), "end_logits": torch.randn(4, 6)})()
    kind, found = predictions(nn.Linear(1, 1), outputs, {}, copies=2)
    assert kind == "classes"
    for views, each in zip(found, (outputs.start_logits, outputs.end_logits), strict=True):
        torch.testing.assert_close(views, torch.stack([each[0::2], each[1::2]]))


def test_the_kind_of_what_is_compared_does_not_follow_from_the_configuration_of_an_encoder() -> None:
    model, batch = zoo.build("bert", num_labels=1), repeat_rows(zoo.batch_of("bert"), 2)
    model.config.num_labels = 2
    outputs = model(batch["input_ids"], batch["attention_mask"])
    assert predictions(model, outputs, batch | {"labels": batch["labels"].float()}, 2)[0] == "number"
    model = zoo.from_class("BertForMaskedLM", {**zoo.ZOO["bert"].options, "num_labels": 1})
    batch = repeat_rows(zoo.batch_of("bert-tokens"), 2)
    kind, (views,) = predictions(model, model(**batch), batch, 2)
    assert kind == "classes" and views.shape[1] == int((batch["labels"] != -100).sum()) // 2
