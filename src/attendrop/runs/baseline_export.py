"""Baselines as ONNX files: linear models of TF-IDF, whose terms the graph counts, and of a frozen encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn

from attendrop.errors import AttendropError
from attendrop.pruning.export import TOLERANCE, describe, export_onnx, require_onnx
from attendrop.runs.baseline_models import BaselineModel, tf_idf
from attendrop.runs.prediction_passes import unit_means

# Stands for the blank at both ends of a word in the vocabulary of characters; no text contains it.
_BLANK = "\ufdd0"
# In Python, a sigma at the end of a word has a separate lower-case form: after a cased letter, and before none.
_CASED, _IGNORED = r"[\p{Cased}&&[^\p{Case_Ignorable}]]", r"\p{Case_Ignorable}*"
_FINAL_SIGMA = rf"(?<={_CASED}{_IGNORED})Σ(?!{_IGNORED}{_CASED})"
_PAD, _UNKNOWN = "[PAD]", "[UNK]"
_TOKENIZERS = ("words", "characters")


def export_baseline(model: BaselineModel, config: Any, file: Path, metadata: Mapping[str, str]) -> float:
    """Write a baseline as ONNX, for TF-IDF with the tokenizers ``words.json`` and ``characters.json`` beside it.

    For a frozen encoder, inputs are those of :func:`attendrop.export_onnx`; for TF-IDF they are ``words`` and
    ``characters``, the ids of both tokenizers, int64 ``(batch, length)``, and for a second text ``words_2`` and
    ``characters_2``. The output is ``logits``.

    Returns:
        The largest difference of a logit of the file from that of the model, on example texts.

    Raises:
        AttendropError: The model has one answer for all rows, a package is missing, or logits differ by more than 1e-4
            of the largest.
    """
    if model.weight is None:
        raise AttendropError(f"'{model.name}' answers the same for every row: there is nothing to export.")
    if model.encoder is not None:
        return export_onnx(_OnFrozenEncoder(model), file, metadata=metadata)
    require_onnx()
    import onnx

    tokenizers = {name: _tokenizer(name, model.vectorizers) for name in _TOKENIZERS}
    for name, tokenizer in tokenizers.items():
        tokenizer.save(str(file.parent / f"{name}.json"))
    onnx.save(_graph(model, tokenizers), file)
    difference = _checked(model, file, tokenizers)
    describe(file, config, {"quantization": "none", **metadata})
    return difference


class _OnFrozenEncoder(nn.Module):
    """Encoder with a linear model on the unit vector of each row's mean, as a model of transformers is called."""

    def __init__(self, model: BaselineModel) -> None:
        super().__init__()
        assert model.encoder is not None and model.weight is not None
        self.encoder = model.encoder
        self.config, self.main_input_name = model.encoder.config, model.encoder.main_input_name
        self.linear = nn.Linear(model.weight.shape[1], model.weight.shape[0])
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(model.weight))
            self.linear.bias.copy_(torch.from_numpy(model.bias))

    @property
    def base_model(self) -> nn.Module:
        """The model without a head, which export asks for what it reads."""
        return self.encoder.base_model

    def forward(self, return_dict: bool = True, **inputs: Tensor) -> Any:
        encoder: Any = self.encoder.get_encoder() if self.config.is_encoder_decoder else self.encoder.base_model
        hidden = encoder(**inputs).last_hidden_state
        return SimpleNamespace(logits=self.linear(unit_means(hidden, inputs.get("attention_mask"))))


def _terms(name: str, vectorizer: TfidfVectorizer) -> list[tuple[str, ...]]:
    """Return the terms of a vectorizer in order, each as its words or characters."""
    found = vectorizer.get_feature_names_out().tolist()
    if name == "words":
        return [tuple(term.split(" ")) for term in found]
    return [tuple(term.replace(" ", _BLANK)) for term in found]


def _tokenizer(name: str, vectorizers: Sequence[TfidfVectorizer]) -> Any:
    """Make the tokenizer of words, or of characters with a blank at both ends of each word, as scikit-learn does.

    Two words share a blank: no term has one inside.
    """
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordLevel

    own = vectorizers[_TOKENIZERS.index(name) :: len(_TOKENIZERS)]
    units = dict.fromkeys(unit for each in own for term in _terms(name, each) for unit in term)
    vocabulary = {unit: number for number, unit in enumerate(dict.fromkeys((_PAD, _UNKNOWN, _BLANK, *units)))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=_UNKNOWN))
    # As in Python, combining marks, such as those of Hindi, are not part of words.
    lowercase = [normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    if name == "words":
        tokenizer.normalizer = normalizers.Sequence(lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\p{L}\p{N}_]+"), "removed", invert=True)
        around = f"{_UNKNOWN} $A"  # so that no text is empty
    else:
        spaces = normalizers.Replace(Regex(r"[\s\x{1c}-\x{1f}]+"), _BLANK)
        tokenizer.normalizer = normalizers.Sequence([*lowercase, normalizers.Strip(), spaces])
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
        around = f"{_BLANK} $A {_BLANK}"
    added = [(unit, vocabulary[unit]) for unit in (_UNKNOWN, _BLANK)]
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=added)
    tokenizer.enable_padding(pad_id=vocabulary[_PAD], pad_token=_PAD)
    return tokenizer


def _graph(model: BaselineModel, tokenizers: Mapping[str, Any]) -> Any:
    """Make the graph: counts of terms, their logarithms times the inverse document frequency, unit vectors, logits."""
    from onnx import TensorProto, helper, numpy_helper

    assert model.weight is not None
    constants = {"one": np.float32(1), "weight": model.weight, "bias": model.bias}
    nodes, inputs, parts = [], [], []
    for place, vectorizer in enumerate(model.vectorizers):
        column, which = divmod(place, len(_TOKENIZERS))
        kind = _TOKENIZERS[which]
        name = kind if column == 0 else f"{kind}_{column + 1}"
        inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", f"length of {name}"]))
        constants[f"{name}.idf"] = vectorizer.idf_
        nodes.append(_counts(name, _terms(kind, vectorizer), tokenizers[kind].get_vocab(with_added_tokens=False)))
        chain = [
            ("Max", [f"{name}.counts", "one"], "at least one"),
            ("Log", [f"{name}.at least one"], "log"),
            ("Add", [f"{name}.log", "one"], "damped"),
            ("Min", [f"{name}.counts", "one"], "there"),
            ("Mul", [f"{name}.damped", f"{name}.there"], "tf"),
            ("Mul", [f"{name}.tf", f"{name}.idf"], "tf-idf"),
            ("LpNormalization", [f"{name}.tf-idf"], "unit"),
        ]
        nodes += [helper.make_node(op, given, [f"{name}.{made}"]) for op, given, made in chain]
        parts.append(f"{name}.unit")
    nodes.append(helper.make_node("Concat", parts, ["features"], axis=1))
    nodes.append(helper.make_node("Gemm", ["features", "weight", "bias"], ["logits"], transB=1))
    arrays = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(model.bias)])
    graph = helper.make_graph(nodes, "attendrop", inputs, [logits], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _counts(name: str, terms: Sequence[tuple[str, ...]], ids: Mapping[str, int]) -> Any:
    """Make the node that counts terms of up to five units."""
    from onnx import helper

    lengths = sorted({len(term) for term in terms})
    order = sorted(range(len(terms)), key=lambda place: len(terms[place]))
    starts, pool = [0] * lengths[-1], 0
    for length in range(1, lengths[-1] + 1):
        starts[length - 1] = pool
        pool += length * sum(len(term) == length for term in terms)
    return helper.make_node(
        "TfIdfVectorizer",
        [name],
        [f"{name}.counts"],
        mode="TF",
        min_gram_length=lengths[0],
        max_gram_length=lengths[-1],
        max_skip_count=0,
        ngram_counts=starts,
        ngram_indexes=order,
        pool_int64s=[ids[unit] for place in order for unit in terms[place]],
    )


def _checked(model: BaselineModel, file: Path, tokenizers: Mapping[str, Any]) -> float:
    """Return the largest difference of a logit on texts of the model's own words; raise AttendropError beyond 1e-4."""
    from onnxruntime import InferenceSession

    words = [term for term in model.vectorizers[0].get_feature_names_out() if " " not in term]
    texts = ["", f"An unknown  WORD, {' '.join(words[:3])}!", *(" ".join(words[start::7][:30]) for start in range(7))]
    columns = len(model.vectorizers) // len(_TOKENIZERS)
    rows = [tuple(texts[(place + column) % len(texts)] for column in range(columns)) for place in range(len(texts))]
    feed = {}
    for column in range(columns):
        for name, tokenizer in tokenizers.items():
            encoded = tokenizer.encode_batch([row[column] for row in rows])
            feed[name if column == 0 else f"{name}_{column + 1}"] = np.array([each.ids for each in encoded])
    found = InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(["logits"], feed)[0]
    expected = model.linear(tf_idf(model.vectorizers, rows))
    difference = float(np.abs(found - expected).max())
    if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise AttendropError(f"The file's logits differ from the model's by up to {difference:.2g}: not exported.")
    return difference
