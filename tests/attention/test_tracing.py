"""Tracing: what one pass finds in a model, what is refused, and how long the result is cached."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import families, zoo
from torch import nn

from attendrop import ADDrop, AttendropError, HiddenCut, LayerDrop, SuperT, regularize
from attendrop.attention.adapter import find_attention_layers
from attendrop.attention.tracing import _CACHES

RANDOM = ADDrop(attribution="random", layers="all")


# --- What a plan would not reach


@pytest.mark.parametrize("name", [*zoo.REFUSED, "pegasus-x"])
def test_layers_that_compute_attention_themselves_are_refused(name: str) -> None:
    if name in zoo.REFUSED:
        class_name, options = zoo.REFUSED[name]
        message = "AttentionInterface"
    else:  # some of its layers alone
        class_name, message = "PegasusXForConditionalGeneration", "PegasusXGlobalLocalAttention.*and 1 more compute"
        options = zoo.ZOO["bart"].options | {"num_global_tokens": 2, "block_size": 4}
    model = zoo.from_class(class_name, options)
    with pytest.raises(AttendropError, match=rf"{class_name} is not supported: .*{message}"):
        find_attention_layers(model)
    assert model.config._attn_implementation in ("sdpa", "eager")


class Twice(hf.BertPreTrainedModel):
    """Calls its encoder twice, and hands keywords on to one call."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = hf.BertModel(config)
        self.post_init()

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any = None, **kwargs: Any) -> Any:
        first = self.bert(input_ids, attention_mask, **kwargs).pooler_output
        second = self.bert(input_ids.flip(0), attention_mask.flip(0)).pooler_output
        return {"loss": (first - second).square().mean()}


def test_keywords_that_reach_one_of_two_calls_are_refused() -> None:
    model = Twice(hf.BertConfig(**zoo.ZOO["bert"].options))
    with regularize(model, RANDOM) as reg, pytest.raises(AttendropError, match=r"layer\.0.*, in 1 of its 2 calls"):
        reg.loss(zoo.batch_of("bert"))


def test_towers_that_attend_within_single_images_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = families.build("qwen2_vl", "IMAGE_TEXT_TO_TEXT")
    tower, token = model.config.vision_config, model.config.image_token_id
    width = 3 * tower.temporal_patch_size * tower.patch_size**2

    def with_images(count: int) -> zoo.Batch:
        tokens = torch.tensor([[*[token] * 4, 20] * count])
        return {
            "input_ids": tokens,
            "labels": tokens.where(tokens != token, -100),
            "pixel_values": torch.randn(count * 4 * 4, width),
            "image_grid_thw": torch.tensor([[1, 4, 4]] * count),
            "mm_token_type_ids": (tokens == token).long(),
        }

    with regularize(model, RANDOM) as reg:
        for count in (1, 2):
            reg.loss(with_images(count)).backward()
        assert {layer.kind for layer in reg.adapter.attention_layers} == {"decoder"}
    assert "Nothing is dropped in the attention within single images" in caplog.text


# --- A model that is switched to another implementation


def test_switching_the_implementation_within_the_block_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    found, batch = [], zoo.batch_of("bert")
    for first in ("eager", "sdpa"):
        with regularize(zoo.build("bert", first), ADDrop(layers="all")) as reg:
            reg.loss(batch)
            reg.step()
            if first == "sdpa":
                reg.model.set_attn_implementation("eager")
            found.append(reg.loss(batch))
            assert any("dropped" in key for key in reg.logs())
    torch.testing.assert_close(*found)
    assert reg.model.config._attn_implementation == "eager"
    assert "was switched to attention implementation 'eager' while it is regularised" in caplog.text
    with regularize(zoo.build("bert"), RANDOM) as reg:
        reg.loss(batch)
        reg.model.config._attn_implementation_internal = "flash_attention_2"
        with pytest.raises(AttendropError, match=r"flash_attention_2.*attn_implementation='sdpa'"):
            reg.loss(batch)


# --- What is remembered


def passes(model: Any, batch: zoo.Batch) -> int:
    """How often the model runs in one step of a block that is entered again."""
    ran: list[None] = []
    hook = model.register_forward_pre_hook(lambda *_: ran.append(None))
    with regularize(model, RANDOM) as reg:
        reg.loss(batch).backward()
    hook.remove()
    return len(ran)


CHANGES = {
    "a new head": lambda model: setattr(model, "classifier", nn.Linear(16, zoo.LABELS)),
    "layers in another order": lambda model: model.bert.encoder.layer.insert(0, model.bert.encoder.layer.pop(1)),
    "an adapter": lambda model: model.bert.pooler.add_module("adapter", nn.Linear(1, 1)),
    "another implementation": lambda model: model.set_attn_implementation("eager"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_that_has_changed_is_traced_anew(change: Any) -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    assert [passes(model, batch) for _ in range(2)] == [2, 1]
    change(model)
    assert [passes(model, batch) for _ in range(2)] == [2, 1]


def test_a_layer_that_is_replaced_within_the_block_is_regularised() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    trained: list[bool] = []
    with regularize(model, LayerDrop(p=0.999)) as reg:
        reg.loss(batch)
        model.bert.encoder.layer[1] = copy.deepcopy(model.bert.encoder.layer[1])
        model.bert.encoder.layer[1].attention.register_forward_hook(lambda layer, *_: trained.append(layer.training))
        reg.step()
        reg.logs()
        reg.loss(batch)
        assert reg.logs()["layerdrop/dropped"] == 1
    assert trained == [False]  # it runs in the pass that traces it alone


def test_what_is_remembered_keeps_no_model_alive() -> None:
    gc.collect()
    before = len(_CACHES)
    model = zoo.build("bert")
    passes(model, zoo.batch_of("bert"))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    assert len(_CACHES) <= before


@pytest.mark.parametrize("family", ["Mixtral", "Qwen2Moe"])
def test_blocks_with_experts_have_no_feed_forward_to_change(family: str) -> None:
    """The last projection of such a block is a gate, one of few tokens, or even that to values."""
    config = getattr(hf, f"{family}Config")(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=2,
        num_local_experts=2, num_experts_per_tok=1, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    model = getattr(hf, f"{family}ForSequenceClassification")(config).train()
    batch = {"input_ids": torch.randint(1, 50, (2, 5)), "labels": torch.tensor([0, 1])}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with regularize(model, HiddenCut(select_by="random", where="block")) as reg:
        reg.loss(batch)
        assert [block.feed_forward for block in reg.adapter.blocks] == [None]
    with regularize(model, HiddenCut(select_by="random")) as reg, pytest.raises(AttendropError, match="may have exp"):
        reg.loss(batch)
    method = SuperT(fraction=0.5, search=0.5)
    with (
        regularize(model, method, optimizer=optimizer, total_steps=4) as reg,
        pytest.raises(AttendropError, match=r"blocks without a feed-forward for all tokens .* set feed_forward=False"),
    ):
        reg.loss(batch)
