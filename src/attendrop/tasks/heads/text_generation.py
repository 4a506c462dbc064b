"""Text generation: the completion of a prompt, or the reply of a chat, from a causal language model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from datasets import Dataset
from jinja2 import TemplateError
from torch import Tensor
from transformers import BatchEncoding, PreTrainedConfig, PreTrainedModel

from attendrop.attribution.label_positions import IGNORED
from attendrop.errors import AttendropError
from attendrop.model_support.models import position_limit
from attendrop.tasks.heads.base import Columns, Metric, Tokenizer
from attendrop.tasks.heads.model_classes import is_encoder
from attendrop.tasks.heads.written_text import LIKELIHOOD_METRICS, WritingHead, log_likelihoods, word_counts
from attendrop.tasks.values import json_list, text_problem

# A prompt: a text, or the messages of a chat, with their roles and contents.
Prompt = str | list[dict[str, str]]
_ASSISTANT = "assistant"


@dataclass(frozen=True)
class TextGeneration(WritingHead):
    """Head that completes prompts. The loss is on the tokens of the completion only, the end of the text included.

    A prompt is a text, or a list of messages; if the list ends with a message of the assistant, that is the completion.
    Models are scored by the likelihood of the completions, in one pass; for predictions they generate.
    """

    kind = "text-generation"
    label_type = "completion"
    inputs = ("prompt",)
    needs_labels = False
    auto_class = "AutoModelForCausalLM"
    peft_task_type = "CAUSAL_LM"
    pipeline_tag = "text-generation"
    example = """\
inputs = tokenizer(prompt, return_tensors="pt")
written = model.generate(**inputs$arguments)[0, inputs["input_ids"].shape[1] :]
completion = tokenizer.decode(written, skip_special_tokens=True)"""
    default_metrics = ("neg_log_loss", "perplexity")
    metric_aliases: ClassVar = {"loss": "neg_log_loss"}
    answer_column = "completion"
    predicts = "a completion"
    labels_are = "completions"
    metrics: ClassVar[Mapping[str, Metric]] = LIKELIHOOD_METRICS
    refused: ClassVar = {
        "prune": "layers of constant attention are chosen and measured for encoders",
        "export": "generation runs the model once for each token; load the folder with transformers, or with a program "
        "that reads its files",
        "attend": "the page shows models with one prediction for each text or word",
    }

    def configure(self, config: PreTrainedConfig) -> None:
        """Refuse models whose tokens see those after them, which would be scored on tokens that they have seen."""
        if self._class_name(config) is None or is_encoder(config) or config.is_encoder_decoder:
            raise AttendropError(
                f"Models of the family {config.model_type!r} do not continue texts; use a causal language model, such "
                "as GPT-2, Llama or Qwen."
            )
        super().configure(config)

    def prepare(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        """As for other heads; a ``max_length``, which would count a batch's prompts and padding, is of new tokens."""
        generation = model.generation_config
        if generation is not None and generation.max_new_tokens is None:
            generation.max_new_tokens, generation.max_length = generation.max_length, None
        super().prepare(model, tokenizer)

    @classmethod
    def may_read(cls, texts: Sequence[Any]) -> bool:
        read = [_read(text) for text in texts]
        return any(isinstance(each, list) and each and isinstance(each[0], dict) for each in read)

    @staticmethod
    def text_problem(value: Any, column: int = 0) -> str | None:
        """Accept texts, and lists of messages, also as JSON."""
        read = _read(value)
        if not isinstance(read, list):
            return text_problem(value)
        for number, message in enumerate(read, start=1):
            if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
                return f"message {number} of {len(read)} is not an object with the texts 'role' and 'content'"
        return None if read else "there are no messages"

    @classmethod
    def read_texts(cls, texts: Sequence[Any]) -> list[Prompt]:
        """Return the text, or the messages with their roles and contents alone."""
        read = _read(texts[0])
        if not isinstance(read, list):
            return [str(read)]
        return [[{"role": message["role"], "content": message["content"]} for message in read]]

    def row_problem(self, texts: Sequence[Any], label: Any) -> str | None:
        """Refuse prompts without a completion, and chats with one beside their messages."""
        prompt = texts[0]
        if isinstance(prompt, str):
            return None if label is not None else "there is no completion; name its column as label column"
        if label is not None:
            return "the last message is the completion; omit the label column (chats to classify are each one text)"
        before, reply = _without_reply(prompt)
        return "the messages do not end with a reply of the assistant" if reply is None or not before else None

    def without_answers(self, columns: Columns) -> dict[str, Any]:
        return {**super().without_answers(columns), "prompt": [prompt for prompt, _ in _pairs(columns)]}

    def tokenize(self, columns: Columns, tokenizer: Tokenizer, max_length: int | None) -> BatchEncoding:
        """Tokenize prompts and completions one after the other; add ``labels`` and ``references`` if these are known.

        If the two are longer than ``max_length`` together, the prompt keeps its end, at least half of ``max_length``,
        and the completion is truncated at its end.
        """
        pairs = _pairs(columns)
        found: dict[str, list[Any]] = {"input_ids": [], "attention_mask": []}
        if all(completion is not None for _, completion in pairs):
            found |= {"labels": [], "references": [completion for _, completion in pairs]}
        for prompt, completion in pairs:
            before, after = _tokens(prompt, completion, tokenizer)
            if max_length is not None:
                after = after[: max_length - min(len(before), max_length // 2)]
                before = before[max(0, len(before) + len(after) - max_length) :]
            found["input_ids"].append(before + after)
            found["attention_mask"].append([1] * len(before + after))
            if "labels" in found:
                found["labels"].append([IGNORED] * len(before) + after)
        return BatchEncoding(found)

    def targets(self, labels: Sequence[Any], encoded: BatchEncoding, tokenizer: Tokenizer) -> list[list[int]]:
        return list(encoded["labels"])

    def generate(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        """Generate from prompts that are padded on the right; returns the new tokens."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        width = ids.shape[1]
        shifts = (width - mask.sum(1))[:, None]
        places = (torch.arange(width, device=ids.device) - shifts) % width  # padding moves to the left
        ids, mask = ids.gather(1, places), mask.gather(1, places)
        limit, new = position_limit(model), model.generation_config.max_new_tokens
        if limit is not None and new is not None and width > limit - new:
            width = limit - new
            ids, mask = ids[:, -width:], mask[:, -width:]
            warnings.warn(
                f"Only the last {width} tokens of longer prompts are read, so that {new} new ones fit into the model's "
                f"{limit} positions.",
                stacklevel=2,
            )
        found: Tensor = model.generate(input_ids=ids, attention_mask=mask)
        return found[:, width:]

    def raw_outputs(self, model: PreTrainedModel, batch: Mapping[str, Any], outputs: Any) -> Tensor:
        """Compute the likelihoods of completions; nothing is generated where these are known."""
        return log_likelihoods(outputs.logits[:, :-1], batch["labels"][:, 1:])

    def texts(self, rows: Dataset) -> list[tuple[str, ...]]:
        prompts = [prompt for prompt, _ in _pairs(rows.to_dict())]
        return [(prompt if isinstance(prompt, str) else _written(prompt),) for prompt in prompts]

    def describe_labels(self, rows: Dataset) -> dict[str, Any]:
        return word_counts([completion or "" for _, completion in _pairs(rows.to_dict())])


def _read(value: Any) -> Any:
    """Return the list of messages of a text in JSON; anything else as it is."""
    found = json_list(value) if isinstance(value, str) else None
    return found if found is not None and all(isinstance(each, dict) for each in found) else value


def _pairs(columns: Columns) -> list[tuple[Prompt, str | None]]:
    """Return the prompt and the completion of each row; None where there is no completion."""
    if "label" in columns:
        return list(zip(columns["prompt"], columns["label"], strict=True))
    return [_without_reply(prompt) for prompt in columns["prompt"]]


def _written(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


def _without_reply(prompt: Prompt) -> tuple[Prompt, str | None]:
    """Split a chat before its last message, if that is of the assistant; None for anything else."""
    if isinstance(prompt, str) or not prompt or prompt[-1]["role"] != _ASSISTANT:
        return prompt, None
    return prompt[:-1], prompt[-1]["content"]


def _tokens(prompt: Prompt, completion: str | None, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Tokenize a prompt and its completion, with the end of the text."""
    if not isinstance(prompt, str):
        return _chat_tokens(prompt, completion, tokenizer)
    before = list(tokenizer(prompt, verbose=False)["input_ids"])
    if before and before[-1] == tokenizer.eos_token_id:  # some tokenizers end every text
        before.pop()
    if completion is None:
        return before, []
    if tokenizer.eos_token_id is None:
        raise AttendropError(
            f"{type(tokenizer).__name__} has no end-of-sequence token, with which completions end; set its eos_token, "
            "and save it with the model."
        )
    return before, [*_plain_tokens(completion, tokenizer), tokenizer.eos_token_id]


def _chat_tokens(
    messages: list[dict[str, str]], reply: str | None, tokenizer: Tokenizer
) -> tuple[list[int], list[int]]:
    """Tokenize a chat up to the reply, and the reply, by the tokenizer's chat template."""
    if not tokenizer.chat_template:
        raise AttendropError(
            "the rows have messages, and the model's tokenizer has no chat template; use a model made for chats, or "
            "prompts and completions."
        )
    before = _templated(messages, tokenizer, add_generation_prompt=True)
    if reply is None:
        return _plain_tokens(before, tokenizer), []
    whole = _templated([*messages, {"role": _ASSISTANT, "content": reply}], tokenizer)
    if not whole.startswith(before):
        raise AttendropError(
            "the chat template of the model's tokenizer writes earlier messages in another way before a reply, so "
            "the reply cannot be told from them; use prompts and completions."
        )
    return _plain_tokens(before, tokenizer), _plain_tokens(whole.removeprefix(before), tokenizer)


def _templated(messages: list[dict[str, str]], tokenizer: Tokenizer, **options: Any) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
    except (TemplateError, ValueError, IndexError) as error:
        begin = _written(messages)[:60] or "without a message"
        raise AttendropError(
            f"the chat template of the model's tokenizer refuses a chat ({error}): {begin!r}; correct it, or use a "
            "model whose template knows such chats."
        ) from None


def _plain_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
