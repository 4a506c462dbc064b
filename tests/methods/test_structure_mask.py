"""Structure mask: what is inside a structure, what is dropped outside of it, and how columns of the data arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from helpers import zoo
from helpers.oracles import EagerAttention
from helpers.training import trainer_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attendrop import AttendropError, Compose, RDrop, StructureMask, regularize
from attendrop.methods.structure_mask import outside_of_tree
from attendrop.training.regularization import Regularization

HARD = {"p": 1, "structure": "dependencies"}
# "[CLS] the cat sat on the mat [SEP]", and two shorter sentences. Special tokens have no head.
TREES = ([-1, 2, 3, 3, 3, 6, 4, -1], [-1, 1, 1, 2, -1], [-1, 1, -1])


def padded(rows: Any, width: int | None = None) -> Tensor:
    width = width or max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])


def related(heads: list[int], relation: str) -> list[list[bool]]:
    """Which tokens a token is related to, by walking up the tree."""
    count = len(heads)
    has_head = [0 <= head < count for head in heads]

    def ancestors(token: int) -> set[int]:
        met: set[int] = set()
        while token not in met:
            met.add(token)
            token = heads[token] if has_head[token] else token
        return met

    def inside(i: int, j: int) -> bool:
        if i == j or not has_head[i] or not has_head[j]:
            return True
        return j in ancestors(i) if relation == "ancestors" else heads[i] == j or heads[j] == i

    return [[inside(i, j) for j in range(count)] for i in range(count)]


def hard_mask(inside: list[list[list[bool]]], width: int, heads: int = 2) -> Tensor:
    """What is dropped at ``p = 1``, ``(batch, heads, width, width)``."""
    drop = torch.zeros(len(inside), heads, width, width, dtype=torch.bool)
    for row, own in enumerate(inside):
        drop[row, :, : len(own), : len(own)] = ~torch.tensor(own)
    return drop


def loss_with(model: Any, batch: dict[str, Tensor], drops: list[Tensor]) -> Tensor:
    with EagerAttention(drops).in_place_of_stock(model):
        return model(**batch).loss


def dropping(model: Any, method: StructureMask, batch: dict[str, Any]) -> Tensor:
    with regularize(model, method) as reg:
        return reg.loss(batch)


# --- What is inside


@given(st.lists(st.integers(-1, 9), min_size=1, max_size=9), st.sampled_from(["ancestors", "neighbours"]))
def test_relations_in_any_graph_of_heads(heads: list[int], relation: str) -> None:
    """Trees, forests, circles, and heads that are cut off."""
    assert (~outside_of_tree(torch.tensor([heads]), relation)[0]).tolist() == related(heads, relation)


@pytest.mark.parametrize(("relation", "layout"), [("ancestors", {"extra": 4}), ("neighbours", {})], ids=str)
def test_the_hard_mask_of_a_tree(relation: str, layout: dict[str, int]) -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", (8, 5, 3), **layout)
    loss = dropping(model, StructureMask(relation=relation, **HARD), {**batch, "dependency_heads": padded(TREES)})
    drop = hard_mask([related(tree, relation) for tree in TREES], batch["input_ids"].shape[1])
    torch.testing.assert_close(loss, loss_with(model, batch, [drop, drop]))
    assert not torch.isclose(loss, model(**batch).loss)


def test_the_hard_mask_of_an_adjacency_matrix() -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", (6, 4))
    generator = torch.Generator().manual_seed(0)
    column = torch.randint(0, 2, (2, 6, 6), generator=generator)
    column[1, 4:] = column[1, :, 4:] = -1
    column[0, 2, 5] = -1  # not known: attended to
    loss = dropping(model, StructureMask(p=1, structure="adjacency", column="graph"), {**batch, "graph": column})
    drop = ((column == 0) & ~torch.eye(6, dtype=torch.bool))[:, None].expand(-1, 2, -1, -1)
    torch.testing.assert_close(loss, loss_with(model, batch, [drop, drop]))


@pytest.mark.parametrize(("name", "window"), [("bert", 0), ("gpt2-class", 1), ("bart-class", 1)])
def test_the_hard_mask_of_a_window(name: str, window: int) -> None:
    model, batch = zoo.build(name, "eager", dtype=torch.float64), zoo.batch_of(name, (8, 5, 3))
    loss = dropping(model, StructureMask(p=1, window=window), batch)
    inside = [[[abs(i - j) <= window or j == 0 for j in range(8)] for i in range(8)]] * 3
    drop, none = hard_mask(inside, 8), torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    # Of a model with an encoder, its self-attention; cross-attention and decoder are left alone.
    drops = [drop] * 2 + [none] * (4 if name == "bart-class" else 0)
    torch.testing.assert_close(loss, loss_with(model, batch, drops))


# --- What is dropped


def test_layers_with_their_own_windows_of_patches_have_their_own_mask() -> None:
    """Those of Swin attend within windows, of which the second stage has fewer."""
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
    model = zoo.from_class("SwinForImageClassification", sizes | {"drop_path_rate": 0.0}).train()
    batch = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    with regularize(model, StructureMask(p=1, window=2)) as reg:
        reg.loss(batch).backward()
        dropped = reg.logs()
    assert dropped["structure_mask/dropped/encoder.0"] == dropped["structure_mask/dropped/encoder.1"] > 0.5


@pytest.mark.parametrize(("name", "p"), [("llama-class", 0.6), ("bart-class", 0.6)])
def test_padding_and_cutting_are_immaterial_to_trees(name: str, p: float) -> None:
    model, rows = zoo.build(name, dtype=torch.float64), zoo.rows(name, (8, 5, 3))
    method = StructureMask(p=p, structure="dependencies")

    def logits(part: slice, width: int | None = None, **padding: Any) -> Tensor:
        reg = Regularization(zoo.training(model), method)
        reg.sequences = part.start  # of the global batch before this micro-batch
        batch = zoo.collate(rows[part], **padding) | {"dependency_heads": padded(TREES[part], width)}
        found: Tensor = reg.compute(batch, reg._model_loss)[1].logits.detach()
        reg.close()
        return found

    whole = logits(slice(0, 3))
    left = name == "llama-class"
    for other in (
        torch.cat([logits(slice(0, 1)), logits(slice(1, 3))]),
        logits(slice(0, 3), extra=4),
        logits(slice(0, 3), width=20, extra=4, left=left),
        logits(slice(0, 3), extra=1, left=left),
    ):
        torch.testing.assert_close(other, whole)


# --- How columns arrive


def test_copies_of_rows_share_a_structure() -> None:
    """R-Drop's copies, and the choices of a question."""
    column = {"dependency_heads": padded(TREES)}
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", (8, 5, 3))
    alone = dropping(model, StructureMask(**HARD), batch | column)
    with regularize(model, Compose(StructureMask(**HARD), RDrop())) as reg:
        torch.testing.assert_close(reg.loss(batch | column), alone)  # no dropout: two equal copies
    model, batch = zoo.build("bert-choice", "eager", dtype=torch.float64), zoo.batch_of("bert-choice", (8, 5, 3))
    loss = dropping(model, StructureMask(**HARD), batch | column)
    drop = hard_mask([related(tree, "ancestors") for tree in TREES], 8).repeat_interleave(4, 0)
    torch.testing.assert_close(loss, loss_with(model, batch, [drop, drop]))


@pytest.mark.parametrize(("kind", "removed"), [(Dataset.from_list, True), (list, False)], ids=["datasets", "list"])
def test_a_data_set_with_a_column_of_heads_trains(tmp_path: Path, kind: Any, removed: bool) -> None:
    rows = [{k: v.tolist() for k, v in row.items()} for row in zoo.rows("bert", [8, 5, 3] * 4)]
    known = set(rows[0])
    for number, row in enumerate(rows):
        row["dependency_heads"] = TREES[number % 3]
        if removed:
            row["comment"] = "not for the model"

    def collate(examples: list[dict[str, Any]]) -> zoo.Batch:
        assert all(set(example) == known for example in examples)
        return zoo.collate([{k: torch.as_tensor(v) for k, v in example.items()} for example in examples])

    model = zoo.build("bert", "eager", dtype=torch.float64)
    trainer = trainer_of(
        tmp_path, StructureMask(**HARD), model=model, train_dataset=kind(rows), eval_dataset=kind(rows),
        data_collator=collate, remove_unused_columns=removed, max_steps=2, logging_steps=1, logging_strategy="steps",
        learning_rate=0.0,
    )  # fmt: skip
    order = [*trainer._get_train_sampler(trainer.train_dataset)]
    trainer.train()
    for step, logs in enumerate(trainer.state.log_history[:2]):
        numbers = order[4 * step : 4 * step + 4]
        batch = collate([{name: rows[number][name] for name in known} for number in numbers])
        width = batch["input_ids"].shape[1]
        drop = hard_mask([related(TREES[number % 3], "ancestors") for number in numbers], 8)[..., :width, :width]
        assert logs["loss"] == pytest.approx(loss_with(model, batch, [drop, drop]).item(), abs=1e-4)
        assert logs["structure_mask/dropped"] > 0
    if removed:
        assert trainer.evaluate()["eval_loss"] > 0


# --- What is refused


@pytest.mark.parametrize(
    ("options", "column", "message"),
    [
        ({"structure": "dependencies"}, {}, r"no column 'dependency_heads', needed for structure='dependencies'"),
        (
            {"structure": "dependencies"},
            {"dependency_heads": torch.zeros(3, 8, 8)},
            r"\(3, 8, 8\); .* needs \(batch, n\)",
        ),
        ({"structure": "adjacency"}, {"dependency_heads": torch.zeros(3, 8, 9)}, r"needs \(batch, n, n\)"),
        ({"structure": "dependencies"}, {"dependency_heads": torch.zeros(2, 8)}, r"has 2 rows for a batch of 3"),
    ],
)
def test_columns_that_do_not_fit_are_refused(options: Any, column: dict[str, Tensor], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        dropping(zoo.build("bert"), StructureMask(**options), {**zoo.batch_of("bert"), **column})
