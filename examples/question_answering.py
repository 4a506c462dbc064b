"""Find the answer to a question in a text, as in SQuAD: the first and the last token of a span.

    python examples/question_answering.py --model bert-base-uncased --train-file rows.jsonl --output-dir runs/answers

Each line of the file has a question, a context, and answers as SQuAD has them, `{"text": ["in 1832"], "answer_start":
[17]}`, without any where the context has no answer. Without a file, questions are made about clubs.
"""

import argparse

import torch
from datasets import Dataset
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding, TrainingArguments

from attendrop import ADDrop, RegularizedTrainer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="bert-base-uncased", help="a model with a fast tokenizer")
parser.add_argument("--train-file", help="JSON lines: question, context, answers")
parser.add_argument("--epochs", type=float, default=2)
parser.add_argument("--max-length", type=int, default=128)
parser.add_argument("--output-dir", default="runs/answers")
options = parser.parse_args()


def clubs(count=64):
    """Make questions about clubs; every fourth asks for what the text does not say."""
    for number in range(count):
        town, year = ("Lyon", "Porto", "Ghent", "Turin")[number % 4], str(1850 + number)
        context = f"The club of {town} was founded in {year}, and plays in {('blue', 'red', 'white')[number % 3]}."
        question, answer = (("When was it founded?", year), ("Which town is it from?", town))[number % 2]
        found = {"text": [answer], "answer_start": [context.index(answer)]}
        if number % 4 == 3:
            question, found = "Who owns it?", {"text": [], "answer_start": []}
        yield {"question": question, "context": context, "answers": found}


rows = Dataset.from_list(list(clubs())) if options.train_file is None else Dataset.from_json(options.train_file)
rows = rows.train_test_split(0.25, seed=0)
tokenizer = AutoTokenizer.from_pretrained(options.model)
max_length = min(options.max_length, tokenizer.model_max_length)
model = AutoModelForQuestionAnswering.from_pretrained(options.model)


def encode(batch):
    """Tokenize long texts in windows; a window without the answer has the first token as its start and end."""
    encoded = tokenizer(
        batch["question"],
        batch["context"],
        truncation="only_second",
        max_length=max_length,
        stride=max_length // 4,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    spans, masks = [], []
    for window, (row, offsets) in enumerate(
        zip(encoded["overflow_to_sample_mapping"], encoded["offset_mapping"], strict=True)
    ):
        of_text = [text == 1 for text in encoded.sequence_ids(window)]
        # Methods that read predictions look for answers where this is 1: in the text, and at the first token, which
        # says that there is none. The model does not receive it.
        masks.append([1, *map(int, of_text[1:])])
        answers = batch["answers"][row]
        spans.append((0, 0))
        if answers["text"]:
            first = answers["answer_start"][0]
            last = first + len(answers["text"][0])
            inside = [
                token for token, (begin, end) in enumerate(offsets) if of_text[token] and first < end and begin < last
            ]
            if inside and offsets[inside[0]][0] <= first and last <= offsets[inside[-1]][1]:
                spans[-1] = (inside[0], inside[-1])
    starts, ends = map(list, zip(*spans, strict=True))
    kept = {name: encoded[name] for name in tokenizer.model_input_names if name in encoded}
    return kept | {"start_positions": starts, "end_positions": ends, "answer_mask": masks}


encoded = rows.map(encode, batched=True, remove_columns=rows["train"].column_names)
trainer = RegularizedTrainer(
    model=model,
    args=TrainingArguments(
        options.output_dir,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        learning_rate=5e-5,
        logging_steps=4,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=encoded["train"],
    data_collator=DataCollatorWithPadding(tokenizer),
    regularizer=ADDrop(),  # attributes the logits of the predicted span
)
trainer.train()
trainer.save_model()
tokenizer.save_pretrained(options.output_dir)


def answer(question, context):
    """Return the span of the text, or the first token for none, with the largest sum of its two logits."""
    limits = {"truncation": "only_second", "max_length": max_length}
    inputs = tokenizer(question, context, return_offsets_mapping=True, return_tensors="pt", **limits)
    offsets, of_text = inputs.pop("offset_mapping")[0], torch.tensor([text == 1 for text in inputs.sequence_ids()])
    with torch.no_grad():
        outputs = trainer.model.eval()(**inputs.to(trainer.model.device))
    sums = (outputs.start_logits[0][:, None] + outputs.end_logits[0]).cpu()
    allowed = (of_text[:, None] & of_text).triu().tril(29)  # at most 30 tokens
    allowed[0, 0] = True
    first, last = divmod(int(sums.where(allowed, -torch.inf).argmax()), len(sums))
    return "" if last == 0 else context[offsets[first][0] : offsets[last][1]].strip()


right = [answer(row["question"], row["context"]) in (row["answers"]["text"] or [""]) for row in rows["test"]]
print(f"Exact match on other questions: {sum(right) / len(right):.2f}")
