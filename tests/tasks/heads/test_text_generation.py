"""Text generation: tokens of prompts, completions and chats, likelihoods and generation against each row alone."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BartConfig,
    BertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
)

from attendrop.attribution.label_positions import IGNORED
from attendrop.errors import AttendropError
from attendrop.runs.prediction_passes import predict_outputs
from attendrop.tasks.base import Task
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.heads.registry import head_of_model
from attendrop.tasks.heads.text_generation import TextGeneration
from attendrop.tasks.table import BadRows
from attendrop.tasks.tokenization import encode_columns

TASK = Task("files", "text-generation", ("prompt",), (), "neg_log_loss", "", (), (), {"max_new_tokens": 5})
ROWS = {"prompt": ["the cat sees", "a", "dog and bird"], "label": [" a dog", " red and blue bird", " good"]}
CHAT = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tiny.save_tiny_llama(tmp_path_factory.mktemp("llama"))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    TASK.head.prepare(model, tokenizer)
    return model.eval(), tokenizer


@pytest.mark.parametrize("side", ["left", "right"])
def test_outputs_are_those_of_each_row_alone(loaded: tuple[Any, Any], side: str) -> None:
    model, tokenizer = loaded
    tokenizer.padding_side = side
    scored = predict_outputs(model, tokenizer, TASK.head, encode_columns(ROWS, TASK, tokenizer, 32), 3, "cpu")
    prompts = encode_columns(TASK.head.without_answers(ROWS), TASK, tokenizer, 32)
    written = predict_outputs(model, tokenizer, TASK.head, prompts, 3, "cpu")
    for row, (prompt, label) in enumerate(zip(ROWS["prompt"], ROWS["label"], strict=True)):
        before, after = tokenizer(prompt)["input_ids"], [*tokenizer(label)["input_ids"], tokenizer.eos_token_id]
        ids = torch.tensor([before + after])
        with torch.no_grad():
            likelihoods = model(ids).logits[0].log_softmax(-1)
            generated = model.generate(torch.tensor([before]), max_new_tokens=5)[0, len(before) :]
        places = range(len(before) - 1, len(before) + len(after) - 1)
        expected = sum(float(likelihoods[place, token]) for place, token in zip(places, after, strict=True))
        assert scored[row].log_likelihood == pytest.approx(expected, rel=1e-4)
        assert scored[row].tokens == len(after)
        assert written[row].text == tokenizer.decode(generated, skip_special_tokens=True)


def test_a_completion_keeps_its_spaces(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    ids = [tokenizer(text)["input_ids"] for text in (" the cat\n\n", "a bird sees the red and blue dog")]
    raw = TextGeneration().concatenate([np.array([[0.0, 0.0, *row]]) for row in ids])  # of batches of other widths
    assert set(raw[0, 2 + len(ids[0]) :]) == {IGNORED}
    assert TextGeneration().row_outputs(raw, {}, tokenizer)[0].text == " the cat\n\n"


def test_what_is_too_long_is_cut_at_the_prompts_beginning_and_the_completions_end(loaded: tuple[Any, Any]) -> None:
    tokenizer = loaded[1]
    before, after = (tokenizer(text)["input_ids"] for text in ("the cat sees a dog", " and a red bird"))
    (row,) = encode_columns({"prompt": ["the cat sees a dog"], "label": [" and a red bird"]}, TASK, tokenizer, 6)[
        "input_ids"
    ]
    assert row == [*before[-3:], *after[:3]]
    (short,) = encode_columns({"prompt": ["the cat sees a dog"], "label": [""]}, TASK, tokenizer, 3)["input_ids"]
    assert short == [*before[-2:], tokenizer.eos_token_id]


# Chats ----------------------------------------------------------------------------------------------------------------


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]


def test_completions_need_a_token_that_ends_them(loaded: tuple[Any, Any]) -> None:
    tokenizer = deepcopy(loaded[1])
    tokenizer.eos_token = None
    with pytest.raises(AttendropError, match="has no end-of-sequence token, with which completions end"):
        encode_columns(ROWS, TASK, tokenizer, 32)
    assert encode_columns(TASK.head.without_answers(ROWS), TASK, tokenizer, 32)["length"]


def test_the_last_reply_of_a_chat_is_the_completion(loaded: tuple[Any, Any]) -> None:
    tokenizer = loaded[1]
    tokenizer.chat_template = CHAT
    columns = {"prompt": [chat("a cat", "red", "a dog", "blue")]}
    encoded = encode_columns(columns, TASK, tokenizer, 64)
    completion = [label for label in encoded["labels"][0] if label != -100]
    assert tokenizer.decode(completion) == "blue;" and encoded["references"] == ["blue"]
    assert tokenizer.decode(encoded["input_ids"][0]) == "[user]a cat;[assistant]red;[user]a dog;[assistant]blue;"
    (prompt,) = encode_columns(TASK.head.without_answers(columns), TASK, tokenizer, 64)["input_ids"]
    assert tokenizer.decode(prompt) == "[user]a cat;[assistant]red;[user]a dog;[assistant]"
    tokenizer.chat_template = "{{ messages | length }}"
    with pytest.raises(AttendropError, match="writes earlier messages in another way"):
        encode_columns(columns, TASK, tokenizer, 64)
    tokenizer.chat_template = None
    with pytest.raises(AttendropError, match="has no chat template; use a model made for chats"):
        encode_columns(columns, TASK, tokenizer, 64)


def test_files_of_chats_need_no_label_column(tmp_path: Path) -> None:
    line = '{"messages": [{"role": "user", "content": "a", "weight": 1}, {"role": "assistant", "content": "b"}]}\n'
    (tmp_path / "chat.jsonl").write_text(line)
    data = load_files(train_file=tmp_path / "chat.jsonl", text_columns=["messages"])
    assert data.task.head == TextGeneration()
    assert data.splits["train"]["prompt"][:] == [chat("a", "b")]


def test_language_models_are_recognized_but_shown_as_classifiers() -> None:
    config = GPT2Config(architectures=["GPT2LMHeadModel"])
    assert head_of_model(config) == TextGeneration()
    assert head_of_model(config, command="attend").kind == "classification"


@pytest.mark.parametrize("config", [BertConfig(), BartConfig(), T5Config()], ids=lambda config: config.model_type)
def test_models_that_see_what_they_are_to_write_are_refused(config: Any) -> None:
    with pytest.raises(AttendropError, match=f"Models of the family '{config.model_type}' do not continue texts"):
        TextGeneration().configure(config)
    decoder = BertConfig(is_decoder=True)
    TextGeneration().configure(decoder)
    assert decoder.architectures == ["BertLMHeadModel"]


def test_nothing_is_sampled_and_generation_ends_at_the_last_position(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=100, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
    model = GPT2LMHeadModel(config).eval()
    model.generation_config.update(do_sample=True, temperature=0.7, top_p=0.9, min_p=0.1)
    TextGeneration().prepare(model, None)  # type: ignore[arg-type]
    assert model.generation_config.max_new_tokens == 8
    model.save_pretrained(tmp_path)  # transformers refuses options that have no effect
    batch = {"input_ids": torch.arange(3, 33).reshape(2, 15), "attention_mask": torch.ones(2, 15, dtype=torch.long)}
    with pytest.warns(UserWarning, match="Only the last 8 tokens of longer prompts are read"):
        found = [TextGeneration().generate(model, batch) for _ in range(2)]
    assert torch.equal(*found) and found[0].shape[1] <= 8
    with pytest.raises(AttendropError, match="max_new_tokens=16 is too much: GPT2LMHeadModel has 16 positions"):
        TextGeneration(max_new_tokens=16).prepare(model, None)  # type: ignore[arg-type]


def test_how_much_is_written_does_not_depend_on_the_other_prompts(loaded: tuple[Any, Any]) -> None:
    model, head = deepcopy(loaded[0]), TextGeneration()
    model.generation_config.update(max_length=9, max_new_tokens=None, eos_token_id=None)
    head.prepare(model, loaded[1])
    batch = {"input_ids": torch.arange(5, 29).reshape(2, 12), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    batch["attention_mask"][0, 3:] = 0  # as the prompts are padded
    alone = {name: values[:1, :3] for name, values in batch.items()}
    assert torch.equal(head.generate(model, batch)[:1], head.generate(model, alone))


@pytest.mark.parametrize("refuses", ["{{ raise_exception('no system role') }}", "{{ messages[7]['role'] + 'x' }}"])
def test_a_template_that_refuses_a_chat_is_no_traceback(loaded: tuple[Any, Any], refuses: str) -> None:
    tokenizer = deepcopy(loaded[1])
    tokenizer.chat_template = refuses
    with pytest.raises(AttendropError, match=r"chat template of the model's tokenizer refuses a chat .*'user: hello"):
        TextGeneration().tokenize({"prompt": [chat("hello", "there")]}, tokenizer, None)


def test_scored_chats_need_a_reply(tmp_path: Path) -> None:
    rows = [{"messages": chat("a", "b")}, {"messages": chat("a")}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = BadRows(skip=True)
    options: Any = {"text_columns": ["messages"], "head": TextGeneration(), "size": 9}
    (chunk,) = stream_file(tmp_path / "a.jsonl", bad=bad, scored=True, **options)
    assert len(chunk.table.rows) == 1 and "do not end with a reply of the assistant" in bad.skipped[0].reason
    (chunk,) = stream_file(tmp_path / "a.jsonl", bad=BadRows(), **options)
    assert len(chunk.table.rows) == 2
