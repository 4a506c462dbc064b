"""Model cards of runs and of pruned models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attendrop.files.model_files import lasting_name
from attendrop.methods.core.base import Method
from attendrop.methods.core.registry import build_method, flat_options
from attendrop.tasks.heads.base import Head
from attendrop.tasks.table import files_of
from attendrop.text_tables import in_markdown
from attendrop.wording import counted, interval_of, score_text

CARD = "README.md"
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?", re.ASCII)
# What code on a card calls inputs of heads.
_SHOWN_NAMES = {"text_pair": "second_text", "tokens": "words"}
_PROTOCOLS = {
    "dev": "The best epoch was chosen **on the development set**, as the papers do; the score below is optimistic.",
    "selection": "The best epoch was chosen on {selection} rows set aside from the training data.",
    None: "The last epoch was kept.",
}
_SCORED_ONCE = " The development set was scored once, at the end."

_REWARDED = {
    "reward": " The method was rewarded by scores on {reward} more rows set aside from the training data.",
    "dev": " **The method scored models on the development set during training**, which decided what was dropped; the "
    "score below is optimistic.",
    None: "",
}


def model_card(metrics: Mapping[str, Any], head: Head, *, stock: bool = True) -> str:
    """Write the card of a run: data, protocol, scores, method, training options, and how to load the model.

    ``stock``: the model is of a class of transformers; others need ``trust_remote_code=True``.
    """
    parts = build_method(metrics["method"], metrics["options"]).parts
    library = "peft" if _is_adapter(metrics, stock) else "transformers"
    base = lasting_name(metrics["model"])
    is_on_hub = _HUB_NAME.fullmatch(base) is not None and not Path(base).exists()
    front = _front_matter(library, head, metrics["method"], base=base if is_on_hub else None)
    return "\n\n".join([front, _title(metrics, parts), *_sections(metrics, head, parts, stock)]) + "\n"


def with_section(card: str, title: str, text: str) -> str:
    """Return a card with a section inserted before that of the method, replacing one with the same title."""
    before, method, after = card.partition("\n\n## Method\n")
    heading = f"\n\n## {title}\n"
    return f"{before.partition(heading)[0]}{heading}\n{text}{method}{after}"


def scored_once(metrics: Mapping[str, Any]) -> bool:
    """Return whether there is a development set that was used only for the reported score."""
    used_on = (metrics["data"]["selected_on"], metrics["data"]["rewarded_on"])
    return "dev" in metrics["all_scores"] and "dev" not in used_on


def _front_matter(library: str, head: Head, tag: str, base: str | None = None) -> str:
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {head.pipeline_tag}"]
    lines += [f"base_model: {base}"] if base is not None else []
    return "\n".join([*lines, "tags:", "- attendrop", f"- {tag}", "---"])


def _title(metrics: Mapping[str, Any], parts: Sequence[Method]) -> str:
    model = in_markdown(Path(metrics["model"]).name)
    return (
        f"# {model} fine-tuned on {_data_name(metrics)} with {metrics['method']}\n\n"
        f"Trained with attendrop {metrics['versions']['attendrop']}. Method `{metrics['method']}`: "
        f"{'; '.join(part.info.summary for part in parts)}."
    )


def _data_name(metrics: Mapping[str, Any]) -> str:
    """Return the name of the task, or of the training file, in Markdown."""
    config = metrics["config"]
    return str(config["task"]) if config["task"] is not None else _file_names(config["train_file"])


def _file_names(data: str) -> str:
    return in_markdown(", ".join(file.name for file in files_of(data)))


def _data(metrics: Mapping[str, Any]) -> str:
    """Describe the data: what the model was trained on, what it was scored on, and the rows of each part."""
    config = metrics["config"]
    scored = f"; scored on {_file_names(config['eval_file'])}" if config["eval_file"] else ""
    rows = ", ".join(f"{count} {part}" for part, count in metrics["data"]["rows"].items())
    return f"Trained on {_data_name(metrics)}{scored}. Rows: {rows}."


def _sections(metrics: Mapping[str, Any], head: Head, parts: Sequence[Method], stock: bool) -> list[str]:
    config, rows = metrics["config"], metrics["data"]["rows"]
    papers = dict.fromkeys(f"- {paper}" for part in parts if (paper := part.info.citation()))
    shown = ("epochs", "max_steps", "batch_size", "gradient_accumulation", "learning_rate", "schedule", "warmup")
    others = ("weight_decay", "pooling", "head_start", "max_length", "long_texts", "seed")
    options = {f"`{name}`": value for name, value in flat_options(metrics["options"]).items()}
    values = config | metrics["training"]
    training = {f"`{name}`": values[name] for name in (*shown, *others) if values[name] is not None}
    training |= {f"`lora.{name}`": value for name, value in (config.get("lora") or {}).items() if value is not None}
    acted = [str(entry["epoch"]) for entry in metrics["history"] if entry["regularized"]]
    adapter, trusted = _is_adapter(metrics, stock), "" if stock else ", trust_remote_code=True"
    usage = head.usage(len(metrics["data"]["text_columns"]), config["max_length"], stock=not adapter, options=trusted)
    alone = (
        "The files are an adapter of PEFT, which `attendrop.load` merges into its model"
        if adapter
        else ("With transformers alone" + ("" if stock else ", and the modelling file beside the weights"))
    )
    sections = [
        f"## Data\n\n{_data(metrics)}",
        f"## Protocol\n\n`{metrics['protocol']}`. "
        + _PROTOCOLS[metrics["data"]["selected_on"]].format(**rows)
        + _refit(metrics)
        + (_SCORED_ONCE if scored_once(metrics) else "")
        + _REWARDED[metrics["data"]["rewarded_on"]].format(**rows),
        "## Scores\n\n" + _scores(metrics),
        f"## Method\n\n`{metrics['method']}`, active in epochs: {', '.join(acted) or 'none'}.",
        _table("option", options) if options else "",
        "## Training\n\n" + _table("option", training),
        f"## How to load it\n\n{_predicting(metrics, head)}\n\n{alone}:\n\n```python\n{usage}\n```"
        + (_with_peft(head) if adapter and head.peft_task_type is not None else ""),
        "## Citation\n\n" + "\n".join(papers) if papers else "",
    ]
    return [section for section in sections if section]


def _is_adapter(metrics: Mapping[str, Any], stock: bool) -> bool:
    """Return whether the files are an adapter; one on a class that transformers lacks is saved merged."""
    return stock and metrics["config"].get("lora") is not None


def _predicting(metrics: Mapping[str, Any], head: Head) -> str:
    """Return a block of Python code that predicts with the model."""
    names = [_SHOWN_NAMES.get(name, name) for name in head.inputs_of(len(metrics["data"]["text_columns"]))]
    row = names[0] if len(names) == 1 else f"({', '.join(names)})"
    more = "  # probabilities=True: and how probable each is" if head.has_probabilities else ""
    return f"```python\nimport attendrop\n\nanswers = attendrop.load(folder).predict([{row}]){more}\n```"


def _with_peft(head: Head) -> str:
    """Describe how PEFT alone loads an adapter."""
    classes = f", num_labels={len(head.output_names)}" if head.output_names else ""
    name = f"AutoPeft{head.auto_class.removeprefix('Auto')}"
    return (
        f"\n\nPEFT alone:\n\n```python\nfrom peft import {name}\n\nmodel = {name}.from_pretrained(folder{classes})\n```"
    )


def _refit(metrics: Mapping[str, Any]) -> str:
    """Describe the final training on all rows, if there was one."""
    selected = metrics["selection"]
    if selected is None:
        return ""
    return (
        f" {selected['rows']} training rows were held out for the selection score; then the model was trained again on "
        f"all {metrics['data']['rows']['train']} rows, for {counted(selected['steps'], 'step')}."
    )


def _scores(metrics: Mapping[str, Any]) -> str:
    scores = {
        f"{part}: {in_markdown(name)}": score_text(value)
        for part, all_ in metrics["all_scores"].items()
        for name, value in all_.items()
    }
    if metrics["selection_score"] is not None and metrics["data"]["selected_on"] != "dev":
        scores = {f"selection: {metrics['metric']}": score_text(metrics["selection_score"])} | scores
    for part, found in metrics["baseline"].items():
        constant = score_text(found["scores"][metrics["metric"]])
        scores[f"{part}: {metrics['metric']}, always answering {in_markdown(str(found['answer']))}"] = constant
    if not scores:
        return "No rows were held out: this model has no score of its own."
    return _table("set and metric", scores) + "\n\nThis is one seed."


def _table(head: str, values: dict[str, Any]) -> str:
    """Write a table; names are in Markdown, values are not."""
    rows = ((name, in_markdown(str(value))) for name, value in values.items())
    lines = (" | ".join(cell.replace("|", r"\|") for cell in row) for row in rows)
    return "\n".join([f"| {head} | value |", "|---|---|", *(f"| {line} |" for line in lines)])


def pruned_card(metrics: Mapping[str, Any], head: Head) -> str:
    """Write the card: what was pruned and how it was chosen, what it cost, and how to load the model."""
    pruned, metric = metrics["pruned"], metrics["metric"]
    selection = [("selection", pruned["selection"])] if pruned["selection"] else []
    rows = [*selection, *pruned["all_scores"].items()]
    scores = "\n".join(
        f"| {name}: {metric} | {score_text(score)} | {score_text(found['after'][metric], score)} | "
        f"{interval_of(found['difference'], score)} |"
        for name, found in rows
        for score in [found["before"][metric]]
    )
    title = in_markdown(f"{Path(metrics['model']).name}, {metrics['task']}")
    unknown = f"\n\nWhat is not known: {in_markdown(pruned['unknown'])}" if pruned["unknown"] else ""
    constant = f"Layers {json.dumps(pruned['layers'])} attend equally to all tokens."
    on = f"{pruned['rows']} rows of `{pruned['chosen_on']}`"
    chosen = f"ranked by {pruned['ranked_by']}, and chosen on {on}" if pruned["chosen"] else "not chosen by scores"
    return f"""{_front_matter("attendrop", head, "pruned")}

# {title}, without attention in {len(pruned["layers"])} of {pruned["of"]} layers

{constant if pruned["layers"] else "No layer was pruned."} The model was trained with `{metrics["method"]}`.
Layers were {chosen}.{unknown}

| | before | after | difference, 95 % interval |
|---|---|---|---|
{scores}
| parameters | {pruned["parameters"]["before"]:,} | {pruned["parameters"]["after"]:,} | |
{_speed(pruned["speed"])}
{_predicting(metrics, head)}
"""


def baseline_card(metrics: Mapping[str, Any], head: Head) -> str:
    """Write the card of a baseline that was kept: what it is, its data and scores, and how to use it."""
    return f"""{_front_matter("attendrop", head, metrics["method"])}

# Baseline {metrics["method"]} on {_data_name(metrics)}

Nothing was fine-tuned. Made with attendrop {metrics["versions"]["attendrop"]}.

## Data

{_data(metrics)}

## Scores

{_scores(metrics)}

## Method

`{metrics["method"]}`. `attendrop predict` and `attendrop evaluate` read this folder, transformers does not.

{_predicting(metrics, head)}
"""


def _speed(speed: Mapping[str, Any] | None) -> str:
    if speed is None:
        return ""
    spread = f"({speed['low']:.2f} to {speed['high']:.2f} in {speed['rounds']} rounds)"
    return f"\nMeasured speed where it was pruned: {speed['median']:.2f} times that of the whole model {spread}.\n"
