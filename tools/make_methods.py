"""Write docs/methods.md from the registry and the benchmark's results: ``make docs``; ``--check`` only compares."""

import json
from pathlib import Path

from generated import write_or_check

from attendrop.methods.core.base import ANY, DECIDES_PASSES, RULES, Method, Rule
from attendrop.methods.core.options import described
from attendrop.methods.core.registry import get_method, method_names

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results.json"
SHAPES = ("MiniLM", "BERT-base")

_HEAD = """\
# Methods

Written by `make docs` from the registry of methods and from `benchmarks/results.json`; CI checks that it is up to date.

`attendrop train --method NAME --set OPTION=VALUE`, or `RegularizedTrainer(..., regularizer=Class(option=value))`.
The class's docstring has the formula, what each option means, the source of each default, and what differs from the
paper; `attendrop methods NAME` prints it. [own_method.md](own_method.md) shows how to add one.

*Acts on*: what the method changes. *Forward*, *backward*: number of passes in a training step; plain fine-tuning takes
one of each. *Time*, *memory*: of a step with the defaults, relative to plain fine-tuning, {shapes};
batch 16 of {case} tokens (AttendOut: mean of a period on one thread, memory at 128);
{machine}.
[RESULTS.md](../benchmarks/RESULTS.md) describes the measurement. Prediction has no additional cost: after training, the
model is a stock model.

"""
_SECOND = """
## The second package

Methods that the papers only cite, and some more to compare with, are in `attendrop_methods`, which is installed beside
`attendrop`: `from attendrop_methods import SAM`; on the command line they have names like all others. No recipe of the
papers' tables and no default needs them.

"""
_COMPOSITION = """
## Combining methods

`--method ad-drop+r-drop --set ad-drop.p=0.3`, or `Compose(ADDrop(p=0.3), RDrop())`. At each attention layer, the
masks of all methods apply. Penalties are added. Methods that change parameters, gradients or batches do so as if used
alone. Each method samples its own random numbers, and logs under its own name. Recorded attributions are of the whole
loss, penalties included.

Two methods that help need not help more together: `ad-drop+r-drop` was not shown to be ahead of the better of them on
real messages, and was 0.026 [0.017, 0.034] behind AD-DROP alone on generated ones, over five draws
([measured](experiments.md#2026-11-27-step-5-which-rows-and-every-method-on-them)). Compare before you combine.

| methods | time | memory |
|---|---|---|
"""
_REFUSED = """
A method cannot be given twice, and these pairs cannot be combined: `Compose(...)` raises an error with the reason.
Parentheses give the options under which a rule holds. Each rule is defined in the file of its method.

| method | and | why not |
|---|---|---|
"""


def page() -> str:
    """Return the current content of the page."""
    parts = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows, facts = parts["methods"]["rows"], parts["methods"]["facts"]
    case = rows[0]["case"].partition(", ")[2]
    costs = {(row["figure"], row["case"].partition(",")[0]): row["measured"] for row in rows}
    # Whole periods, measured apart, if at all; memory on another batch.
    for row in parts.get("attendout", {}).get("rows", []):
        figure, (shape, _, batch) = row["figure"].replace("AttendOut", "attendout"), row["case"].partition(", ")
        if batch == case and "step" in figure:
            costs["attendout / stock step", shape] = row["measured"]
        elif "memory" in figure:
            costs[figure, shape] = row["measured"]
    machine = f"{facts['processor']}, torch {facts['torch']}, transformers {facts['transformers']}"
    columns = ["method", "class", "paper", "acts on", "forward", "backward", "keeps", "tasks", "time", "memory"]
    header = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    listed = [get_method(name) for name in method_names()]
    second = [method for method in listed if method.__module__.startswith("attendrop_methods.")]
    first = [method for method in listed if method not in second]
    together = [name for name in dict.fromkeys(figure for figure, _ in costs) if "+" in name and "memory" not in name]
    text = _HEAD.format(shapes=" / ".join(SHAPES), case=case.removesuffix(" full"), machine=machine)
    text += header + "".join(_row(method, costs) for method in first)
    text += _COMPOSITION
    for figure in together:
        name = figure.removesuffix(" / stock step")
        text += f"| `{name}` | {' | '.join(_costs(name, costs))} |\n"
    rules = dict.fromkeys((*(rule for method in listed for rule in method.info.rules), *RULES))
    text += _REFUSED + "".join(map(_rule, rules))
    text += "\n" + "\n".join(_section(method) for method in first)
    text += _SECOND + header + "".join(_row(method, costs) for method in second)
    return text + "\n" + "\n".join(_section(method, "###") for method in second)


def _rule(rule: Rule) -> str:
    one, other = _with(rule.one), _with(rule.other)
    return f"| {one} | {'any other of these' if rule.one == rule.other else other} | {rule.reason} |\n"


def _with(trait: str) -> str:
    """List the methods that have a trait."""
    if trait == ANY:
        return trait
    listed = [get_method(name) for name in method_names()]
    if trait == DECIDES_PASSES:
        options = {kind.info.name: "" for kind in listed if kind().has(trait)}
    else:
        options = {i.name: i.traits.get(trait, "") for i in (k.info for k in listed) if trait in (i.name, *i.traits)}
    return ", ".join(f"`{name}`{f' ({only})' if only else ''}" for name, only in options.items())


def _row(method: type[Method], costs: dict[tuple[str, str], float]) -> str:
    facts = method.info
    paper = f"[{facts.paper}]({facts.link})" if facts.link else facts.paper
    cells = [
        f"`{facts.name}`", f"`{method.__name__}`", paper or "–", ", ".join(facts.acts_on) or "nothing",
        facts.forward, facts.backward, facts.state, facts.tasks, *_costs(facts.name, costs),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _costs(name: str, costs: dict[tuple[str, str], float]) -> list[str]:
    figures = f"{name} / stock step", f"peak memory, {name} / fine-tuning"
    found = [[1.0 if name == "finetune" else costs.get((figure, shape)) for shape in SHAPES] for figure in figures]
    return [" / ".join("–" if value is None else f"{value:.2f}" for value in values) for values in found]


def _section(method: type[Method], level: str = "##") -> str:
    facts = method.info
    summary = facts.summary[0].upper() + facts.summary[1:]
    about = f"{level} {facts.name}\n\n{summary}.{f' {facts.measured()}' if facts.evidence else ''}"
    options = described(method)
    if not options:
        return f"{about} No options.\n"
    lines = [f"- `{name}={found['default']!r}`: {found['range']}" for name, found in options.items()]
    return f"{about} Options with their defaults and ranges:\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_or_check({PAGE: page()})
