"""What AttendOut costs on small data, and which of its parts costs it: ``python benchmarks/attendout_costs.py FOLDER``.

Plain fine-tuning is changed one thing at a time, until it is AttendOut: fewer rows, two networks that are merged,
dropping. Needs ``ATTENDROP_DATA``; about two hours on a core; resumes where it stopped. The results are in
docs/attendout.md.
"""

import argparse
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import attendrop
from attendrop import AttendOut, AttentionLayerDrop, FineTune, register_method
from attendrop.extend import SCORES_ROWS, choice, option, unit_interval

BANKING77 = Path(os.environ.get("ATTENDROP_DATA", ".")) / "banking77"
TASKS: dict[str, dict[str, Any]] = {
    "cola": {"task": "cola", "max_train_samples": 512},
    "stsb": {"task": "stsb", "max_train_samples": 512},
    "banking77": {
        "train_file": str(BANKING77 / "train.csv"),
        "eval_file": str(BANKING77 / "test.csv"),
        "text_columns": ("text",),
        "label_column": "category",
        "shots": 5,
        "label_names": "none",
    },
}


@register_method
@dataclass(frozen=True)
class FineTuneOnFewerRows(FineTune):
    """Plain fine-tuning on the rows that AttendOut with ``reward_data="split"`` trains on."""

    info = replace(FineTune.info, name="nine-tenths", traits={SCORES_ROWS: ""}, rules=())

    reward_data: str = option("split", choice("split"))
    reward_fraction: float = option(0.1, unit_interval())


METHODS = [
    FineTuneOnFewerRows(),
    # Nothing is dropped: both networks then see the same dropout of the model's own, so that they stay equal.
    AttendOut(init_drop_prob=1e-6),
    AttendOut(init_drop_prob=0.1),
    AttentionLayerDrop(p=0.1),
]


def main() -> None:
    """Compare them on each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=6)
    given = parser.parse_args()
    for task in given.tasks:
        outcome = attendrop.compare(
            **TASKS[task],
            max_steps=160,
            learning_rate=1e-4,
            max_length=64,
            methods=METHODS,
            seeds=given.seeds,
            baselines=[],
            keep_best=False,
            workers=0,
            output_dir=str(given.folder / task),
        )
        print(*outcome.lines(), sep="\n")


if __name__ == "__main__":
    main()
