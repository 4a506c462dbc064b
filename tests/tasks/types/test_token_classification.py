"""Tags of words: which token predicts which word, files of one's own, truncated words, and scores."""

import json
import random
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqeval.metrics
import sklearn.metrics as skm
from helpers.task_examples import FAMILIES
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from attendrop.tasks.base import TaskData, encode
from attendrop.tasks.custom_files import files_task, load_files
from attendrop.tasks.entities import to_iob2
from attendrop.tasks.metrics import compute_scores, label_mapping, read_as
from attendrop.tasks.tokenization import columns_of
from attendrop.tasks.types.base import row_array
from attendrop.tasks.types.token_classification import TokenClassification

HEAD = TokenClassification(("O", "B-PER", "I-PER"))
# Of the words of the tiny vocabulary, "catdog" is none: its tokens are unknown, but for a hyphen between two words.
TOKENS = [["the", "cat-dog", "sees"], ["a", "bird"]]
TAGS = [["O", "B-PER", "O"], ["O", "B-PER"]]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path: Path, **options: Any) -> TaskData:
    return load_files(train_file=path, **({"text_columns": ["tokens"], "label_column": "tags"} | options))


@pytest.fixture
def data(tmp_path: Path) -> TaskData:
    rows = [{"tokens": words, "tags": tags} for words, tags in zip(TOKENS, TAGS, strict=True)]
    return load(write(tmp_path / "a.jsonl", rows))


def test_the_first_token_of_a_word_has_its_tag(data: TaskData, tokenizer: PreTrainedTokenizerBase) -> None:
    rows = encode(data.splits["train"], data.task, tokenizer, 16)
    assert tokenizer.convert_ids_to_tokens(rows[0]["input_ids"])[1:-1] == ["the", "cat", "[UNK]", "dog", "sees"]
    assert data.task.label_names == ("O", "B-PER")
    assert rows["labels"][:] == [[-100, 0, 1, -100, -100, 0, -100], [-100, 0, 1, -100]]


def byte_level(folder: Path, pre_tokenizer: Any) -> Any:
    """Train the vocabulary of a byte-level tokenizer."""
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokens.train_from_iterator(["a dog's cat sees the dog's cat"] * 3, trainer)
    tokens.model.save(str(folder))
    return tokens


@pytest.mark.parametrize("kind", ["Llama 3", "Qwen"])
def test_words_are_read_as_after_a_space(kind: str, tmp_path: Path) -> None:
    """Llama 3's divides words before; a class puts a space before each part. Also when it is loaded again."""
    if kind == "Qwen":
        byte_level(tmp_path, pre_tokenizers.ByteLevel(add_prefix_space=False))
        made: Any = Qwen2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    else:
        divide = pre_tokenizers.Split(Regex(r"'s|[^\r\n\p{L}\p{N}]?\p{L}+|\s+"), "isolated")
        parts = [divide, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        made = PreTrainedTokenizerFast(tokenizer_object=byte_level(tmp_path, pre_tokenizers.Sequence(parts)))
    made.save_pretrained(tmp_path / "model")
    for place, again in (("model", "run"), ("run", "run")):
        tokenizer = HEAD.load_tokenizer(str(tmp_path / place))
        encoded = tokenizer(["cat", "dog's", "cat"], is_split_into_words=True)
        assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == ["Ġcat", "Ġdog", "'s", "Ġcat"]
        assert encoded.word_ids() == [0, 1, 1, 2]
        tokenizer.save_pretrained(tmp_path / again)


def test_words_beyond_the_maximum_length_are_wrong_and_written_as_none(
    data: TaskData, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = encode(data.splits["train"], data.task, tokenizer, 4)
    task_type, encoded = data.task.type, columns_of(rows)
    perfect = np.full((2, 4, 2), -100.0)
    perfect[:, 1], perfect[:, 2] = (1.0, 0.0), (0.0, 1.0)
    outputs = task_type.row_outputs(perfect, encoded, tokenizer)
    assert task_type.decode(outputs) == [[0, 1, -1], [0, 1]]
    written = task_type.prediction_rows(outputs, probabilities=True)
    assert [row["tags"] for row in written] == [["O", "B-PER", None], ["O", "B-PER"]]
    assert written[0]["probability_O"] == pytest.approx([0.731059, 0.268941, None])
    scores = compute_scores(data.task, outputs, task_type.references(encoded))
    assert scores["entity_f1"] == 1 and scores["accuracy"] == 1  # the word that was cut is read as "O", which it is
    parts_of_speech = TokenClassification(("DT", "NN"))
    assert parts_of_speech.metrics["accuracy"].score(task_type.references(encoded), outputs) == 0.8


def test_tags_that_training_lacks_can_be_wrong(tmp_path: Path) -> None:
    """Scores are those of seqeval and scikit-learn, of the tags as they are written."""
    draw = random.Random(0)
    known, new = ["O", "B-X", "I-X", "B-Y"], ["I-Y", "B-Z", "I-Z"]  # I-Y makes an entity of a known type longer
    tags = [[draw.choice(known + new) for _ in range(9)] for _ in range(30)]
    train = write(tmp_path / "a.jsonl", [{"tokens": list("abcd"), "tags": known}])
    dev = write(tmp_path / "b.jsonl", [{"tokens": list("abcdefghi"), "tags": row} for row in tags])
    data = load(train, eval_file=dev, unknown_labels="wrong")
    task_type = data.task.type
    assert set(task_type.label_names) == set(known) and set(task_type.unknown_names) == set(new)
    gold = task_type.references({"word_labels": data.splits["dev"]["label"]})
    logits = row_array(list(np.random.default_rng(0).normal(size=(30, 9, 4))))
    names = [[task_type.label_names[tag] for tag in row.argmax(axis=1)] for row in logits]
    written = [to_iob2(row) for row in tags]
    flat_gold, flat_names = [*chain(*written)], [*chain(*names)]
    scores = compute_scores(data.task, logits, gold)
    assert scores == pytest.approx(
        {
            "entity_f1": seqeval.metrics.f1_score(written, names),
            "entity_precision": seqeval.metrics.precision_score(written, names),
            "entity_recall": seqeval.metrics.recall_score(written, names),
            "accuracy": skm.accuracy_score(flat_gold, flat_names),
            "f1_macro": skm.f1_score(flat_gold, flat_names, labels=sorted({*flat_gold}), average="macro"),
        }
    )
    assert task_type.unknown_counts(gold) == {name: flat_gold.count(name) for name in task_type.unknown_names}


def test_iob1_becomes_iob2_which_stays() -> None:
    for iob1, iob2 in (
        ("I-A I-A O I-A", "B-A I-A O B-A"),
        ("I-A B-A I-A", "B-A B-A I-A"),
        ("I-A I-B", "B-A B-B"),
        ("B-A E-A S-B O", "B-A E-A S-B O"),
    ):
        assert to_iob2(iob1.split()) == to_iob2(iob2.split()) == iob2.split()


def test_the_side_of_padding_of_a_tokenizer_does_not_matter(tmp_path: Path) -> None:
    """Llama's and Gemma's pad on the left, and positions of words are counted from the start."""
    FAMILIES["roberta"](tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"padding_side": "left"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert HEAD.load_tokenizer(str(tmp_path)).padding_side == "right"


def test_tags_in_another_order_are_read_by_name() -> None:
    own, theirs = TokenClassification(("O", "B-LOC", "B-PER")), TokenClassification(("O", "B-PER", "B-LOC"))
    logits = row_array([np.eye(3)[[1, 0, 2]], np.eye(3)[[2]]])
    reading = label_mapping(files_task(["tokens"], theirs), own)
    assert reading == [0, 2, 1]
    found = theirs.prediction_rows(read_as(logits, reading, 3), probabilities=False)
    assert found == own.prediction_rows(logits, probabilities=False)
