"""A generator of English sentences with acceptability judgements: the data of the demonstration.

Sentences come in minimal pairs. The bad one has the wrong number or gender of one word, or a misplaced negation:

    agreement   The sisters near the king are happy again.      * The sisters near the king is happy again.
    reflexive   The king near the sisters hurt himself.         * The king near the sisters hurt themselves.
    polarity    No king near the sisters has ever been here.    * The king near no sisters has ever been here.

A bag of words does not predict the class: polarity pairs have the same words, and all other words occur as often in
good sentences as in bad ones. In training and development sentences, at most one noun is between the two words that
must agree, often none, and not all of these nouns mislead. The out-of-distribution set ("ood") has two or three of
them, in constructions that do not occur in training, and all mislead. No sentence is in two splits, and the
sentences of a pair are always in the same split.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from datasets import Dataset

from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.sources import check_splits

GRAMMAR = Task(
    name="grammar",
    kind="classification",
    text_columns=("sentence",),
    label_names=("unacceptable", "acceptable"),
    metric="accuracy",
    description="generated: agreement, reflexives and polarity across misleading nouns",
    other_metrics=("matthews_correlation",),
)
_PAIRS = {"train": 500, "dev": 200, "ood": 200}
# Nouns by their reflexive, which has both number and gender.
_MEN = ("king", "boy", "uncle", "prince", "father", "brother", "son", "actor")
_WOMEN = ("queen", "girl", "aunt", "nun", "mother", "sister", "daughter", "widow")
_NOUNS = {"himself": _MEN, "herself": _WOMEN, "themselves": tuple(noun + "s" for noun in _MEN + _WOMEN)}
_REFLEXIVES = tuple(_NOUNS)
_NUMBERS = ("himself", "herself", "themselves", "themselves")  # half plural: "are" predicts nothing
_OPENINGS = ("", "", "in the morning, ", "last week, ", "of course, ", "at the door, ", "after the war, ", "today, ")
_SHORT = ("P 1", "that V 1")  # P: a preposition, V: a verb, digits: intervening nouns
_LONG = ("P 1 P 2 P 3", "that 1 P 2 V", "that V 1 that V 2", "P 1 that 2 P 3 V")
_PREPOSITIONS = ("near", "behind", "beside", "opposite")
_VERBS = ("admired", "knew", "helped", "liked", "visited", "called", "trusted", "met")
_BE = (("is", "are"), ("was", "were"))
_STATES = ("happy again", "very tired", "in the garden", "at home again", "too old for this", "ready to leave")
_HURT = ("hurt", "praised", "defended", "blamed", "saved", "betrayed")
_ENDS = ("again", "in the garden", "at the party", "for years", "in public", "without a word")
_EVER = ("been here", "told the truth", "seen the sea", "lost a game", "read this book", "sung in public")
Choice = TypeVar("Choice")


class _Writer:
    """Sampler of sentences. Python guarantees a reproducible sequence only for ``Random.random``."""

    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random
        self.long = False

    def pick(self, choices: Sequence[Choice]) -> Choice:
        return choices[int(self.uniform() * len(choices))]

    def between(self, misleading: Sequence[str], harmless: Sequence[str]) -> list[str]:
        """Sample reflexives of intervening nouns: one, mostly misleading; in long sentences three, all misleading."""
        if self.long:
            return [self.pick(misleading) for _ in range(3)]
        return [self.pick(misleading if self.uniform() < 0.7 else harmless)]

    def phrase(self, subject: str, between: Sequence[str], shortest: tuple[str, ...] = ("", "")) -> str:
        """Write the subject and what precedes its verb; with the default ``shortest``, half have no noun between."""
        nouns = [f"the {self.pick(_NOUNS[reflexive])}" for reflexive in (subject, *between)]
        words = [nouns[0]]
        for token in self.pick(_LONG if self.long else _SHORT + shortest).split():
            if token.isdigit():
                words.append(nouns[int(token)])
            else:
                words.append(self.pick(_PREPOSITIONS) if token == "P" else self.pick(_VERBS) if token == "V" else token)
        return " ".join(words)

    def twins(self, good: str, bad: str) -> tuple[str, str]:
        """Make sentences of both clauses, with the same opening."""
        opening = self.pick(_OPENINGS)
        return _sentence(opening + good), _sentence(opening + bad)


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


def _agreement(write: _Writer) -> tuple[str, str]:
    subject = write.pick(_NUMBERS)
    plural = subject == "themselves"
    same, other = (["themselves"], _NUMBERS[:2]) if plural else (_NUMBERS[:2], ["themselves"])
    phrase = write.phrase(subject, write.between(other, same))
    be, state = write.pick(_BE), write.pick(_STATES)
    return write.twins(f"{phrase} {be[plural]} {state}", f"{phrase} {be[not plural]} {state}")


def _reflexive(write: _Writer) -> tuple[str, str]:
    subject = write.pick(_REFLEXIVES)
    others = [reflexive for reflexive in _REFLEXIVES if reflexive != subject]
    between = write.between(others, [subject])
    phrase, verb, end = write.phrase(subject, between), write.pick(_HURT), write.pick(_ENDS)
    wrong = between[0] if between[0] != subject else write.pick(others)
    return write.twins(f"{phrase} {verb} {subject} {end}", f"{phrase} {verb} {wrong} {end}")


def _polarity(write: _Writer) -> tuple[str, str]:
    subject = write.pick(_NUMBERS)
    phrase = write.phrase(subject, write.between(_NUMBERS, _NUMBERS), shortest=())
    predicate = f"{'have' if subject == 'themselves' else 'has'} ever {write.pick(_EVER)}"
    before, _, last_noun = phrase.rpartition("the ")
    return write.twins(f"no {phrase.removeprefix('the ')} {predicate}", f"{before}no {last_noun} {predicate}")


_KINDS: tuple[Callable[[_Writer], tuple[str, str]], ...] = (_agreement, _reflexive, _agreement, _reflexive, _polarity)


@cache
def _generate(seed: int) -> dict[str, list[tuple[str, int]]]:
    """Generate the splits: (sentence, class) in random order, half of them good."""
    write, seen = _Writer(seed), set[str]()
    splits = {}
    for split, pairs in _PAIRS.items():
        write.long = split == "ood"
        rows: list[tuple[str, int]] = []
        while len(rows) < 2 * pairs:
            good, bad = _KINDS[len(rows) // 2 % len(_KINDS)](write)
            if seen.isdisjoint((good, bad)):
                seen |= {good, bad}
                rows += [(good, 1), (bad, 0)]
        splits[split] = sorted(rows, key=lambda _: write.uniform())
    return splits


def load_grammar(splits: Sequence[str], seed: int = 0) -> TaskData:
    """Generate splits: "train" (1,000 sentences), "dev" (400) and, always with "dev", "ood" (400).

    Args:
        splits: Names of the splits.
        seed: The same seed gives the same sentences on every machine.

    Raises:
        AttendropError: A split is unknown.
    """
    check_splits(GRAMMAR, splits, _PAIRS)
    wanted = dict.fromkeys([*splits, *(["ood"] if "dev" in splits else [])])
    generated = _generate(seed)
    columns = {
        split: {
            "text": [text for text, _ in generated[split]],
            "label": [label for _, label in generated[split]],
            "index": list(range(len(generated[split]))),
        }
        for split in wanted
    }
    loaded = {split: Dataset.from_dict(rows) for split, rows in columns.items()}
    return TaskData(GRAMMAR, loaded, f"generated (seed {seed})")


class GrammarSource:
    """The generated data as the source of a task."""

    task = GRAMMAR

    def load(self, data_dir: str | Path | None, splits: Sequence[str]) -> TaskData:
        """Generate splits; ``data_dir`` has no effect."""
        return load_grammar(splits)

    def files(self, data_dir: str | Path | None) -> list[Path]:
        """Return no files."""
        return []
