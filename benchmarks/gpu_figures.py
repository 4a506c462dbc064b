"""The figures of one GPU: ``python benchmarks/gpu_figures.py --part steps``; `make gpu` writes them all.

Runs with PyTorch and transformers alone.
"""

import argparse
import gc
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import torch
from measure import Bench, Contender, host_waits, interleave, peak_memory, ratios
from pruned import contenders
from report import Document, line, write
from rows import Row
from workloads import BATCH_SIZE, Batch, Setting, build_model, made_up, reward_items

from attendrop import ADDrop, AttendOut, FineTune, Mixout, RDrop

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_METHODS = {
    "finetune through the library": FineTune(),
    "AD-DROP, recorded": ADDrop(layers="all", attribution="recorded"),
    "AD-DROP, separate pass": ADDrop(layers="all"),
    "R-Drop": RDrop(),
    "mixout": Mixout(),
}
_PERIODS = {"AttendOut": AttendOut()}
_STEPS = 10
DOCUMENT = Document(
    "make gpu",
    f"""\
Every figure is from one process; ratios are of times (or bytes) of steps that are taken in turn, round after round,
every second round in reverse order; the table shows the median of the rounds, the least and the greatest. The device is
waited for before and after what is timed. A step is forward, loss, backward, AdamW and `zero_grad`, in training mode
with the models' own dropout of 0.1, batch {BATCH_SIZE}; in bfloat16 the loss is computed under autocast. "Stock" is the
transformers model with SDPA attention, the same weights and optimizer, and nothing of attendrop in the way.

- *MiniLM*: 6 layers, 12 heads, 384 wide; *BERT-base*: 12 layers, 12 heads, 768 wide; *BERT-large*: 24 layers, 16 heads,
  1024 wide. Random weights. "128 full": {BATCH_SIZE} sequences of 128 tokens; "128 ragged": the longest has 128 tokens,
  the median about half of that.
- *AttendOut*: the mean of {_STEPS} steps, a period. Its peak memory counts all that it makes, from before the first
  step on.
- *Peak memory*: the allocator's peak in one step, with weights and optimizer state.
- A method whose step does not fit into the device's memory has no row, and what the time does not allow is left out.
- *Waits*: operations of one step in which the host waits for the device (`torch.cuda.set_sync_debug_mode`).
- *Prediction*: in `inference_mode`, without labels, weights in the dtype; all layers constant but the first.
""",
)


def steps(setting: Setting) -> Iterator[Row]:
    """Waits, time and memory of training steps, against the stock step."""
    cases = [(shape, *case) for shape in _shapes(setting) for case in _batches(setting, (128, 512)).items()]
    for number, (shape, name, batch) in enumerate(cases):
        bench = Bench(setting, build_model(setting, shape))
        items = reward_items(batch, 2)
        case = f"{shape}, {name}"
        if not _fitting({"stock": bench.stock}, batch, case):
            continue
        singles = {key: partial(bench.library, method, items) for key, method in _METHODS.items()}
        periods = {key: partial(bench.attendout, method, items) for key, method in _PERIODS.items()}
        singles, periods = _fitting(singles, batch, case), _fitting(periods, batch, case)
        if number == 0:
            for key, contender in {"stock": bench.stock, **singles, **periods}.items():
                waits = host_waits(bench, contender, batch)
                yield Row(f"waits for the device in a step, {key}", case, [waits], None)
        yield from _times(setting, bench, singles, [batch], case)
        yield from _times(setting, bench, periods, [batch] * _STEPS, case)
        plain = peak_memory(bench, bench.stock, batch)[0]
        for key, contender in (singles | periods).items():
            ours = peak_memory(bench, contender, batch, _STEPS + 1 if key in periods else 1)[0]
            note = f"{ours / 2**20:.0f} MiB / {plain / 2**20:.0f} MiB"
            yield Row(f"peak memory, {key} / stock", case, [ours / plain], None, note=note)


def inference(setting: Setting) -> Iterator[Row]:
    """Prediction with constant attention in all layers but the first, against the stock model."""
    for shape in _shapes(setting):
        compared = contenders(build_model(setting, shape).to(setting.dtype))
        for name, batch in _batches(setting, (128, 512)).items():
            inputs = {column: value for column, value in batch.items() if column != "labels"}
            times = interleave(compared, [inputs], rounds=setting.rounds, seconds=0)
            for key in ("pruned", "unpadded"):
                note = f"{_ms(times['stock'], 1)} / {_ms(times[key], 1)}"
                yield Row(
                    f"prediction, stock / {key}", f"{shape}, {name}", ratios(times, "stock", key), None, note=note
                )


FIGURES: dict[str, Callable[[Setting], Iterator[Row]]] = {"steps": steps, "inference": inference}


def main() -> None:
    """Measure one part from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=FIGURES, required=True)
    parser.add_argument("--dtype", choices=_DTYPES, default="float32", help="bfloat16: under autocast")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round: only shows that it runs")
    parser.add_argument("--rounds", type=int, default=5, help="how often each thing is timed")
    parser.add_argument("--seconds", type=float, default=math.inf, help="leave out what begins later")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS_GPU.md"))
    given = parser.parse_args()
    setting = Setting(torch.device(given.device), _DTYPES[given.dtype], given.quick, 1 if given.quick else given.rounds)
    began, rows = time.perf_counter(), list[Row]()
    for row in FIGURES[given.part](setting):
        print(line(row), flush=True)
        rows.append(row)
        # Written anew with each row: a part that runs out of time leaves what it has.
        write(given.output, f"{given.part} {given.dtype}", rows, setting, time.perf_counter() - began, DOCUMENT)
        if time.perf_counter() - began > given.seconds:
            print(f"Out of time: what was to come after {row.figure!r}, {row.case}, is left out.", flush=True)
            break


def _fitting(contenders: dict[str, Contender], batch: Batch, case: str) -> dict[str, Contender]:
    """Return those whose step fits into the device's memory."""
    found = {}
    for key, contender in contenders.items():
        try:
            with contender() as step:
                step(batch)
            found[key] = contender
        except torch.OutOfMemoryError:
            print(f"{key} does not fit into the device's memory: {case}", flush=True)
            gc.collect()
            torch.cuda.empty_cache()
    return found


def _times(
    setting: Setting, bench: Bench, others: dict[str, Contender], batches: list[Batch], case: str
) -> Iterator[Row]:
    times = interleave({"stock": bench.stock, **others}, batches, rounds=setting.rounds, seconds=0)
    for key in others:
        note = f"{_ms(times[key], len(batches))} / {_ms(times['stock'], len(batches))}"
        yield Row(f"{key} / stock step", case, ratios(times, key, "stock"), None, note=note)


def _ms(seconds: list[float], batches: int) -> str:
    return f"{median(seconds) / batches * 1000:.1f} ms"


def _shapes(setting: Setting) -> tuple[str, ...]:
    return ("tiny",) if setting.quick else ("MiniLM", "BERT-base", "BERT-large")


def _batches(setting: Setting, lengths: tuple[int, int]) -> dict[str, Batch]:
    """Full batches of both lengths, and a ragged one of the first; when quick, a short one alone."""
    if setting.quick:
        return {"12 ragged": setting.to_device(made_up(12, ragged=True))}
    short, long = lengths
    made = {
        f"{short} full": made_up(short, ragged=False),
        f"{short} ragged": made_up(short, ragged=True),
        f"{long} full": made_up(long, ragged=False),
    }
    return {name: setting.to_device(batch) for name, batch in made.items()}


if __name__ == "__main__":
    main()
