"""Measure what the methods cost, and write benchmarks/RESULTS.md: ``python benchmarks/run.py`` or ``make bench``."""

import argparse
import time
from pathlib import Path

import torch
from figures import FIGURES
from report import BENCH, line, write
from rows import Row
from workloads import Setting

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny models, two rounds: only shows that it runs")
    parser.add_argument(
        "--only",
        action="append",
        choices=FIGURES,
        help="one part; may be repeated; other parts of the output stay as they are",
    )
    parser.add_argument(
        "--method",
        action="append",
        help="with --only methods: the rows of one method, as the table names it; may be repeated; others stay",
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=_DTYPES, default="float32", help="bfloat16: under autocast")
    parser.add_argument("--rounds", type=int, default=3, help="how often each thing is timed, at least")
    given = parser.parse_args()
    setting = Setting(
        torch.device(given.device), _DTYPES[given.dtype], given.quick, given.rounds, tuple(given.method or ())
    )
    if setting.methods and given.only != ["methods"]:
        parser.error("--method goes with --only methods.")
    for name in given.only or FIGURES:
        began = time.perf_counter()
        rows: list[Row] = []
        for row in FIGURES[name](setting):
            print(line(row), flush=True)
            rows.append(row)
        write(given.output, name, rows, setting, time.perf_counter() - began, BENCH)


if __name__ == "__main__":
    main()
