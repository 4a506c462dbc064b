"""Translation: raw outputs and their scores against other implementations, languages, texts and labels as tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
import transformers as hf
from helpers import tiny_translators
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from attendrop.errors import AttendropError
from attendrop.runs.inference import predict_outputs
from attendrop.runs.model_card import usage_of
from attendrop.tasks.base import Task, encode_columns
from attendrop.tasks.types.base import row_array
from attendrop.tasks.types.translation import Translation, WrittenText

TASK = Task("files", Translation(max_new_tokens=6), ("text",), "bleu", "", ("chrf", "neg_log_loss"))
PAIRS = [tiny_translators.pair(number) for number in range(5)]


@pytest.fixture(scope="module", params=["marian", "t5"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    getattr(tiny_translators, f"save_tiny_{request.param}")(folder)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    TASK.type.prepare(model, tokenizer)
    return model.eval(), tokenizer


def encoded(tokenizer: Any, max_length: int = 32) -> dict[str, list[Any]]:
    texts, labels = map(list, zip(*PAIRS, strict=True))
    return encode_columns({"text": texts, "label": labels}, TASK, tokenizer, max_length)


def test_outputs_are_those_of_each_row_alone(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    found = predict_outputs(model, tokenizer, TASK.type, encoded(tokenizer), 3, "cpu")
    for (text, label), output in zip(PAIRS, found, strict=True):
        batch = tokenizer(text, text_target=label, return_tensors="pt")
        labels = batch["labels"]
        with torch.no_grad():
            loss = model(**batch).loss
            ids = model.generate(batch["input_ids"], max_new_tokens=6)[0]
        assert output.log_likelihood == pytest.approx(-float(loss) * labels.numel(), rel=1e-4)
        assert output.tokens == labels.numel()
        assert output.text == tokenizer.decode(ids, skip_special_tokens=True)


def test_scores_are_those_of_sacrebleu_and_of_the_loss() -> None:
    written = ["un caine mare si un doi", "trei un mare pisica si doi", ""]
    references = ["un caine mare si doi", "trei un mare pisica si doi trei", "un"]
    outputs = row_array([WrittenText(text, -3.0 * n, n) for n, text in enumerate(written, 1)])
    scores = {name: metric.score(row_array(references), outputs) for name, metric in TASK.type.metrics.items()}
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(written, [references]).score / 100)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(written, [references]).score / 100)
    assert 0.3 < scores["bleu"] < scores["chrf"] < 1
    assert scores["neg_log_loss"] == pytest.approx(-3)
    assert scores["perplexity"] == pytest.approx(np.exp(3))


def test_a_prefix_comes_before_each_text(loaded: tuple[Any, Any]) -> None:
    tokenizer = loaded[1]
    task_type = Translation(source_prefix="one two ")
    assert task_type.tokenize({"text": ["cat"]}, tokenizer, 32)["input_ids"] == tokenizer(["one two cat"])["input_ids"]
    assert "'one two ' + text" in usage_of(task_type, 1, 32)
    assert "generate(**inputs, max_new_tokens=128)" in usage_of(task_type, 1, 32, stock=False)


def multilingual(kind: str) -> tuple[Any, Any]:
    """A model and a tokenizer of the first mBART, whose labels end with the language, or of mBART-50."""
    letters: list[Any] = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), ("a", -2.0)]
    tokenizer = getattr(hf, kind)(vocab=letters, src_lang="en_XX", tgt_lang="ro_RO")
    config = hf.MBartConfig(
        vocab_size=len(tokenizer), d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
        decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8,
    )  # fmt: skip
    return hf.MBartForConditionalGeneration(config), tokenizer


@pytest.mark.parametrize(
    ("kind", "token"), [("MBartTokenizer", "decoder_start_token_id"), ("MBart50Tokenizer", "forced_bos_token_id")]
)
def test_generation_begins_with_the_target_language(kind: str, token: str, tmp_path: Path) -> None:
    model, tokenizer = multilingual(kind)
    task_type = Translation(source_lang="tr_TR", target_lang="en_XX", max_new_tokens=4)
    task_type.prepare(model, tokenizer)
    turkish, english = tokenizer.convert_tokens_to_ids(["tr_TR", "en_XX"])
    assert getattr(model.generation_config, token) == english
    encoded = task_type.tokenize({"text": ["a"], "label": ["a"]}, tokenizer, 16)
    assert turkish in encoded["input_ids"][0] and english in encoded["target_ids"][0]
    generated = model.generate(**tokenizer("a", return_tensors="pt"))[0].tolist()
    assert english in generated[:2]
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert (again.src_lang, again("a")["input_ids"]) == ("tr_TR", tokenizer("a")["input_ids"])


def test_nothing_is_sampled_and_generation_ends_at_the_last_position(tmp_path: Path) -> None:
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    config = hf.BartConfig(vocab_size=50, max_position_embeddings=16, **sizes)
    config.encoder_attention_heads = config.decoder_attention_heads = 2
    model = hf.BartForConditionalGeneration(config).eval()
    model.generation_config = hf.GenerationConfig(do_sample=True, temperature=0.7, top_p=0.9, min_p=0.1)
    Translation().prepare(model, None)  # type: ignore[arg-type]
    assert (model.generation_config.do_sample, model.generation_config.max_new_tokens) == (False, 8)
    model.save_pretrained(tmp_path)  # transformers refuses options that have no effect
    with pytest.raises(AttendropError, match="max_new_tokens=16 is too much: BartForConditionalGeneration has 16 pos"):
        Translation(max_new_tokens=16).prepare(model, None)  # type: ignore[arg-type]


def test_batches_of_shorter_texts_are_padded_with_no_token() -> None:
    found = TASK.type.concatenate([np.array([[-1.0, 2, 5, 6]]), np.array([[-2.0, 1, 5]])])
    assert found[1].tolist() == [-2, 1, 5, -100]
