"""The generated data: the same everywhere, balanced, in disjoint splits, and not solvable by counting words."""

import hashlib
import re
from collections import Counter

import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from attendrop.errors import AttendropError
from attendrop.tasks.grammar import load_grammar
from attendrop.tasks.registry import load_task

SPLITS = load_task("grammar").splits
ROWS = {split: list(zip(data["text"], data["label"], strict=True)) for split, data in SPLITS.items()}
SHA256 = "514299be9eb1355e74a627aea41803d862a5f0d50dc4140b4a3b15f233aace15"


def test_it_is_the_same_everywhere() -> None:
    """A change of the sentences changes every published figure: it must be meant."""
    text = "\n".join(f"{split} {label} {text}" for split, rows in ROWS.items() for text, label in rows)
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256


def test_sizes_balance_and_columns() -> None:
    assert {split: len(rows) for split, rows in ROWS.items()} == {"train": 1000, "dev": 400, "ood": 400}
    for split, rows in ROWS.items():
        assert Counter(label for _, label in rows) == {0: len(rows) // 2, 1: len(rows) // 2}
        assert SPLITS[split].column_names == ["text", "label", "index"]
        assert len({label for _, label in rows[:10]}) == 2  # in random order


def test_no_sentence_and_no_pair_in_two_splits() -> None:
    texts = [text for rows in ROWS.values() for text, _ in rows]
    assert len(set(texts)) == len(texts)
    good, bad = (
        {(split, skeleton(text)) for split in ROWS for text, label in ROWS[split] if label == c} for c in (1, 0)
    )
    assert good == bad  # every twin is in its own split
    assert len({skeleton for _, skeleton in good}) == len(good) == len(texts) // 2  # and no pair in two


def skeleton(text: str) -> str:
    """What twins share: the sentence without the word, or the place of the negation, that makes the difference."""
    text = re.sub(r"\b(no|the)\b", "DET", text.lower()) if " ever " in text else text
    for forms in ("is|are", "was|were", "himself|herself|themselves"):
        text = re.sub(rf"\b({forms})\b", forms, text)
    return text


def test_out_of_distribution_sentences_are_longer() -> None:
    words = {split: sum(len(text.split()) for text, _ in rows) / len(rows) for split, rows in ROWS.items()}
    assert 9 < words["train"] < 12 and abs(words["train"] - words["dev"]) < 0.5 and words["ood"] > words["train"] + 3


@pytest.mark.parametrize("split", ["dev", "ood"])
def test_counting_words_does_not_solve_it(split: str) -> None:
    vectorizer = CountVectorizer()
    train = vectorizer.fit_transform([text for text, _ in ROWS["train"]])
    classifier = LogisticRegression(max_iter=1000).fit(train, [label for _, label in ROWS["train"]])
    features = vectorizer.transform([text for text, _ in ROWS[split]])
    assert abs(classifier.score(features, [label for _, label in ROWS[split]]) - 0.5) < 0.06


def test_seed_and_splits() -> None:
    assert load_grammar(["train"]).splits["train"]["text"] == SPLITS["train"]["text"]
    assert load_grammar(["train"], seed=1).splits["train"]["text"] != SPLITS["train"]["text"]
    assert load_grammar(["ood"], seed=1).source == "generated (seed 1)"
    assert list(load_task("grammar", splits=["ood"]).splits) == ["ood"]
    with pytest.raises(AttendropError, match=r"grammar has no split 'odd'; did you mean 'ood'\?"):
        load_task("grammar", splits=["odd"])
