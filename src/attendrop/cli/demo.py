"""`attendrop demo`: a comparison on generated messages to a travel agency.

The topic of a message is a booking and what the customer wants, such as "ferry: refund". Training messages use half of
the phrases for each of the two, test messages all of them: three quarters of these have a phrase that no training
message has. All messages name a place, which says nothing about the topic.
"""

from __future__ import annotations

import logging
import random
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from attendrop.cli import app as ui
from attendrop.errors import AttendropError
from attendrop.runs.config import checked
from attendrop.studies.comparison import Comparison
from attendrop.support.files import write_text
from attendrop.wording import csv_table

SETTINGS = shlex.split("--methods finetune,ad-drop --epochs 10 --label-names none")
COLUMNS = ("message", "topic")
# Rows of each topic.
TRAIN_ROWS, TEST_ROWS = 5, 50
Row = tuple[str, str]
# Phrases for what was booked, and for what is wanted.
BOOKINGS = {
    "flight": ("flight", "plane ticket", "seat on the plane", "air ticket"),
    "hotel": ("hotel room", "double room", "room at the inn", "overnight stay"),
    "car": ("rental car", "hire car", "van", "convertible"),
    "train": ("train ticket", "train journey", "rail pass", "sleeping car"),
    "ferry": ("ferry", "boat crossing", "cabin on the ship", "ferry ticket"),
    "tour": ("guided tour", "city walk", "excursion", "museum tour"),
    "transfer": ("airport transfer", "airport shuttle", "pick-up at the airport", "airport taxi"),
    "show": ("concert", "opera ticket", "seat at the show", "theatre evening"),
}
WISHES = {
    "cancel": (
        "Please cancel my {}.",
        "I no longer need my {}.",
        "We will not make it to our {} after all.",
        "Something came up, so please drop the {}.",
        "Can I still get out of my {}?",
        "Take the {} off our booking, please.",
        "My plans changed and I have no use for the {}.",
        "I want to give up my {}.",
    ),
    "other date": (
        "Can I move my {} to another day?",
        "Please put my {} back by a day.",
        "Is there a later date for our {}?",
        "I would like to have my {} on Friday instead.",
        "We booked our {} for the wrong week.",
        "Could our {} be a week earlier?",
        "Please reschedule my {}.",
        "The day of my {} does not suit me any more.",
    ),
    "refund": (
        "When do I get my money back for my {}?",
        "I am still waiting for the refund of my {}.",
        "You still owe me for my {}.",
        "Nothing has been paid back for our {}.",
        "Our {} did not take place, where is our money?",
        "How long does it take until you return what I paid for my {}?",
        "My account shows no repayment for the {}.",
        "Please reimburse my {}.",
    ),
    "receipt": (
        "Please send me a receipt for my {}.",
        "I need an invoice for my {}.",
        "My employer wants to see what our {} cost.",
        "Can you give me proof of payment for my {}?",
        "I need a bill with my company's name for the {}.",
        "Where can I download the invoice of my {}?",
        "For my taxes I need a document about my {}.",
        "Our {} is missing on the statement that you sent.",
    ),
    "confirmation": (
        "I have not received any confirmation of my {}.",
        "No email has arrived about my {}.",
        "Is my {} really booked?",
        "Did you get our request for the {}?",
        "How do I know that our {} is reserved?",
        "I cannot find my {} in my bookings.",
        "The voucher for our {} has not come yet.",
        "Did my reservation of the {} go through?",
    ),
    "one more person": (
        "Can one more person join our {}?",
        "There will be three of us for the {}, not two.",
        "My sister wants to come along on our {}.",
        "Please add my son to our {}.",
        "Is there room for a friend on our {}?",
        "We are a bigger group for our {} now.",
        "Can I bring somebody with me to my {}?",
        "Our {} is for two, but now we are four.",
    ),
}
_PLACES: tuple[str, ...] = ("Lisbon", "Oslo", "Vienna", "Naples", "Dublin", "Athens", "Prague", "Malta")
_PLACES += ("Riga", "Bergen", "Seville", "Turin", "Krakow", "Porto", "Genoa", "Zurich")
_PLACES += ("Tallinn", "Lyon", "Ghent", "Cork", "Split", "Palma", "Corfu")
_PLACE_SENTENCES = ("We are going to {}.", "It is about {}.", "Our trip to {}:", "This is for {}.")
_GREETINGS = ("Hello! ", "Hi! ", "Good morning! ", "", "")
_CLOSINGS = (" Thanks.", " Best regards.", "", "", "")
logger = logging.getLogger(__name__)


def generate_messages(seed: int = 0, test_rows: int = TEST_ROWS) -> tuple[list[Row], list[Row]]:
    """Generate rows of message and topic, all different: 5 of each of 48 topics to train on, ``test_rows`` to test on.

    The same arguments give the same rows on every machine, and the same seed the same training rows.
    """
    uniform = random.Random(seed).random  # Python guarantees a reproducible sequence only for this function
    written: set[str] = set()

    def pick(choices: Sequence[str]) -> str:
        return choices[int(uniform() * len(choices))]

    def message(bookings: Sequence[str], wishes: Sequence[str]) -> str:
        wish = pick(wishes).format(pick(bookings))
        place = pick(_PLACE_SENTENCES).format(pick(_PLACES))
        place_first = place.endswith(":") or uniform() < 0.5
        both = f"{place} {wish}" if place_first else f"{wish} {place}"
        return pick(_GREETINGS) + both + pick(_CLOSINGS)

    def rows(phrases: Mapping[str, Sequence[str]], count: int) -> list[Row]:
        found = []
        for booking, wish in product(BOOKINGS, WISHES):
            for _ in range(count):
                while (text := message(phrases[booking], phrases[wish])) in written:
                    pass
                written.add(text)
                found.append((text, f"{booking}: {wish}"))
        return sorted(found, key=lambda _: uniform())

    phrases = {name: sorted(every, key=lambda _: uniform()) for name, every in (BOOKINGS | WISHES).items()}
    known = {name: every[: len(every) // 2] for name, every in phrases.items()}
    return rows(known, TRAIN_ROWS), rows(phrases, test_rows)


def write_messages(folder: Path, draw: int = 0, test_rows: int = TEST_ROWS) -> tuple[Path, Path]:
    """Write ``train.csv`` and ``test.csv`` of a draw, unless they are there; return their paths.

    Raises:
        AttendropError: One of them is there with other content.
    """
    train, test = folder / "train.csv", folder / "test.csv"
    tables = (csv_table(COLUMNS, rows) for rows in generate_messages(draw, test_rows))
    contents = dict(zip((train, test), tables, strict=True))
    for path, content in contents.items():
        if path.exists() and path.read_bytes() != content.encode():
            raise AttendropError(f"The file '{path}' is not the demonstration's; name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        write_text(path, content)
    return train, test


@ui.register
def demo(
    output_dir: Annotated[str, "Folder of the data and the answer; finished runs are not repeated."] = "attendrop-demo",
    model: Annotated[str, ui.run_option("model")] = "minilm",
    seeds: Annotated[int, ui.run_option("seeds", shown="4", of=Comparison)] = 4,
    workers: ui.Workers = None,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Run `attendrop compare` with AD-DROP on generated customer messages: minutes on two cores."""
    seeds = checked(Comparison, "seeds", seeds)

    import torch

    train, test = write_messages(Path(output_dir))
    command = ["compare", str(train), "--eval-file", str(test), "--model", model, *SETTINGS, "--seeds", str(seeds)]
    command += ["--output-dir", str(Path(output_dir) / "answer")]
    # Matrix units for bfloat16; by AVX-512 alone it takes longer than float32.
    command += ["--bf16"] * bool(torch.cpu.get_capabilities().get("amx_bf16"))
    command += [] if workers is None else ["--workers", str(workers)]
    command += ["--quiet"] * quiet + ["--json"] * as_json
    with ui.messages(quiet=quiet):
        logger.info("attendrop %s", shlex.join(command))
    raise typer.Exit(ui.app(command, standalone_mode=False) or 0)
