"""Files of results: a Markdown table, and the JSON file that it is made of."""

import datetime
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rows import Row
from workloads import BATCH_SIZE, Setting

_STORED = tuple(field.name for field in fields(Row))
_METHOD = f"""\
Every figure is a ratio of times (or bytes) from one process. The kinds of training step are run in turn, round after
round, every second round in reverse order, after a warm-up; a round gives one ratio, and the table shows the median of
the rounds, the least and the greatest. A step is forward, loss, backward, AdamW and `zero_grad`, in training mode with
the models' own dropout of 0.1, batch {BATCH_SIZE}. "Stock" is the transformers model with SDPA attention, the same
weights and optimizer, and nothing of attendrop in the way.

- *BERT-base*: 12 layers, 12 heads, 768 wide. *MiniLM*: 6 layers, 12 heads, 384 wide. Both with 30,522 words and random
  weights. "64 full": 16 sequences of 64 tokens; "64 ragged": the longest has 64 tokens, the median about half of that,
  the rest is padding; "CoLA (n)", "RTE (n)": the middle one by length of eight batches of real training data,
  grouped by length as the trainer does, n tokens wide.
- *Reference style*: `benchmarks/reference.py`, written for this benchmark after the paper and what is known of how its
  code works: eager attention, one backward pass for each layer. It is not the authors' code.
- *Epoch*: rows of CoLA in batches grouped by length; the reference once with the same batches, once padded to 47.
- *Run*: two epochs with the trainer, an evaluation after each; cross-tuning makes the second one AD-DROP.
- *Spearman*: per row of attention, over its valid keys, between Gauss–Legendre nodes (the fewest that reach 0.95 in the
  mean) and 20 Riemann steps of the same scope, for rows whose attributions are not all equal; one value for each batch.
- *Peak memory*: on a CPU, every allocation and release of torch's allocator in one step, as the profiler records them,
  plus weights and optimizer state; on CUDA the allocator's peak. The resident set of a process would add what malloc
  and the kernels of other libraries keep, which differs from run to run.
- *Long inputs*: the same, on batches of 8 full sequences of 512 tokens, with the attention dropout of 0.1 that BERT
  has, and without, as in Llama and ModernBERT. With it, no kernel of PyTorch for CPUs does without attention weights.
- *AttendOut*: the mean of the steps of a whole period at the defaults: defender and attacker, the scores of both on as
  many items as steps (of rows as long as those of the batch), and the merging of the two. Its
  peak memory counts all that it makes, from before the first step to the end of a period.
- *Methods*: each at its defaults, four at a time beside the stock step, on "64 full". What is done once in a run is
  left out (the Fisher pass of Child-Tuning-D); SuperT is in its search. LayerDrop and Attn.LayerDrop are timed over 8
  steps, since every step skips other layers.
- *Prediction*: in `inference_mode`, without labels; "full": every sequence has all tokens; "RTE lengths", "IMDB
  lengths": texts as they come, padded to the longest of their batch, cut at 256 and 512 tokens. "Without padding" is
  the same form with no layer pruned. Exported files compute padding in attention alone. ModernBERT and
  DeBERTa-v3 have the sizes of MiniLM and random weights.
- *Whole and pruned, int8*: all-MiniLM-L6-v2 fine-tuned on 2,000 rows of Banking77 (4 epochs in bfloat16; the
  classifier reads the first token); *pruned*: five of its six layers, fine-tuned for one more epoch, exported by
  `export_onnx`. The whole model is what PyTorch's exporter writes of the stock one, in int8 by ONNX Runtime's
  `quantize_dynamic`, or by NNCF for OpenVINO, activations too, by their ranges on 100 training texts. Accuracy on all
  test rows; times on 64 of them in random order, each batch padded to its longest text. OpenVINO has one stream.
"""


@dataclass(frozen=True)
class Document:
    """What a file of results says beside its table.

    Attributes:
        command: What writes it.
        method: How it was measured, in Markdown.
        notes: File of further notes.

    """

    command: str
    method: str
    notes: Path | None = None


BENCH = Document("make bench", _METHOD, Path(__file__).with_name("NOTES.md"))


def write(path: Path, part: str, rows: Sequence[Row], setting: Setting, seconds: float, document: Document) -> None:
    """Write one part of the results: into the JSON file beside ``path``, of which the Markdown table is made anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store = path.with_name("results.json") if path.name == "RESULTS.md" else path.with_suffix(".json")
    parts = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    found = [asdict(row) | {"measured": row.measured, "met": row.met} for row in rows]
    if setting.methods and part in parts:  # some rows were measured anew, in their place
        anew = {(row["figure"], row["case"]): row for row in found}
        found = [anew.pop((row["figure"], row["case"]), row) for row in parts[part]["rows"]] + list(anew.values())
        seconds = parts[part]["seconds"]
    parts[part] = {
        "facts": machine() | {"device": _device(setting), "dtype": _dtype(setting)},
        "quick": setting.quick,
        "seconds": round(seconds),
        "rows": found,
    }
    store.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    path.write_text("\n".join(_markdown(parts, document)) + "\n", encoding="utf-8")


def machine() -> dict[str, str]:
    """What the figures depend on: processor, memory, versions, date."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads used{gpu}",
        "memory": f"{memory:.0f} GiB",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "attendrop")},
        **{name: version(name) for name in ("onnxruntime", "openvino", "nncf") if find_spec(name)},
    }


def line(row: Row) -> str:
    """One row as text, for the terminal."""
    return f"{row.figure:62} {row.case:45} {row.measured:7.3f}  {_target(row):8} {_met(row)} {row.note}"


def _markdown(parts: Mapping[str, Mapping[str, Any]], document: Document) -> Iterator[str]:
    yield "# Benchmark results\n"
    if any(part["quick"] for part in parts.values()):
        yield "A quick run on tiny models: **these figures mean nothing**.\n"
    else:
        yield f"Written by `{document.command}`.\n"
    newest: Mapping[str, str] = list(parts.values())[-1]["facts"]
    for name, value in newest.items():
        yield f"- {name}: {value}"
    for name, part in parts.items():
        differs = [f"{fact} {value}" for fact, value in part["facts"].items() if newest.get(fact) != value]
        took = "" if part["seconds"] is None else f": {part['seconds'] / 60:.0f} minutes"
        yield f"- part `{name}`{took}" + "".join(f", {text}" for text in differs)
    rows = [Row(**{name: row[name] for name in _STORED}) for part in parts.values() for row in part["rows"]]
    counted = [row for row in rows if row.met is not None]
    yield f"\n{sum(bool(row.met) for row in counted)} of {len(counted)} targets are met.\n" if counted else ""
    yield "| figure | model and data | target | measured | least – greatest (rounds) | met |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        spread = f"{min(row.values):.2f} – {max(row.values):.2f} ({len(row.values)})"
        note = f"; {row.note}" if row.note else ""
        yield f"| {row.figure} | {row.case}{note} | {_target(row)} | **{row.measured:.2f}** | {spread} | {_met(row)} |"
    yield f"\n## How it was measured\n\n{document.method}"
    if document.notes is not None:
        yield document.notes.read_text(encoding="utf-8").rstrip()


def _target(row: Row) -> str:
    return "–" if row.target is None else f"{'≥' if row.at_least else '≤'} {row.target:.2f}"


def _met(row: Row) -> str:
    return {True: "yes", False: "**no**", None: "–"}[row.met]


def _device(setting: Setting) -> str:
    if setting.device.type != "cuda":
        return "cpu"
    found = torch.cuda.get_device_properties(setting.device)
    return f"{found.name}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"


def _dtype(setting: Setting) -> str:
    name = str(setting.dtype).removeprefix("torch.")
    if setting.device.type != "cuda" or setting.dtype != torch.float32:
        return name
    exact = torch.get_float32_matmul_precision() == "highest"
    return f"{name}, {'without' if exact else 'with'} TF32"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
