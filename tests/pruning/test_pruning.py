"""Pruned models: the fast form and the plain one against a slow oracle, chosen, saved, loaded, exported."""

from __future__ import annotations

import copy
import logging
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import zoo
from helpers.device import DEVICE, ON_CPU
from helpers.families import tiny_config
from helpers.plans import passed
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attendrop import AttendropError, PrunedModel, export_onnx, export_torch, load, prune
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.plan import ConstantAttention
from attendrop.pruning.packed import GatheredLayout, PackedLayer, PaddedLayout
from attendrop.pruning.pruned_model import mask_layers, prunable_layers
from attendrop.pruning.selection import importance, loss_score
from attendrop.support.files import PRUNED_CONFIG, WEIGHTS
from attendrop.tasks.types.modeling_mean_pooling import mean_of_valid

DEEP = {"num_hidden_layers": 3}
BERT = {**zoo.ZOO["bert"].options, **DEEP}
ELECTRA = {**zoo.ZOO["electra"].options, **DEEP}
DISTILBERT = {**zoo.ZOO["distilbert"].options, "n_layers": 3}
DEBERTA = {**zoo.ZOO["deberta-v3"].options, **DEEP}
MODERNBERT = {**zoo.ZOO["modernbert"].options, **DEEP, "global_attn_every_n_layers": 3}  # the first is global
GLOBAL = MODERNBERT | {"global_attn_every_n_layers": 2, "attention_bias": True, "norm_bias": True}
# Class, options, and the row of the zoo whose batches it takes.
FAST: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertForSequenceClassification", BERT, "bert"),
    "bert-tokens": ("BertForTokenClassification", BERT, "bert-tokens"),
    "bert-choice": ("BertForMultipleChoice", BERT, "bert-choice"),
    "bert-base": ("BertModel", BERT, "bert"),
    "roberta-tokens": ("RobertaForTokenClassification", BERT, "bert-tokens"),
    "electra": ("ElectraForSequenceClassification", ELECTRA, "bert"),
    "electra-choice": ("ElectraForMultipleChoice", ELECTRA, "bert-choice"),
    "distilbert": ("DistilBertForSequenceClassification", DISTILBERT, "bert"),
    "distilbert-choice": ("DistilBertForMultipleChoice", DISTILBERT, "bert-choice"),
    "bert-mean": ("BertMeanPoolingForSequenceClassification", BERT, "bert"),
    "distilbert-mean": ("DistilBertMeanPoolingForSequenceClassification", DISTILBERT, "distilbert-mean"),
    "deberta-v3": ("DebertaV2ForSequenceClassification", DEBERTA, "bert"),
    "deberta-v3-tokens": ("DebertaV2ForTokenClassification", DEBERTA, "bert-tokens"),
    "deberta-v2": ("DebertaV2ForSequenceClassification", DEBERTA | {"share_att_key": False}, "bert"),
    "modernbert": ("ModernBertForSequenceClassification", MODERNBERT, "bert"),
    "modernbert-global": ("ModernBertForSequenceClassification", GLOBAL, "bert"),
    "modernbert-mean": ("ModernBertForSequenceClassification", MODERNBERT | {"classifier_pooling": "mean"}, "bert"),
    "modernbert-tokens": ("ModernBertForTokenClassification", MODERNBERT, "bert-tokens"),
}
# They read the first token, and of one that is padding stock models make what depends on all the padding.
PADDED_ON_THE_RIGHT = ("deberta-v3", "deberta-v2", "modernbert", "modernbert-global")
PLAIN = ("gpt2-class", "llama-class", "vit", "bart-class")
PADDINGS = {"right": {}, "left": {"left": True}, "none": {"lengths": (6, 6)}}
# How the fast form lays tokens out; the last two are exported.
LAYOUTS = {"packed": None, "padded": PaddedLayout, "gathered": GatheredLayout}


@cache
def stock(case: str) -> Any:
    cls, options, _ = FAST[case]
    return zoo.from_class(cls, options).to(DEVICE).eval()


def batch_for(case: str, *, lengths: Sequence[int] = (8, 5, 3), **padding: Any) -> zoo.Batch:
    batch = zoo.batch_of(FAST[case][2], lengths, labels=False, **padding)
    if case == "distilbert-choice":
        batch.pop("position_ids", None)  # it takes none
    return batch


def output(model: Any, batch: zoo.Batch) -> Tensor:
    """What a model answers; of what it says of single tokens, only of real ones."""
    with torch.no_grad():
        found = model(**batch)
    if "logits" not in found:
        tokens = found.last_hidden_state[batch["attention_mask"].bool()]
        return torch.cat([tokens, found.pooler_output]) if "pooler_output" in found else tokens
    return found.logits[batch["attention_mask"].bool()] if found.logits.ndim == 3 else found.logits


def naive(model: Any, layers: Sequence[int], batch: zoo.Batch) -> Tensor:
    """The answer of a stock model, in some of whose layers each token gets the mean of the values that it sees."""
    mask = batch["attention_mask"].flatten(0, -2).bool()

    def average(module: Any, args: tuple[Tensor, ...], _: Any) -> tuple[Tensor, None]:
        if hasattr(module, "Wqkv"):
            values = module.Wqkv(args[0])[..., -args[0].shape[-1] :]
        else:
            name = next(name for name in ("v_lin", "value", "value_proj") if hasattr(module, name))
            values = getattr(module, name)(args[0])
        reach = getattr(module, "sliding_window", None) or 1000  # one more than the distance
        context = torch.zeros_like(values)
        columns = torch.arange(mask.shape[1], device=mask.device)
        for row, valid in enumerate(mask):
            for token in columns:
                seen = valid & ((columns - token).abs() < reach)
                context[row, token] = values[row, seen].sum(0) / max(1, int(seen.sum()))
        output = getattr(module, "out_lin", getattr(module, "Wo", None))
        return (context if output is None else output(context)), None

    modules = [model.get_submodule(prunable_layers(model)[number].name) for number in layers]
    hooks = [module.register_forward_hook(average) for module in modules]
    try:
        return output(model, batch)
    finally:
        for hook in hooks:
            hook.remove()


def near(found: Tensor, expected: Tensor, tolerance: float = 1e-5 if ON_CPU else 1e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# The same answers -----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.sampled(10)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("layers", [(0,), (1, 2)], ids=str)
@pytest.mark.parametrize("case", FAST)
def test_fast_form_equals_naive(case: str, layers: tuple[int, ...], padding: str, layout: str) -> None:
    model, batch = stock(case), batch_for(case, **PADDINGS[padding])
    light = prune(model, layers)
    assert light.fast
    for module in light.modules():
        if hasattr(module, "exported"):
            module.exported = LAYOUTS[layout]
    if padding == "left" and case in PADDED_ON_THE_RIGHT:
        if layout == "packed":  # others are not asked to look
            with pytest.raises(AttendropError, match="begins with padding"):
                light(**batch)
        return
    near(output(light, batch), naive(model, layers, batch))


def test_many_tokens_go_through_in_chunks() -> None:
    model = zoo.from_class("BertForTokenClassification", BERT | {"max_position_embeddings": 200}).eval()
    batch = zoo.batch_of("bert-tokens", (200, 190, 7, 150, 160), labels=False)
    assert batch["attention_mask"].sum() > 512
    near(output(prune(model, [0, 2]), batch), naive(model, [0, 2], batch))


@pytest.mark.parametrize("case", ["distilbert", "modernbert"])
def test_parts_that_are_replaced_after_pruning_run(case: str) -> None:
    """Adapters and quantization put other modules in their place."""
    light, called, linear = prune(stock(case), [1]), set(), set()
    before = output(light, batch_for(case))
    layers = [module for module in light.modules() if isinstance(module, PackedLayer)]
    for part in [part for layer in layers for part in layer.modules()]:
        for name, child in list(part.named_children()):
            if isinstance(child, nn.Linear):
                linear.add(child)
                setattr(part, name, nn.Sequential(child))
                child.register_forward_hook(lambda module, *_: called.add(module))
    near(output(light, batch_for(case)), before, 0)
    assert called == linear


def test_other_inputs_and_outputs_of_the_stock_model() -> None:
    model, light, batch = stock("bert"), prune(stock("bert"), []), batch_for("bert")
    batch["token_type_ids"] = torch.arange(8)[None].expand(3, 8) % 2
    batch |= {"position_ids": torch.arange(8)[None].flip(1), "labels": torch.tensor([0, 2, 1])}
    with torch.no_grad():
        expected = model(**batch).to_tuple()
        found = [light(**batch).to_tuple(), light(**batch, return_dict=False)]
        batch["inputs_embeds"] = model.get_input_embeddings()(batch.pop("input_ids"))
        for loss, logits, *_ in [*found, light(**batch).to_tuple()]:
            near(loss, expected[0])
            near(logits, expected[1])


def test_what_the_fast_form_and_the_model_inside_refuse(tmp_path: Path) -> None:
    """The model inside would train without dropout, and from_pretrained would make up what was removed."""
    light, batch = prune(torch.compile(stock("bert"), backend="eager"), [1]), batch_for("bert")
    expected = output(prune(stock("bert"), [1]), batch)
    near(output(light, batch), expected, 0)  # a compiled model has it, too
    with pytest.raises(AttendropError, match=r"output_attentions.*to_stock"):
        light(**batch, output_attentions=True)
    pairs = batch["attention_mask"][:, None, None].expand(-1, 1, 8, 8).bool()
    with pytest.raises(AttendropError, match=r"attention_mask of shape \(3, 8\)"):  # not a mask for each pair
        light(**batch | {"attention_mask": pairs})
    light.model.train()
    with pytest.raises(AttendropError, match=r"does not train; call eval\(\)"):
        light(**batch)
    near(output(light.eval(), batch), expected, 0)
    with pytest.raises(AttendropError, match="is pruned, and its fast layers compute no attention weights"):
        ModelAdapter(light)
    for each in (light, copy.deepcopy(light)):
        with pytest.raises(AttendropError, match=r"attention in one way only, .* use its to_stock\(\)"):
            each.model.set_attn_implementation("eager")
        with pytest.raises(AttendropError, match="random weights in the pruned layers; save the pruned model"):
            each.model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    light.to_stock().set_attn_implementation("eager")


# The plain form -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PLAIN, "modernbert", "bert", "distilbert", "deberta-v3"])
def test_zero_queries_are_constant_attention(name: str) -> None:
    model = zoo.build(name).eval()
    batch = zoo.batch_of(name)
    layer = prunable_layers(model)[1]
    with torch.no_grad():
        expected = passed(model, batch, ConstantAttention([layer.key])).logits
        near(mask_layers(model, [1])(**batch).logits, expected)


BEIT = zoo.ZOO["vit"].options | {"use_relative_position_bias": True, "vocab_size": 4}
REFUSED: dict[str, tuple[Any, int]] = {
    **{name: (partial(zoo.build, name), 1) for name in ("albert", "t5", "mpnet", "deberta")},
    "beit": (partial(zoo.from_class, "BeitForImageClassification", BEIT), 1),
}
# Projections to queries that also make a gate, to keys that make values, and keys that the next layer reads.
FULL = {"layer_types": ["full_attention"] * 2}
DECODERS: dict[str, tuple[str, dict[str, Any], int]] = {
    "qwen3-next": ("Qwen3Next", FULL, 1),
    "gemma4": ("Gemma4Text", {"attention_k_eq_v": True, "num_kv_shared_layers": 0}, 1),
    "gemma4 that shares keys": ("Gemma4Text", {"num_kv_shared_layers": 1} | FULL, 0),
}


@pytest.mark.parametrize("name", [*REFUSED, *DECODERS])
def test_models_whose_attention_no_weights_make_constant_are_refused(name: str) -> None:
    if name in REFUSED:
        build, layer = REFUSED[name]
        model = build()
    else:
        family, options, layer = DECODERS[name]
        config = tiny_config(getattr(hf, f"{family}Config"), **options)
        model = getattr(hf, f"{family.removesuffix('Text')}ForCausalLM")(config)
    with pytest.raises(AttendropError, match=r"cannot be pruned: its layers share weights, add to their scores"):
        prune(model.eval(), [layer])


@pytest.mark.parametrize("name", ["bert", "modernbert", "gpt2-class"])
def test_recovery_leaves_attention_constant(name: str) -> None:
    trained = prune(zoo.build(name), [0]).to_stock().train()
    before = copy.deepcopy(trained.state_dict())
    optimizer = torch.optim.AdamW([p for p in trained.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    for _ in range(2):
        trained(**zoo.batch_of(name)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = [key for key, value in trained.state_dict().items() if not torch.equal(value, before[key])]
    assert len(moved) > len(before) / 2
    assert prune(trained, []).layers == (0,)


@pytest.mark.parametrize("name", PLAIN)
def test_other_families_keep_the_plain_form_and_say_so(
    name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    model, batch = zoo.build(name).eval(), zoo.batch_of(name)
    light = prune(model, [1])
    assert not light.fast and light.layers == (1,)
    assert [type(model).__name__ in record.getMessage() for record in caplog.records] == [True]
    light.save_pretrained(tmp_path)
    with torch.no_grad():
        near(light(**batch).logits, mask_layers(model, [1])(**batch).logits, 0)
        near(load(tmp_path)(**batch).logits, light(**batch).logits, 0)


class OwnForSequenceClassification(hf.BertForTokenClassification):
    """Its name does not tell that it reads all tokens: the fast form would compute the first alone."""

    def forward(self, attention_mask: Tensor | None = None, **inputs: Any) -> Any:
        found = super().forward(attention_mask=attention_mask, **inputs)
        found["logits"] = mean_of_valid(found.logits, attention_mask)
        return found


@pytest.mark.parametrize(
    ("case", "changed", "padding"),
    [
        ("deberta-v3", {"conv_kernel_size": 3}, {}),
        ("electra-choice", {"summary_type": "mean"}, {"left": True}),
        ("bert", None, {}),  # of a class of one's own
    ],
)
def test_what_the_fast_form_does_not_compute_keeps_the_plain_form(
    case: str, changed: dict[str, Any] | None, padding: dict[str, bool]
) -> None:
    cls, options, _ = FAST[case]
    own = changed is None
    model = OwnForSequenceClassification(hf.BertConfig(**BERT)) if own else zoo.from_class(cls, options | changed)
    light, batch = prune(model.eval(), [0, 2]), batch_for(case, **padding)
    assert not light.fast
    near(output(light, batch), naive(model, [0, 2], batch))


# Pruning --------------------------------------------------------------------------------------------------------------


LABELLED = zoo.batch_of("bert", (8, 5, 3)), zoo.batch_of("bert", (4, 2), seed=8)
PI = {"encoder.0": 0.1, "encoder.1": 0.9, "encoder.2": 0.8}


def test_the_given_model_stays_as_it_was() -> None:
    cls, options, _ = FAST["bert"]
    # The problem type is what the stock model itself writes down at its first loss.
    model = zoo.from_class(cls, options | {"problem_type": "single_label_classification"}, "sdpa").train()
    before, config = copy.deepcopy(model.state_dict()), model.config.to_dict()
    light = prune(model, "auto", batches=LABELLED)
    assert model.training and model.config.to_dict() == config and model.config._attn_implementation == "sdpa"
    zoo.assert_same(model.state_dict(), before)
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in light.parameters()}


@pytest.mark.parametrize(
    ("layers", "pi", "expected"),
    [
        ("2", PI, (1, 2)),
        (">= 0.8", PI, (1, 2)),
        (">=0.95", PI, ()),
        (2, [0.9, 0.1, 0.5], (0, 2)),
        (2, [0.5, 0.5, 0.5], (1, 2)),
        ("2, 0", None, (0, 2)),
        ("[2]", None, (2,)),
        ((2, 1, 2), None, (1, 2)),
        (0, None, ()),  # no ranking decides
        ("3", None, (0, 1, 2)),
        *((malformed, None, None) for malformed in ("", "-1", True, None, "0,x", ">=1.5", [True], ["0"])),
    ],
    ids=repr,
)
def test_layers_are_given_or_go_by_what_the_generator_drops(layers: Any, pi: Any, expected: Any) -> None:
    if expected is not None:
        assert prune(stock("bert"), layers, pi=pi).layers == expected
        return
    with pytest.raises(AttendropError, match=r"is not understood\. Give 'auto'"):
        prune(stock("bert"), layers)


def test_importance_is_the_loss_without_one_layer() -> None:
    model = stock("bert")
    found = importance(model, prunable_layers(model), LABELLED)
    inputs = [{name: value for name, value in batch.items() if name != "labels"} for batch in LABELLED]
    labels = torch.cat([batch["labels"] for batch in LABELLED])
    for layer, loss in enumerate(found):
        logits = torch.cat([naive(model, [layer], batch) for batch in inputs])
        assert loss == pytest.approx(float(cross_entropy(logits, labels)), abs=1e-5)
    assert model.config._attn_implementation == "sdpa"
    each = cross_entropy(torch.cat([output(model, batch) for batch in inputs]), labels, reduction="none")
    near(torch.tensor(loss_score(LABELLED, prune(model, []))), -each)
    least = sorted(range(3), key=found.__getitem__)[:2]
    assert prune(model, 2, batches=LABELLED).layers == tuple(sorted(least))
    assert [layer.kind for layer in prunable_layers(zoo.build("bart-class"))] == ["encoder"] * 2
    unknown = LABELLED[0] | {"labels": torch.full_like(LABELLED[0]["labels"], -100)}  # classes that training lacks
    assert loss_score([*LABELLED, unknown], prune(model, [])) == loss_score(LABELLED, prune(model, []))
    assert importance(model, prunable_layers(model), [*LABELLED, unknown]) == found


@pytest.mark.parametrize(
    ("rows", "loss", "tolerance", "expected"),
    [
        (6, 0.0, 0.0, 3),  # the same on every row
        (600, 0.01, 0.05, 3),
        (600, 0.01, 0.032, 0),  # beyond the 95 % interval of one number of layers, not of three together
        (600, -0.3, 0.0, 3),  # surely better
        (2, -0.3, 1.0, 0),
    ],
)
def test_auto_takes_what_the_rows_vouch_for(
    rows: int, loss: float, tolerance: float, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    scatter = torch.randn(rows) / 4
    scatter -= scatter.mean()

    def score(model: PrunedModel) -> list[float]:
        return [0.5 - loss + float(s) if model.layers and loss else 0.5 for s in scatter]

    with caplog.at_level(logging.WARNING, "attendrop"):
        light = prune(stock("bert"), score=score, pi=[0.5, 0.9, 0.1], tolerance=tolerance)
    assert len(light.layers) == expected
    said = " ".join(record.getMessage() for record in caplog.records)
    assert ("or a higher tolerance accept it" in said) == (rows == 600 and expected == 0)
    assert (f"{rows} rows cannot tell whether 3 layers would cost more than" in said) == (expected == 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": 2}, "Pass labelled batches"),
        ({"layers": "auto", "pi": [0.1, 0.2, 0.3]}, "Pass labelled batches.*'auto'"),
        ({"layers": ">=0.5"}, "there is none here"),
        ({"layers": [3]}, "no layer 3; layers are 0 to 2"),
        ({"layers": 4, "pi": PI}, "only 3 layers"),
        ({"layers": 1, "pi": [0.5]}, "pi has 1 layer, the model 3"),
        ({"layers": "auto", "batches": [{"input_ids": torch.ones(1, 4, dtype=torch.long)}]}, "labels"),
        ({"layers": "auto", "pi": PI, "score": lambda model: 1.0, "tolerance": -1}, "tolerance"),
        ({"layers": "auto", "pi": PI, "score": lambda model: float("nan")}, "with 0 layers pruned is NaN"),
        ({"layers": "auto", "pi": PI, "score": lambda model: [1.0] * (1 + len(model.layers))}, "gave 2 rows with 1 "),
    ],
)
def test_what_is_missing_is_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AttendropError, match=words):
        prune(stock("bert"), **options)


# Saving and loading ---------------------------------------------------------------------------------------------------


SAVED = ["bert-base", "bert-mean", "bert-choice", "roberta-tokens", "distilbert", "deberta-v3", "modernbert-global"]


@pytest.mark.parametrize("case", SAVED)
def test_saved_and_loaded_and_turned_to_stock_it_computes_the_same(case: str, tmp_path: Path) -> None:
    light, batch = prune(stock(case), [0, 2]), batch_for(case)
    light.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert not loaded.training
    for other in (loaded, pickle.loads(pickle.dumps(light))):
        near(output(other, batch), output(light, batch), 0)
    assert loaded.config.to_dict() == light.config.to_dict()
    assert (loaded.layers, loaded.num_layers) == ((0, 2), 3)
    plain = loaded.to_stock()
    assert isinstance(plain, type(stock(case))) and not plain.training
    for other in (plain, prune(plain, [])):
        near(output(other, batch), output(light, batch))


def test_each_tensor_keeps_its_type(tmp_path: Path) -> None:
    """Rotary frequencies, on which long texts depend, are computed in float32."""
    model = zoo.from_class("ModernBertForSequenceClassification", MODERNBERT).to(torch.bfloat16).eval()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.float() * 1.001)
    prune(model, [1]).save_pretrained(tmp_path)
    for form in (load(tmp_path).model, load(tmp_path).to_stock()):
        assert {value.dtype for name, value in form.named_buffers() if "inv_freq" in name} == {torch.float32}


# What is done to a pruned model's folder, or to that of an ordinary one, and what is said.
BROKEN: dict[str, tuple[bool, str, bytes | None]] = {
    r"has no config\.json": (True, PRUNED_CONFIG, None),
    "cannot be read": (True, WEIGHTS, b"half"),
    "not valid JSON": (True, PRUNED_CONFIG, b"{"),
    "cannot be loaded": (False, WEIGHTS, b"half"),
    r"cannot be loaded \('stock'\)": (True, PRUNED_CONFIG, b"{}"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_folders_that_hold_nothing_good(message: str, tmp_path: Path) -> None:
    is_pruned, name, written = BROKEN[message]
    (prune(stock("bert"), [1]) if is_pruned else stock("bert")).save_pretrained(tmp_path)
    other = prune(zoo.build("gpt2-class").eval() if is_pruned else stock("bert"), [1])
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").touch()
    with pytest.raises(AttendropError, match="holds another model"):
        other.save_pretrained(tmp_path / "adapter")
    with pytest.raises(AttendropError, match="holds another model"):  # which is not mixed up
        other.save_pretrained(tmp_path)
    if written is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(written)
    with pytest.raises(AttendropError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("path", "part", "found"),
    [
        ("bert.encoder.layer.0.output.dense", nn.Sequential(nn.Linear(16, 16)), r"\.0\.weight"),
        ("classifier", nn.Linear(16, 7), r"\.weight"),
    ],
)
def test_a_model_with_parts_that_are_not_its_own_is_neither_saved_nor_turned_to_stock(
    path: str, part: nn.Module, found: str, tmp_path: Path
) -> None:
    light = prune(stock("bert"), [1])
    light.model.set_submodule(path, part)
    for convert in (lambda: light.save_pretrained(tmp_path), light.to_stock):
        with pytest.raises(AttendropError, match=rf"were replaced \({re.escape(path)}{found}\)"):
            convert()
    assert not list(tmp_path.iterdir())


def test_weights_of_another_model(tmp_path: Path) -> None:
    one, two, plain = (tmp_path / name for name in ("one", "two", "plain"))
    prune(stock("bert"), [1]).save_pretrained(one)
    prune(stock("bert"), [1, 2]).save_pretrained(two)
    stock("bert").save_pretrained(plain)
    tensors = {folder: load_file(folder / WEIGHTS) for folder in (one, two, plain)}
    without = {key: value for key, value in tensors[plain].items() if key != "classifier.bias"}
    for folder, wrong, message in (
        (one, tensors[two], "do not match the model"),  # too few
        (two, tensors[one], "do not match the model"),  # too many
        (one, tensors[one] | {"classifier.bias": torch.zeros(7)}, r"do not match the model: classifier\.bias"),
        (plain, without, r"incomplete: classifier\.bias"),
    ):
        save_file(wrong, folder / WEIGHTS, metadata={"format": "pt"})
        with pytest.raises(AttendropError, match=message):
            load(folder)


# Export ---------------------------------------------------------------------------------------------------------------

# Without this library, and without torch: only what a server has.
RUNTIME = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
for name in sys.argv[2:]:
    batch = dict(numpy.load(name))
    expected = batch.pop("expected")
    found, = session.run(["logits"], {i.name: batch[i.name] for i in session.get_inputs()})
    numpy.testing.assert_allclose(found[batch["mask"]], expected, atol=1e-4)
assert "attendrop" not in sys.modules and "torch" not in sys.modules
assert session.get_modelmeta().custom_metadata_map["id2label"] == '{"0": "no", "1": "perhaps", "2": "yes"}'
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["roberta-tokens", "deberta-v3", "modernbert"])
def test_onnx_without_this_library(case: str, tmp_path: Path) -> None:
    model = copy.deepcopy(stock(case))
    model.config.id2label = {0: "no", 1: "perhaps", 2: "yes"}
    light = prune(model, [0, 2])
    assert export_onnx(light, tmp_path / "model.onnx") < 1e-5
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    names = []
    for lengths in ((11,), (2, 1, 7, 4, 4)):
        batch = batch_for(case, lengths=lengths)
        rows = batch["attention_mask"].bool() if case.endswith("tokens") else torch.ones(len(lengths)).bool()
        names.append(str(tmp_path / f"{len(lengths)}.npz"))
        found = {"expected": output(light, batch), "mask": rows, "token_type_ids": torch.zeros_like(batch["input_ids"])}
        found |= {name: batch[name] for name in ("input_ids", "attention_mask")}
        np.savez(names[-1], **{name: value.numpy() for name, value in found.items()})
    subprocess.run([sys.executable, "-c", RUNTIME, str(tmp_path / "model.onnx"), *names], check=True, timeout=60)


def test_a_file_that_does_not_compute_what_the_model_does_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    light = prune(stock("distilbert"), [1])

    def almost(path: Path) -> Any:
        return lambda inputs: light(inputs["input_ids"], inputs["attention_mask"]).logits.numpy() + 0.001

    monkeypatch.setattr("torch.onnx.export", lambda *_, **__: None)
    monkeypatch.setattr("attendrop.pruning.export.onnx_model", almost)
    with pytest.raises(AttendropError, match=r"differ from the model's by up to 0\.001, more than 0\.0001 times"):
        export_onnx(light, tmp_path / "model.onnx")
    with pytest.raises(AttendropError, match="ViTForImageClassification reads pixel_values; only models of texts"):
        export_onnx(zoo.build("vit"), tmp_path / "model.onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AttendropError, match=r"needs onnx, onnxscript, onnxruntime; run `pip install 'att"):
        export_onnx(light, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tolerance", "message"), [(-1.0, "file's logits differ"), (1e-4, r"cannot be exported \(size")]
)
def test_a_torch_program_that_differs_or_refuses_a_size_is_not_written(
    tolerance: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Program(torch.nn.Module):
        def forward(self, ids: Tensor, *_: Tensor) -> Tensor:
            if tolerance > 0 and len(ids) == 1:  # as a program of ModernBERT for multiple choice does
                raise AssertionError("size")
            return torch.zeros(len(ids), 1)

    monkeypatch.setattr("attendrop.pruning.export.TOLERANCE", tolerance)
    monkeypatch.setattr("torch.export.export", lambda *_, **__: None)
    monkeypatch.setattr("torch.export.save", lambda *_: None)
    monkeypatch.setattr("torch.export.load", lambda _: SimpleNamespace(module=Program))
    with pytest.raises(AttendropError, match=message):
        export_torch(stock("electra"), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "case", ["electra", *(pytest.param(name, marks=pytest.mark.slow) for name in ("deberta-v3", "modernbert"))]
)
def test_torch_export(case: str, tmp_path: Path) -> None:
    light = prune(stock(case), [0, 2])
    assert export_torch(light, tmp_path / "model.pt2") < 1e-4
    program = torch.export.load(tmp_path / "model.pt2").module()
    for lengths in ((11,), (2, 1, 7, 4, 4)):
        batch = batch_for(case, lengths=lengths)
        types = [torch.zeros_like(batch["input_ids"])] * (getattr(light.config, "type_vocab_size", 0) > 1)
        with torch.no_grad():
            near(program(batch["input_ids"], batch["attention_mask"], *types), output(light, batch), 1e-4)
