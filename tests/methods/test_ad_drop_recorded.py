"""AD-DROP with recorded attributions: what is recorded, of which rows, and what is dropped from them next."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import oracles, zoo
from helpers.checkpointing import checkpoint_activations
from helpers.training import trainer_of, weights
from torch import Tensor

from attendrop import ADDrop, AttendropError, Compose, RDrop, SuperT, regularize
from attendrop.extend import AttentionCall, AttentionLayer, Batch, Method, MethodInfo, StepContext
from attendrop.methods.ad_drop import Recorder, RowMask, RowPass
from attendrop.methods.consistency import repeat_rows
from attendrop.methods.core.context import Processes
from attendrop.randomness.device_path import few_kernels
from attendrop_methods import SAM

ON: dict[str, Any] = {"layers": "all", "direction": "high", "attribution": "recorded"}
NAIVE = ("bert", "bert-tokens", "modernbert", "albert", "gpt2", "llama-class", "bart", "t5", "deberta-v3", "mpnet")
Masks = dict[int, dict[str, np.ndarray]]


def recorder_of(reg: Any) -> Recorder:
    return reg.method_state.parts[0].recorder


def records_of(reg: Any) -> Masks:
    recorder = recorder_of(reg)
    recorder.flush()
    return {row: {name: unpacked(name, each) for name, each in masks.items()} for row, masks in recorder.rows.items()}


def packed(mask: np.ndarray) -> RowMask:
    return RowMask(("self.0",), np.packbits(mask[None], axis=-1, bitorder="little"), mask.shape[2])


def unpacked(layer: str, mask: RowMask) -> np.ndarray:
    return np.unpackbits(mask.of(layer), axis=-1, count=mask.keys, bitorder="little").astype(bool)


def record(model: Any, method: Any, *batches: tuple[zoo.Batch, list[int]], epoch: int = 0) -> Masks:
    """Train on batches without changing the weights; return what was recorded."""
    with regularize(model, method) as reg:
        reg.set_epoch(epoch)
        for batch, rows in batches:
            reg.loss(batch, rows=rows).backward()
        return records_of(reg)


def assert_equal(first: Masks, second: Masks) -> None:
    assert first.keys() == second.keys()
    for row, masks in first.items():
        assert masks.keys() == second[row].keys()
        assert all((mask == second[row][name]).all() for name, mask in masks.items())


def naive_records(eager: Any, batch: zoo.Batch) -> list[Tensor]:
    """Compute the candidates by autograd, layer by layer."""
    with oracles.EagerAttention().in_place_of_stock(eager) as seen:
        loss = eager(**batch).loss
        found = [torch.autograd.grad(loss, each, retain_graph=True, allow_unused=True)[0] for each in seen.weights]
    found = [torch.zeros_like(w) if b is None else -b for b, w in zip(found, seen.weights, strict=True)]
    return [oracles.candidates(b, valid, 0.4) for b, valid in zip(found, seen.valid, strict=True)]


NAIVE_BUILDS = [build for build in zoo.BUILDS if build[0] in NAIVE]


@pytest.mark.sampled(3)
@pytest.mark.gpu
@pytest.mark.parametrize(("name", "backend"), NAIVE_BUILDS)
def test_records_equal_a_naive_computation_and_are_dropped_next(name: str, backend: str) -> None:
    eager = zoo.build(name, "eager", dtype=torch.float64)
    batch = zoo.batch_of(name)
    expected = naive_records(eager, batch)
    assert sum(int(mask.sum()) for mask in expected) > 10
    with oracles.EagerAttention(expected).in_place_of_stock(eager):
        dropped = eager(**batch).loss
    model = zoo.build(name, backend, dtype=torch.float64)
    with regularize(model, ADDrop(p=0.4, q=1.0, **ON)) as reg:
        reg.loss(batch, rows=[5, 2, 9]).backward()
        reg.step()
        found = records_of(reg)
        assert set(found) == {5, 2, 9}
        assert float(reg.loss(batch, rows=[5, 2, 9])) == pytest.approx(dropped.item(), abs=1e-5)
    total = sum(int(mask.sum()) for masks in found.values() for mask in masks.values())
    assert total == sum(int(mask.sum()) for mask in expected)


@pytest.mark.parametrize("name", ["llama-class", "bert-choice"])
def test_records_depend_neither_on_padding_nor_on_micro_batches_nor_on_checkpointing(name: str) -> None:
    rows = zoo.rows(name, (8, 5, 3))
    whole = (zoo.on_device(zoo.collate(rows)), [7, 8, 9])
    padded = (zoo.on_device(zoo.collate(rows, extra=4, left=name == "llama-class")), [7, 8, 9])
    parts = [(zoo.on_device(zoo.collate([each])), [row]) for each, row in zip(rows, (7, 8, 9), strict=True)]
    found = []
    for checkpointing, batches in ((False, [whole]), (True, [whole]), (False, [padded]), (False, parts)):
        model = zoo.build(name, dtype=torch.float64)
        if checkpointing:
            checkpoint_activations(model)
        found.append(record(model, ADDrop(p=0.4, q=1.0, **ON), *batches))
        assert_equal(found[0], found[-1])
    with few_kernels():  # as on a GPU
        assert_equal(found[0], record(zoo.build(name, dtype=torch.float64), ADDrop(p=0.4, q=1.0, **ON), padded))
    assert any(mask.any() for masks in found[0].values() for mask in masks.values())


@pytest.mark.parametrize("dropout", [0.0, 1e-9])  # with which a CPU computes weights
def test_a_row_of_which_less_is_seen_than_was_recorded_is_uniform_where_it_is_dropped_whole(dropout: float) -> None:
    """Keys within it may be hidden, as token dropping does; SDPA gave zeros there, and on a CPU padding got weight."""
    found = []
    for attention, extra in (("sdpa", 0), ("eager", 0), ("sdpa", 3)):
        batch = zoo.batch_of("bert-tokens", (6,), extra=extra)
        model = zoo.build("bert-tokens", attention, dtype=torch.float64, dropout=dropout)
        with regularize(model, ADDrop(p=0.6, q=1.0, cross_tuning=True, **ON)) as reg:
            reg.set_epoch(0)
            reg.loss(batch, rows=[0]).backward()
            reg.step()
            reg.set_epoch(1)
            records = records_of(reg)[0]
            rows = [
                (q, {*np.flatnonzero(~keys)})
                for mask in records.values()
                for head in mask
                for q, keys in enumerate(head)
            ]
            left = [keys for _, keys in rows if keys <= {1, 2, 3, 4}]
            hidden = max(left, key=lambda hidden: sum(keys <= hidden and q not in hidden for q, keys in rows))
            batch["attention_mask"][:, [*hidden]] = 0
            found.append(reg.loss(batch, rows=[0]).item())
    assert found[1:] == pytest.approx([found[0]] * 2, abs=1e-6)


def test_the_spans_of_rows_are_not_known_where_keys_of_a_prefix_come_first() -> None:
    calls = [
        AttentionCall(AttentionLayer("", "decoder", 0), (1, 2, 3, keys), None, torch.device("cpu")) for keys in (3, 5)
    ]
    spans = [RowPass({}, [0], hidden=False).known_spans(call) for call in calls]
    assert spans == [[(0, 3, 0, 3)], None]


def test_a_row_is_known_wherever_it_comes_next() -> None:
    """Dropped from a row is what was recorded of it, in another place of another batch."""
    made = zoo.rows("bert", (8, 5, 3, 6))
    first, second = zoo.on_device(zoo.collate(made[:2])), zoo.on_device(zoo.collate([made[3], made[1], made[2]]))
    model = zoo.build("bert", dtype=torch.float64)
    with regularize(model, ADDrop(p=0.4, q=1.0, **ON)) as reg:
        reg.loss(first, rows=[10, 11]).backward()
        reg.step()
        masks = records_of(reg)[11]
        layers = [layer.key for layer in reg.adapter.attention_layers]
        drops = [torch.zeros(3, len(masks[key]), 6, 6, dtype=torch.bool) for key in layers]
        for drop, key in zip(drops, layers, strict=True):
            drop[1, :, :5, :5] = torch.from_numpy(masks[key])
        found = float(reg.loss(second, rows=[13, 11, 12]))
    eager = zoo.build("bert", "eager", dtype=torch.float64)
    with oracles.EagerAttention(drops).in_place_of_stock(eager):
        assert found == pytest.approx(float(eager(**second).loss), abs=1e-9)


def test_layers_that_were_recorded_at_different_times_drop_what_each_has() -> None:
    """Two layers of two rows: one row has both of one time, the other a newer one of the second layer."""
    layers = [AttentionLayer("", "encoder", index) for index in range(2)]
    names, generator = tuple(layer.key for layer in layers), np.random.default_rng(0)
    both, newer, other = (generator.random((2, 3, 4, 4)) < 0.5 for _ in range(3))
    first, second, third = (
        RowMask(names, np.packbits(each, axis=-1, bitorder="little"), 4) for each in (both, newer, other)
    )
    recorded = {5: {names[0]: first, names[1]: second}, 7: dict.fromkeys(names, third), 8: {names[1]: second}}
    call = AttentionCall(layers[0], (3, 3, 4, 4), None, torch.device("cpu")).stacked(layers)
    found = RowPass(recorded, [5, 7, 8], hidden=False).candidates(call)
    assert found is not None
    expected = np.stack([np.stack([both[0], other[0], 0 * both[0]]), np.stack([newer[1], other[1], newer[1]])])
    assert np.array_equal(found.mask.numpy().reshape(expected.shape), expected)


@dataclass(frozen=True)
class OtherCopies(Method):
    """Repeats each row, with other words in the second copy."""

    info = MethodInfo("other-copies", acts_on=("inputs",), uses_attention=False)

    def batch(self, context: StepContext) -> Batch:
        copies = repeat_rows(context.batch, 2)
        copies["input_ids"][1::2] = 7
        return copies


def test_of_copies_of_a_row_the_first_is_recorded() -> None:
    method, seen = ADDrop(p=0.4, q=1.0, **ON), (zoo.batch_of("bert"), [4, 5, 6])
    expected = record(zoo.build("bert"), method, seen)
    assert set(expected) == {4, 5, 6}
    assert_equal(record(zoo.build("bert"), Compose(method, OtherCopies()), seen), expected)
    assert set(record(zoo.build("bert", dropout=0.1), Compose(method, RDrop()), seen)) == {4, 5, 6}


def test_gradients_that_are_not_finite_leave_the_record_as_it_was() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with regularize(model, ADDrop(p=0.4, q=0.5, **ON)) as reg:
        reg.loss(batch, rows=[0, 1, 2]).backward()
        reg.step()
        before = records_of(reg)
        (reg.loss(batch, rows=[0, 1, 2]) * torch.inf).backward()
        assert_equal(records_of(reg), before)


@pytest.mark.parametrize(
    ("other", "expected"),
    [(SAM(rho=0.2), (0, 1)), (SuperT(fraction=0.5, search=0.5), (0, 1, 0, 1))],
    ids=["two passes", "back to the start"],
)
def test_a_step_drops_what_earlier_steps_recorded_of_the_same_weights(other: Method, expected: tuple[int, ...]) -> None:
    """Super tickets search in the first two of four steps, and then go back to the start."""
    batch, model = zoo.batch_of("bert"), zoo.build("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = Compose(ADDrop(p=0.4, q=1.0, **ON), other)
    with regularize(model, method, optimizer=optimizer, total_steps=4) as reg:
        for recorded in expected:
            reg.loss(batch, rows=[0, 1, 2]).backward()
            optimizer.step()
            reg.step()
            assert reg.logs()["ad_drop/recorded"] == recorded


def test_with_cross_tuning_plain_epochs_record_and_the_others_drop() -> None:
    batch = zoo.batch_of("bert")
    with regularize(zoo.build("bert"), ADDrop(p=0.4, q=1.0, cross_tuning=True, **ON)) as reg:
        for epoch in range(2):
            reg.set_epoch(epoch)
            reg.loss(batch, rows=[0, 1, 2]).backward()
            reg.step()
            assert (reg.logs().get("ad_drop/dropped", 0) > 0) == (epoch == 1)


RECORDED = ADDrop(p=0.4, q=0.5, **ON)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = trainer_of(tmp_path, RECORDED, save_strategy="steps", save_steps=3)
    whole.train()
    resumed = trainer_of(tmp_path, RECORDED)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    zoo.assert_same(weights(resumed), weights(whole))


@pytest.mark.parametrize(("given", "message"), [(None, "rows=indices"), ([0], "a list of as many integers")])
def test_a_loop_that_does_not_say_its_rows_is_refused(given: list[int] | None, message: str) -> None:
    with regularize(zoo.build("bert"), RECORDED) as reg, pytest.raises(AttendropError, match=message):
        reg.loss(zoo.batch_of("bert"), rows=given)


def test_a_collator_that_leaves_rows_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match="The data collator made 3 rows of 4"):
        trainer_of(tmp_path, RECORDED, data_collator=lambda rows: zoo.collate(rows[1:])).train()


def test_beyond_the_limit_the_oldest_rows_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    mask = packed(np.ones((4, 8, 8), dtype=np.bool_))
    assert mask.bits.nbytes == 32 < mask.size
    limit = 3 * mask.size + 1
    records = Recorder(limit, Processes())
    with caplog.at_level(logging.WARNING):
        for row in (1, 2, 3, 1, 4):
            records.put(row, {"self.0": mask})
    assert [row in records.rows for row in (1, 2, 3, 4)] == [True, False, True, True]
    assert (records.bytes, records.forgotten, len(caplog.records)) == (3 * mask.size, 1, 1)
    restored = Recorder(limit, Processes())
    restored.load_state_dict(records.state_dict())
    assert (restored.bytes, list(restored.rows)) == (3 * mask.size, [3, 1, 4])


def test_rows_without_any_signal_are_counted() -> None:
    """In float16, small gradients may become zero."""
    batch = zoo.batch_of("bert")
    with regularize(zoo.build("bert"), RECORDED) as reg:
        for scale, expected in ((1.0, None), (0.0, 0.0), (1.0, 1.0)):
            (reg.loss(batch, rows=[0, 1, 2]) * scale).backward()
            reg.step()
            assert reg.logs().get("ad_drop/without_signal") == expected  # of the step before
        recorder = recorder_of(reg)
        reg.loss(batch, rows=[0, 1, 2]).backward()
        recorder.choose()
        (chosen,) = recorder._chosen  # the first two rows have candidates in the first layer alone
        chosen.bits[0, 2] = 0
        chosen.bits[1:] = 0
        recorder.flush()
        assert recorder.without_signal == pytest.approx(1 / 3)


def test_processes_exchange_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes in one, which was resumed: each part that the first sends is answered by one of the second."""
    monkeypatch.setattr("attendrop.methods.ad_drop._ROWS_AT_A_TIME", 2)
    mask = packed(np.ones((1, 4, 4), dtype=np.bool_))
    answers: Any = iter([3, *([[(10 + row, {"self.0": mask})] for row in range(5)])])
    sent: list[Any] = []

    def gather(value: Any) -> list[Any]:
        sent.append(value)
        return [value, next(answers)]

    recorder = Recorder(1 << 20, Processes(0, 2, gather=gather))
    for row in (3, 1, 2):
        recorder.put(row, {"self.0": mask})
    state, recorder = recorder.state_dict(), Recorder(1 << 20, Processes(0, 2, gather=gather))
    recorder.load_state_dict(state)
    last: Any = ADDrop(attribution="recorded").start(zoo.training(zoo.build("bert")))
    last.recorder = recorder
    assert last.final_report([])["records"]["rows"] == 6  # also those of the last epoch
    assert [len(each) for each in sent[1:]] == [2, 1, 0]
    assert list(recorder.rows) == [3, 1, 2, 10, 11, 12]
    assert recorder.new == set()


def test_attributions_that_no_row_ever_has_are_told_as_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    with regularize(model, ADDrop(**ON)) as reg:
        for start in (0, 10):
            reg.loss(batch, rows=range(start, start + len(batch["labels"]))).backward()
            reg.step()
    assert [message.split()[1] for message in caplog.messages if "never took effect" in message] == ["ad-drop"]


def test_the_limit_is_in_mebibytes_or_shared_by_the_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with regularize(zoo.build("bert"), ADDrop(record_limit=3, **ON)) as reg:
        assert recorder_of(reg).limit == 3 << 20
    alone = Recorder(None, Processes()).limit
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert Recorder(None, Processes()).limit == pytest.approx(alone / 8, rel=0.3)
