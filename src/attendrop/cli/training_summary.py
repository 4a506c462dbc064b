"""Summary that `attendrop train` prints at the end."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from attendrop.cli.console import lines_of, size
from attendrop.methods.core.registry import build_method, get_method
from attendrop.runs.model_card import scored_once
from attendrop.wording import counted, score_text


def run_summary(metrics: Mapping[str, Any]) -> str:
    """Summarise a run: rows, what the method did, scores, protocol, and where the model is."""
    data, metric = metrics["data"], metrics["metric"].replace("_", " ")
    lines = {
        "rows": ", ".join(f"{count} {part}" for part, count in data["rows"].items()),
        "regularised": _acted(metrics),
    }
    lines |= build_method(metrics["method"], metrics["options"]).summary_lines(metrics)
    if metrics["config"]["lora"] is not None:
        trained, total = metrics["parameters"]["trained"], metrics["parameters"]["total"]
        lines["adapter"] = f"LoRA of rank {metrics['config']['lora']['r']}; {trained:,} of {total:,} parameters trained"
    lines["epoch kept"] = f"{metrics['best_epoch']} of {len(metrics['history'])}"
    if data["selected_on"] is None:
        lines["epoch kept"] += ", the last"
    if metrics["selection"] is not None:
        lines["epoch kept"] = f"the last of training on all rows, for {counted(metrics['selection']['steps'], 'step')}"
    if metrics["selection_score"] is not None and data["selected_on"] != "dev":
        held_out = f"with {counted(data['rows']['selection'], 'row')} held out"
        lines["selection score"] = f"{metric} {score_text(metrics['selection_score'])}, {held_out}"
    lines |= {"train score": f"{metrics['train_fit']['metric']} {score_text(metrics['train_fit']['score'])}"}
    lines |= {f"{part} score": _scores(scores) for part, scores in metrics["all_scores"].items()}
    lines |= {f"{part} baseline": _baseline(found) for part, found in metrics.get("baseline", {}).items()}
    if not metrics["all_scores"]:
        lines["score"] = "none: there is no eval-file"
    lines["protocol"] = {
        "dev": "paper: the epoch was chosen on the reported set, so the dev score is optimistic",
        "selection": "honest: the epoch was chosen on rows of the training data",
        None: "honest: nothing was chosen",
    }[data["selected_on"]]
    if scored_once(metrics):
        lines["protocol"] += "; dev was scored once, at the end"
    if data["rewarded_on"] == "dev":
        lines["rewarded on"] = "dev: it decided during training what was dropped, so the dev score is optimistic"
    memory = size(metrics["peak_memory_bytes"])
    lines["cost"] = f"{counted(metrics['steps'], 'step')}, {metrics['train_seconds']:.0f} s, {memory} at most"
    lines["model"] = metrics["output_dir"]
    title = f"{metrics['model']} on {metrics['task']} with {metrics['method']}, seed {metrics['seed']} (one seed)"
    return f"{title}\n{lines_of(lines)}"


def seeds_summary(summary: Mapping[str, Any]) -> str:
    """Summarise runs that differ in their seed: mean and standard deviation of each score."""
    lines = {"seeds": ", ".join(map(str, summary["seeds"]))}
    if summary["selection_score"] is not None:
        lines["selection"] = _moments(summary["metric"], summary["selection_score"])
    for part, scores in summary["all_scores"].items():
        lines |= {f"{part} {name.replace('_', ' ')}": _moments("", found) for name, found in scores.items()}
    lines |= {f"{part} baseline": _baseline(found) for part, found in summary["baseline"].items()}
    lines["runs"] = ", ".join(summary["runs"])
    title = (
        f"{summary['model']} on {summary['task']} with {summary['method']}, mean ± std (n-1) of {summary['n']} seeds"
    )
    return f"{title}\n{lines_of(lines)}"


def _moments(name: str, found: Mapping[str, Any]) -> str:
    mean, std, *each = (score_text(value, found["mean"]) for value in (found["mean"], found["std"], *found["values"]))
    return f"{name.replace('_', ' ')} {mean} ± {std} ({' '.join(each)})".lstrip()


def _baseline(found: Mapping[str, Any]) -> str:
    """Format the scores of a constant prediction."""
    answer = f"{found['answer']:.3g}" if isinstance(found["answer"], float) else repr(found["answer"])
    return f"{_scores(found['scores'])} (always {answer})"


def _acted(metrics: Mapping[str, Any]) -> str:
    epochs = [entry for entry in metrics["history"] if entry["regularized"]]
    if not epochs:
        return "no epoch"
    numbers = ", ".join(str(entry["epoch"]) for entry in epochs)
    text = f"epoch{'s' if len(epochs) > 1 else ''} {numbers} of {len(metrics['history'])}"
    for method in dict.fromkeys(name for entry in epochs for name in entry["dropped"]):
        fractions = [entry["dropped"][method] for entry in epochs if method in entry["dropped"]]
        text += f"; {dropped_fraction(method, statistics.fmean(fractions))} there"
    return text


def dropped_fraction(method: str, fraction: float) -> str:
    """Format the fraction of its units that a method dropped."""
    return f"{100 * fraction:.1f} % of {get_method(method).info.units} dropped"


def _scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {score_text(value)}" for name, value in scores.items())
