"""Model cards of runs and of pruned models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from attendrop.methods.core.registry import build_method, flat_options
from attendrop.support.files import lasting_name
from attendrop.tasks.error_analysis import promise
from attendrop.tasks.table import files_of
from attendrop.tasks.tokenization import HEAD
from attendrop.tasks.types.base import TaskType
from attendrop.wording import counted, in_markdown, interval_of, score_text

CARD = "README.md"
SCORED_ONCE = " The development set was scored once, at the end."
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?", re.ASCII)
# Training options that are shown.
_TRAINING = (
    *("epochs", "max_steps", "batch_size", "gradient_accumulation", "learning_rate", "schedule", "warmup"),
    *("weight_decay", "pooling", "head_init", "max_length", "long_texts", "seed"),
)
_PROTOCOLS = {
    "dev": "The best epoch was chosen **on the development set**, as the papers do; the score below is optimistic.",
    "selection": "The best epoch was chosen on {selection} rows set aside from the training data.",
    None: "The last epoch was kept.",
}
_REWARDED = {
    "reward": " The method was rewarded by scores on {reward} more rows set aside from the training data.",
    "dev": " **The method scored models on the development set during training**, which decided what was dropped; the "
    "score below is optimistic.",
    None: "",
}


def model_card(metrics: Mapping[str, Any], task_type: TaskType, *, stock: bool = True, adapter: bool = False) -> str:
    """Write the card of a run: data, protocol, scores, method, training options, and how to load the model.

    ``stock``: the model is of a class of transformers; others need ``trust_remote_code=True``. ``adapter``: it is saved
    as an adapter, and not merged.
    """
    config, rows, method = metrics["config"], metrics["data"]["rows"], metrics["method"]
    parts, linear = build_method(method, metrics["options"]).parts, config.get("max_steps") == 0
    base = lasting_name(metrics["model"])
    is_on_hub = _HUB_NAME.fullmatch(base) is not None and not Path(base).exists()
    front = _front_matter("peft" if adapter else "transformers", task_type, method, base=base if is_on_hub else None)
    sources = (part.info for part in parts if part.info.paper)
    papers = dict.fromkeys(f"- [{info.paper}]({info.link})" if info.link else f"- {info.paper}" for info in sources)
    options = {f"`{name}`": value for name, value in flat_options(metrics["options"]).items()}
    values = config | metrics["training"]
    training = {f"`{name}`": values[name] for name in _TRAINING if values[name] is not None}
    training |= {f"`lora.{name}`": value for name, value in (config.get("lora") or {}).items() if value is not None}
    acted = [str(entry["epoch"]) for entry in metrics["history"] if entry["regularized"]]
    chosen = "Nothing was fine-tuned." if linear else _PROTOCOLS[metrics["data"]["selected_on"]].format(**rows)
    protocol = f"`{metrics['protocol']}`. {chosen}"
    if (selected := metrics["selection"]) is not None:
        protocol += (
            f" {selected['rows']} training rows were held out for the selection score; then the model was trained "
            f"again on all {rows['train']} rows, for {counted(selected['steps'], 'step')}."
        )
    protocol += SCORED_ONCE if scored_once(metrics) else ""
    protocol += _REWARDED[metrics["data"]["rewarded_on"]].format(**rows)
    length = metrics["data"].get("report", {}).get("max_length", config["max_length"])  # at most what the model reads
    loading = "With transformers alone" + ("" if stock else ", and the modelling file beside the weights")
    if adapter:
        loading = "The files are an adapter of PEFT, which `attendrop.load` merges into its model"
    if config.get("with_columns"):
        loading += "; texts begin as above"
    if config.get("long_texts") not in (None, HEAD):
        loading += f"; texts over {length} tokens are cut here, as they were not in training"
    texts, trusted = len(metrics["data"]["text_columns"]), "" if stock else ", trust_remote_code=True"
    usage = usage_of(task_type, texts, length, stock=not adapter, options=trusted)
    loading = f"{_predicting(metrics, task_type)}\n\n{loading}:\n\n```python\n{usage}\n```"
    if adapter and task_type.peft_task_type is not None:
        name = f"AutoPeft{task_type.auto_class.removeprefix('Auto')}"
        classes = f", num_labels={len(task_type.output_names)}" if task_type.output_names else ""
        code = f"from peft import {name}\n\nmodel = {name}.from_pretrained(folder{classes})"
        loading += f"\n\nPEFT alone:\n\n```python\n{code}\n```"
    made = f"fine-tuned on {_data_name(metrics)} with {method}"
    about = f"Method `{method}`: {'; '.join(part.info.summary for part in parts)}."
    if linear:
        made, about = f"with a linear model, on {_data_name(metrics)}", "A linear model on the frozen encoder."
    sections = [
        f"# {in_markdown(Path(metrics['model']).name)} {made}\n\nTrained with attendrop "
        f"{metrics['versions']['attendrop']}. {about}",
        f"## Data\n\n{_data(metrics)}",
        f"## Protocol\n\n{protocol}",
        f"## Scores\n\n{_scores(metrics)}",
        f"## Which answers to trust\n\n{promise(metrics['accept'])}" if "accept" in metrics else "",
        "## Method\n\n" + (about if linear else f"`{method}`, active in epochs: {', '.join(acted) or 'none'}."),
        _table("option", options) if options else "",
        f"## Training\n\n{_table('option', training)}",
        f"## How to load it\n\n{loading}",
        "## Citation\n\n" + "\n".join(papers) if papers else "",
    ]
    return "\n\n".join([front, *filter(None, sections)]) + "\n"


def with_section(card: str, title: str, text: str) -> str:
    """Return a card with a section inserted before that of the method, replacing one with the same title."""
    before, method, after = card.partition("\n\n## Method\n")
    heading = f"\n\n## {title}\n"
    return f"{before.partition(heading)[0]}{heading}\n{text}{method}{after}"


def scored_once(metrics: Mapping[str, Any]) -> bool:
    """Return whether there is a development set that was used only for the reported score."""
    used_on = (metrics["data"]["selected_on"], metrics["data"]["rewarded_on"])
    return "dev" in metrics["all_scores"] and "dev" not in used_on


def _front_matter(library: str, task_type: TaskType, tag: str, base: str | None = None) -> str:
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {task_type.pipeline_tag}"]
    lines += [f"base_model: {base}"] if base is not None else []
    return "\n".join([*lines, "tags:", "- attendrop", f"- {tag}", "---"])


def _data_name(metrics: Mapping[str, Any]) -> str:
    """Return the name of the task, or of the training file, in Markdown."""
    task, files = metrics["config"]["task"], metrics["config"]["train_file"]
    return str(task) if task is not None else in_markdown(", ".join(file.name for file in files_of(files)))


def _data(metrics: Mapping[str, Any]) -> str:
    """Describe the data: what the model was trained on, what it was scored on, and the rows of each part."""
    scored = ", ".join(file.name for file in files_of(metrics["config"]["eval_file"] or ""))
    scored = f"; scored on {in_markdown(scored)}" if scored else ""
    again = "selection" if metrics.get("selection") else None  # rows that were trained on in the end
    rows = ", ".join(f"{count} {part}" for part, count in metrics["data"]["rows"].items() if part != again)
    return f"Trained on {_data_name(metrics)}{scored}. Rows: {rows}."


def _predicting(metrics: Mapping[str, Any], task_type: TaskType) -> str:
    """Return a block of Python code that predicts with the model."""
    inputs = task_type.inputs_of(len(metrics["data"]["text_columns"]))[: task_type.most_inputs]
    names = [{"text_pair": "second_text", "tokens": "words"}.get(name, name) for name in inputs]
    if others := metrics["config"].get("with_columns"):
        names[0] = f"{json.dumps(''.join(f'{name}: ... | ' for name in others), ensure_ascii=False)} + {names[0]}"
    row = names[0] if len(names) == 1 else f"({', '.join(names)})"
    more = "  # probabilities=True: and how probable each is" if task_type.has_probabilities else ""
    return f"```python\nimport attendrop\n\nanswers = attendrop.load(folder).predict([{row}]){more}\n```"


def _scores(metrics: Mapping[str, Any]) -> str:
    scores = {}
    if metrics["selection_score"] is not None and metrics["data"]["selected_on"] != "dev":
        scores[f"selection: {metrics['metric']}"] = score_text(metrics["selection_score"])
    for part, found in metrics["all_scores"].items():
        scores |= {f"{part}: {in_markdown(name)}": score_text(value) for name, value in found.items()}
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


def pruned_card(metrics: Mapping[str, Any], task_type: TaskType) -> str:
    """Write the card: what was pruned and how it was chosen, what it cost, and how to load the model."""
    pruned, metric = metrics["pruned"], metrics["metric"]
    rows = ({"selection": pruned["selection"]} if pruned["selection"] else {}) | pruned["all_scores"]
    scores = "\n".join(
        f"| {name}: {metric} | {score_text(score)} | {score_text(found['after'][metric], score)} | "
        f"{interval_of(found['difference'], score)} |"
        for name, found in rows.items()
        for score in [found["before"][metric]]
    )
    title = in_markdown(f"{Path(metrics['model']).name}, {metrics['task']}")
    unknown = f"\n\nWhat is not known: {in_markdown(pruned['unknown'])}" if pruned["unknown"] else ""
    constant = f"Layers {json.dumps(pruned['layers'])} attend equally to all tokens."
    on = f"{pruned['rows']} rows of `{pruned['chosen_on']}`"
    chosen = f"ranked by {pruned['ranked_by']}, and chosen on {on}" if pruned["chosen"] else "not chosen by scores"
    speed = ""
    if (found := pruned["speed"]) is not None:
        spread = f"({found['low']:.2f} to {found['high']:.2f} in {found['rounds']} rounds)"
        speed = f"\nMeasured speed where it was pruned: {found['median']:.2f} times that of the whole model {spread}.\n"
    recovered = ""
    if epochs := pruned.get("recover_epochs"):
        recovered = f"Without these layers it was fine-tuned for {counted(epochs, 'more epoch')}, without a method.\n"
    return f"""{_front_matter("attendrop", task_type, "pruned")}

# {title}, without attention in {len(pruned["layers"])} of {pruned["of"]} layers

{constant if pruned["layers"] else "No layer was pruned."} The model was trained with `{metrics["method"]}`.
{recovered}Layers were {chosen}.{unknown}

| | before | after | difference, 95 % interval |
|---|---|---|---|
{scores}
| parameters | {pruned["parameters"]["before"]:,} | {pruned["parameters"]["after"]:,} | |
{speed}
{_predicting(metrics, task_type)}
"""


def baseline_card(metrics: Mapping[str, Any], task_type: TaskType) -> str:
    """Write the card of a baseline that was kept: what it is, its data and scores, and how to use it."""
    made = "SetFit trained the encoder on pairs of rows" if metrics["method"] == "setfit" else "Nothing was fine-tuned"
    return f"""{_front_matter("attendrop", task_type, metrics["method"])}

# Baseline {metrics["method"]} on {_data_name(metrics)}

{made}. Made with attendrop {metrics["versions"]["attendrop"]}.

## Data

{_data(metrics)}

## Scores

{_scores(metrics)}

{f"{promise(metrics['accept'])}{chr(10) * 2}" if "accept" in metrics else ""}## Method

`{metrics["method"]}`. `attendrop predict` and `attendrop evaluate` read this folder, transformers does not.

{_predicting(metrics, task_type)}
"""


def usage_of(task_type: TaskType, num_texts: int, max_length: int, *, stock: bool = True, options: str = "") -> str:
    """Return Python code that loads and calls a model; ``stock``: with transformers alone, and further ``options``."""
    texts = ", ".join(("text", "second_text")[:num_texts])
    code = Template(task_type.example).substitute(
        texts=texts, max_length=max_length, **task_type.example_values(stock=stock)
    )
    imports, model = "import attendrop\nfrom transformers import AutoTokenizer", "attendrop.load(folder)"
    if stock:
        imports = f"from transformers import {task_type.auto_class}, AutoTokenizer"
        model = f"{task_type.auto_class}.from_pretrained(folder{options})"
    first = "import torch\n" if "torch." in code else ""
    return f"{first}{imports}\n\nmodel = {model}\ntokenizer = AutoTokenizer.from_pretrained(folder{options})\n{code}"
