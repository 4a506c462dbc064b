"""Pruned models whose attention is constant under this library alone: shared layers, and biases on the scores."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import oracles, zoo
from helpers.tiny_configs import tiny_config
from torch import Tensor

from attendrop import AttendropError, PrunedModel, export_torch, load, prune
from attendrop.attention.adapter import ModelAdapter, find_attention_layers
from attendrop.attention.plan import ConstantAttention
from attendrop.pruning.constant_attention import mask_layers

NAMES = ("albert", "t5", "deberta")
BEIT = zoo.ZOO["vit"].options | {"use_relative_position_bias": True, "vocab_size": 4}
every_model = pytest.mark.parametrize("name", NAMES)


def answer(model: Any, batch: zoo.Batch) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits


def expected(name: str, layers: set[int], batch: zoo.Batch) -> Tensor:
    """The answer of a stock model, in some of whose layers the oracle drops everything."""
    model = zoo.build(name, "eager").eval()
    with oracles.EagerAttention().in_place_of_stock(model) as plain:
        answer(model, batch)
    kinds = [(layer.kind, layer.index) for layer in find_attention_layers(zoo.build(name))]
    drops = [
        torch.full_like(valid, kind == "encoder" and index in layers)
        for valid, (kind, index) in zip(plain.valid, kinds, strict=True)
    ]
    with oracles.EagerAttention(drops).in_place_of_stock(model):
        return answer(model, batch)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layers", [{1}, {0, 1}, set()], ids=str)
@every_model
def test_pruned_layers_attend_equally_to_all_valid_keys(name: str, layers: set[int]) -> None:
    model, batch = zoo.build(name).eval(), zoo.batch_of(name)
    before = answer(model, batch)
    light = prune(model, sorted(layers))
    assert (light.layers, light.fast, light.held) == (tuple(layers), False, bool(layers))
    torch.testing.assert_close(answer(light, batch), expected(name, layers, batch), rtol=1e-5, atol=1e-5)
    assert torch.equal(answer(light, batch), before) == (not layers)
    assert torch.equal(answer(model, batch), before)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda light: pickle.loads(pickle.dumps(light))])
@every_model
def test_copies_and_files_attend_alike(name: str, copied: Any, tmp_path: Path) -> None:
    light, batch = prune(zoo.build(name), [1]), zoo.batch_of(name)
    light.save_pretrained(tmp_path)
    for other in (copied(light), load(tmp_path)):
        assert (other.layers, other.held) == ((1,), True)
        assert torch.equal(answer(other, batch), answer(light, batch))
    assert not (tmp_path / "config.json").exists()  # transformers would load a model that is not pruned


def test_an_encoder_that_runs_alone_in_generation_is_pruned() -> None:
    batch = zoo.batch_of("t5", (5, 3), labels=False)
    light = prune(zoo.build("t5"), [0, 1])
    found = light.model.generate(**batch, max_new_tokens=4, do_sample=False)
    tokens = torch.zeros(2, 1, dtype=torch.long)
    for _ in range(4):
        logits = answer(light, {**batch, "decoder_input_ids": tokens})
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(found, tokens)


def test_passes_in_several_threads_keep_apart() -> None:
    """A layer that runs several times in a pass is counted in each."""
    batch, begun = zoo.batch_of("albert"), threading.Barrier(2, timeout=60)
    light = prune(zoo.build("albert"), [1])
    alone = answer(light, batch)

    def meet(*_: Any) -> None:
        begun.wait()

    light.model.base_model.embeddings.register_forward_hook(meet)
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(lambda _: answer(light, batch), range(2)):
            assert torch.equal(found, alone)


@every_model
def test_a_masked_model_trains_and_stays_masked(name: str) -> None:
    batch = zoo.batch_of(name)
    masked = mask_layers(zoo.build(name), [0])
    optimizer = torch.optim.SGD(masked.parameters(), lr=0.1)
    masked(**batch).loss.backward()
    optimizer.step()
    light = PrunedModel(masked)
    assert (light.layers, light.held) == ((0,), True)
    assert torch.equal(answer(light, batch), answer(masked.eval(), batch))
    assert PrunedModel(mask_layers(masked, [1])).layers == (0, 1)


def test_biases_on_the_scores_of_images_are_found_out() -> None:
    model, batch = zoo.from_class("BeitForImageClassification", BEIT).eval(), zoo.batch_of("vit")
    light = prune(model, [0, 1])
    assert light.held
    before = answer(light, batch)
    for inner in (light.model, model):
        for name, parameter in inner.named_parameters():
            if re.search("query|q_proj", name):
                parameter.data.normal_()
    assert torch.equal(answer(light, batch), before)
    assert not torch.equal(answer(model, batch), before)


@pytest.mark.parametrize(
    ("name", "options", "layer"),
    [
        ("Qwen3Next", {"layer_types": ["full_attention"] * 2}, 1),  # the projection to queries makes a gate, too
        ("Gemma4Text", {"attention_k_eq_v": True, "num_kv_shared_layers": 0}, 1),  # and that to keys the values
        ("Gemma4Text", {"num_kv_shared_layers": 1, "layer_types": ["full_attention"] * 2}, 0),  # the second reads keys
    ],
)
def test_projections_that_also_make_something_else_stay(name: str, options: dict[str, Any], layer: int) -> None:
    torch.manual_seed(0)
    config = tiny_config(getattr(hf, f"{name}Config"), **options)
    model = getattr(hf, f"{name.removesuffix('Text')}ForCausalLM")(config).eval()
    batch = {"input_ids": torch.arange(5, 13)[None], "attention_mask": torch.ones(1, 8, dtype=torch.long)}
    light = prune(model, [layer])
    with ModelAdapter(model) as adapter, torch.no_grad():
        adapter.trace(batch)
        constant = adapter.forward(batch, ConstantAttention([f"decoder.{layer}"])).logits
    assert light.held
    torch.testing.assert_close(answer(light, batch), constant)


def test_models_that_were_held_are_forgotten() -> None:
    light = prune(zoo.build("albert"), [0])
    alive = weakref.ref(light.model)
    del light
    gc.collect()
    assert alive() is None


def test_what_needs_a_stock_form_is_refused(tmp_path: Path) -> None:
    light = prune(zoo.build("albert"), [0])
    with pytest.raises(AttendropError, match="has no stock form"):
        light.to_stock()
    for model in (light, light.model):
        with pytest.raises(AttendropError, match="cannot be exported"):
            export_torch(model, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())
