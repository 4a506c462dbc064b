"""How many operations a training step sends to a GPU, counted without one: ``python benchmarks/launches.py``.

A step runs on the CPU by the path that a GPU takes (``few_kernels``), and each operation that PyTorch dispatches is
counted, except views, metadata and allocations; where the host waits for a value is counted, too. Models of 6 and of 12
layers tell what belongs to a layer from what belongs to a step. The models have no dropout of attention weights, since
the CPU's kernel has none; what is dispatched around the kernel is the same. Prints a table; ``--output FILE`` writes it
as JSON. ``run.py --only launches`` also times steps of so narrow a model that they take what the host does.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from measure import Bench
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import Batch, Setting, build_launch_model, made_up, reward_items

from attendrop import ADDrop, AttendOut, ChildTuning, DropHead, FineTune, Mixout, RDrop
from attendrop.randomness.device_path import few_kernels

METHODS = {
    "finetune through the library": FineTune(),
    "AD-DROP, recorded": ADDrop(layers="all", attribution="recorded"),
    "AD-DROP, separate pass": ADDrop(layers="all"),
    "random masks": ADDrop(layers="all", attribution="random"),
    "R-Drop": RDrop(),
    "DropHead": DropHead(schedule="constant"),
    "Child-Tuning": ChildTuning(),
    "mixout": Mixout(),
    "AttendOut": AttendOut(),
}
# What takes no kernel: allocations and metadata. Views are known by their schema.
_FREE = (
    "aten::empty",
    "aten::detach",
    "aten::_local_scalar_dense",
    "aten::lift_fresh",
    "aten::is_same_size",
    "aten::promote_types",
    "aten::_unsafe_view",
)
_READS = ("tolist", "item", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero")


class Launches(TorchDispatchMode):
    """Counts dispatched operations by phase; see the module for what counts."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = "forward"
        self.found: Counter[str] = Counter()
        self.names: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        views = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
        if not views and not schema.name.startswith(_FREE):
            self.found[self.phase] += 1
            self.names[self.phase, schema.name] += 1
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts calls that give the host a value of a tensor, except for the optimizer's steps, which the host holds."""

    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self.launches = launches
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += getattr(func, "__name__", "") in _READS and self.launches.phase != "optimizer"
        return func(*args, **(kwargs or {}))


def count(layers: int, method: Any, batch: Batch) -> tuple[dict[str, int], Counter[tuple[str, str]]]:
    """Count what one step of a method takes, after three others; without a method, of the stock model."""
    setting = Setting(torch.device("cpu"), torch.float32, quick=True)
    bench = Bench(setting, build_launch_model(layers))
    items = reward_items(batch, 4)
    bench.optimizer = torch.optim.AdamW(bench.model.parameters(), lr=1e-5, foreach=True)  # as on a GPU
    steps = bench.stock() if method is None else bench.library(method, items)
    launches = Launches()
    reads = Reads(launches)

    def watched(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            before, launches.phase = launches.phase, phase
            try:
                return function(*args, **kwargs)
            finally:
                launches.phase = before

        return run

    with few_kernels(), steps as step:
        for _ in range(10 if isinstance(method, AttendOut) else 3):
            step(batch)
        backward, update = torch.Tensor.backward, bench.optimizer.step
        torch.Tensor.backward = watched(backward, "backward")  # type: ignore[method-assign,assignment]
        bench.optimizer.step = watched(update, "optimizer")  # type: ignore[method-assign]
        try:
            with reads, launches:
                step(batch)
        finally:
            torch.Tensor.backward = backward  # type: ignore[method-assign]
            bench.optimizer.step = update  # type: ignore[method-assign]
    return {**launches.found, "reads": reads.count}, launches.names


def table(methods: Mapping[str, Any] = METHODS) -> dict[str, dict[str, float]]:
    """Count operations by part: of a step, and of each of 12 layers."""
    batch = made_up(24, ragged=True)
    found: dict[str, dict[str, float]] = {}
    for name, method in {"plain": None, **methods}.items():
        (six, _), (twelve, _) = (count(layers, method, batch) for layers in (6, 12))
        parts = ("forward", "backward", "optimizer")
        row = {f"{part}, a layer": (twelve.get(part, 0) - six.get(part, 0)) / 6 for part in parts}
        row |= {f"{part}, a step": six.get(part, 0) - 6 * row[f"{part}, a layer"] for part in parts}
        found[name] = row | {"all, 6 layers": sum(six.get(part, 0) for part in parts)}
        found[name] |= {"all, 12 layers": sum(twelve.get(part, 0) for part in parts), "reads": twelve["reads"]}
    return found


def main() -> None:
    """Print the table, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--names", choices=METHODS, help="print what a method dispatches beyond the stock model instead"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.names:
        batch = made_up(24, ragged=True)
        (_, stock), (_, own) = count(12, None, batch), count(12, METHODS[given.names], batch)
        for (phase, name), number in (own - stock).most_common():
            print(f"{phase:10} {number:5} {name}")
        return
    found = table()
    columns = list(found["plain"])
    print("| | " + " | ".join(columns) + " | of plain |\n|---" + "|---:" * (len(columns) + 1) + "|")
    for name, row in found.items():
        share = row["all, 12 layers"] / found["plain"]["all, 12 layers"]
        print(f"| {name} | " + " | ".join(f"{row[column]:g}" for column in columns) + f" | {share:.2f} |")
    if given.output:
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
