"""Print the figures that the pages quote outside of tables, from ``results/``: ``python benchmarks/quoted_figures.py``.

``tests/test_results.py`` compares the pages with them.
"""

import math
from collections import defaultdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import alike_table
import numpy as np
from alike_table import number, together
from kept import kept_runs
from scipy import stats
from transformers import AutoTokenizer

from attendrop.cli.demo import BOOKINGS, WISHES, generate_messages
from attendrop.studies.statistics import ALPHA, Estimate, mean_interval, paired_difference
from attendrop.support.files import resolve_model
from attendrop.tasks.metrics import RowScores

RESULTS = Path(__file__).parents[1] / "results"
_README, _HELP, _LOG = "README.md", "docs/does-it-help.md", "docs/experiments.md"
# The pages that quote each figure; "ad-drop" is the evidence of the method.
QUOTED_ON = {
    "demonstration, with phrases as samples": (_README, _HELP),
    "default on similar rows of HWU64": (_README, _HELP, "ad-drop"),
    "default on random rows of HWU64": (_LOG, "ad-drop"),
    "all layers on STS-B, high": (_HELP,),
    "all layers on STS-B, by magnitude": (_HELP,),
    "random candidates on the messages, less than recorded ones": (_LOG,),
    "recorded on Banking77, p = 0.3": (_LOG,),
    "recorded on Banking77, p = 0.5": (_LOG,),
    "recorded on ten rows of Banking77, p = 0.5": (_LOG,),
    "separate pass in all layers on Banking77": (_LOG, "ad-drop"),
}


def runs_of(folder: str, **options: Any) -> dict[int, dict[str, Any]]:
    """Return the kept runs, by seed, of AD-DROP with these options, or of plain fine-tuning if there are none."""
    kept = kept_runs(RESULTS / folder / "runs.jsonl")
    found = [run for run in kept if run["method"] == ("ad-drop" if options else "finetune")]
    return {run["seed"]: run for run in found if options.items() <= run["options"].items()}


def rows_of(run: dict[str, Any]) -> Any:
    return RowScores.from_dict(run["row_scores"]).values.astype(float)


def over_phrases() -> Estimate:
    """Compare AD-DROP with plain fine-tuning on the demonstration, with seeds and phrases as samples.

    A test message has one of 48 phrases for what is wanted and one of 32 for what was booked: crossed clusters. The
    variance of the mean is that over each, minus that over pairs of them (Cameron, Gelbach and Miller, 2011), plus that
    over seeds; Student's t has the degrees of freedom of the fewer phrases.
    """
    own, plain = runs_of("demonstration", p=0.3), runs_of("demonstration")
    differences = np.stack([rows_of(own[seed]) - rows_of(plain[seed]) for seed in sorted(own)])
    residuals = differences.mean(axis=0) - differences.mean()
    clusters: dict[str, dict[Any, float]] = {name: defaultdict(float) for name in ("wish", "booking", "pair")}
    tested = generate_messages(test_rows=len(residuals) // 48)[1]
    for (message, topic), residual in zip(tested, residuals, strict=True):
        booked, wanted = topic.split(": ")
        pairs = [pair for pair in product(WISHES[wanted], BOOKINGS[booked]) if pair[0].format(pair[1]) in message]
        wish, booking = max(pairs, key=lambda pair: len(pair[0].format(pair[1])))  # "ferry" is in "ferry ticket", too
        for name, cluster in (("wish", wish), ("booking", booking), ("pair", (wish, booking))):
            clusters[name][cluster] += residual
    assert (len(clusters["wish"]), len(clusters["booking"])) == (48, 32)
    by_wish, by_booking, by_pair = (
        sum(total**2 for total in each.values()) * len(each) / (len(each) - 1) / len(residuals) ** 2
        for each in clusters.values()
    )
    of_seeds = float(np.var(differences.mean(axis=1), ddof=1)) / len(differences)
    half = float(stats.t.ppf(1 - ALPHA / 2, 31)) * math.sqrt(by_wish + by_booking - by_pair + of_seeds)
    mean = float(differences.mean())
    return Estimate(mean, mean - half, mean + half)


def over_seeds(folder: str, **options: Any) -> Estimate:
    """Compare AD-DROP with plain fine-tuning on the same seeds, over examples, too, if their scores by row are kept."""
    own, plain = runs_of(folder, **options), runs_of(folder)
    scores = [[each[seed]["score"] for seed in sorted(own)] for each in (own, plain)]
    if own[min(own)].get("row_scores") is None:
        return mean_interval(np.subtract(*scores))
    by_row = np.stack([rows_of(own[seed]) - rows_of(plain[seed]) for seed in sorted(own)])
    return paired_difference(*scores, by_row, by_row.shape[1]).mean


def on_stsb(**options: Any) -> str:
    """Return AD-DROP minus plain fine-tuning in all layers on 256 rows of STS-B, p = 0.3, and the number of seeds."""
    kept = kept_runs(RESULTS / "does_it_help" / "2_strength" / "runs.jsonl")
    runs = [run for run in kept if run["run"].get("task") == "stsb"]
    plain = {run["seed"]: run["score"] for run in runs if run["method"] == "finetune"}
    wanted = {"layers": "all", "attribution": "gradient", "q": 0.3, "cross_tuning": False, "start_epoch": 0} | options
    own = [
        run["score"] - plain[run["seed"]]
        for run in runs
        if run["method"] == "ad-drop" and wanted.items() <= run["options"].items()
    ]
    return f"{np.mean(own):+.2f} ({'one seed' if len(own) == 1 else f'{len(own)} seeds'})"


def missing_at_random(p: float = 0.3) -> float:
    """Return the fraction by which random candidates are fewer than recorded ones, on the demonstration's messages.

    Of ``n`` keys, recorded ones are ``n - floor(n (1 - p))``, and random ones ``p n`` on average.
    """
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("minilm"))
    lengths = np.array([len(ids) for ids in tokenizer([text for text, _ in generate_messages()[0]])["input_ids"]])
    recorded = lengths - np.floor(lengths * (1 - p) + 1e-6)
    return float(1 - np.sum(lengths * lengths * p) / np.sum(lengths * recorded))


def written(found: Estimate) -> str:
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


@cache
def figures() -> dict[str, str]:
    """Return each figure, by its title in ``QUOTED_ON``."""
    cells, default = alike_table.table(), f"AD-DROP, {alike_table.DEFAULT}"
    similar, random = (together(cells, default, "plain", chosen, ["HWU64"])[0] for chosen in ("nearest", "random"))
    shots, recorded = "does_it_help/4_recorded_banking77", {"attribution": "recorded", "layers": "all"}
    found = [
        written(over_phrases()),
        written(similar),
        written(random),
        on_stsb(direction="high", p=0.3),
        on_stsb(direction="magnitude", p=0.3),
        f"with p = 0.3 by {100 * missing_at_random():.0f} % on the messages",
        written(over_seeds(shots, p=0.3, **recorded)),
        written(over_seeds(shots, p=0.5, **recorded)),
        written(over_seeds(f"{shots}_10", p=0.5, **recorded)),
        written(over_seeds("banking77_5_per_class", p=0.3, layers="all")),
    ]
    return dict(zip(QUOTED_ON, found, strict=True))


if __name__ == "__main__":
    for title, figure in figures().items():
        print(f"{title}: {figure}  ({', '.join(QUOTED_ON[title])})")
