"""The figure of AD-DROP's appendix B: which attention a fine-tuned model relies on.

python recipes/probe.py runs/mine dev.csv --texts text --label label --output probe.png

evaluates a classifier on labelled rows while one layer drops a fraction of each row of attention: the positions of
highest attribution, of lowest attribution, or random ones. Attribution is the gradient of the gold label's logit (Eq. 5
of Yang et al., 2022). The figure shows the change of the mean loss, with its 95 % interval over rows (Student's t). The
appendix is not in the text available to us: this follows the description in the authors' code, but rows of attention
whose attributions are all equal keep all their positions, and random ones are added, as in section 2.2. The loss falls
without positions that speak against the gold label, which says nothing about how the model would predict.
"""

import argparse
from itertools import product

import matplotlib.pyplot as plt
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from attendrop.extend import (
    AttentionCall,
    AttentionEdit,
    Batch,
    ModelAdapter,
    Plan,
    SampleKey,
    candidate_region,
    evaluating,
    gradient_attribution,
    sample_mask,
)

DIRECTIONS = {"high": "tab:red", "low": "tab:blue", "random": "tab:gray"}


class DropRegion(Plan):
    """Drops a fraction of each row of attention in one layer, by its attribution, ``(batch, heads, query, key)``."""

    def __init__(self, layer: str, attribution: Tensor, rate: float, direction: str, key: SampleKey) -> None:
        super().__init__()
        self.layer_keys = (layer,)
        self.attribution, self.rate, self.direction, self.key = attribution, rate, direction, key

    def edit(self, call: AttentionCall) -> AttentionEdit:
        if self.direction == "random":
            name = f"{call.layer.key}/{self.rate}"
            return AttentionEdit(sample_mask(self.rate, self.key, name, call.shape, call.origins(), call.device))
        return AttentionEdit(candidate_region(self.attribution, call.valid, self.rate, self.direction).mask)


def probe(model: PreTrainedModel, batches: list[Batch], rates: list[float], seed: int = 0) -> pd.DataFrame:
    """Return the ``change`` of each row's cross-entropy by ``layer``, ``rate``, ``direction`` and ``row``."""
    entries = []
    first = 0  # number of the batch's first row, by which random positions are drawn
    with ModelAdapter(model) as adapter, evaluating(model):
        for batch in batches:
            attributions = gradient_attribution(adapter, batch, adapter.trace(batch), "gold_label")
            key = SampleKey(seed, 0, first, len(batch["labels"]))
            places = list(product(attributions, rates, DIRECTIONS))
            plans = [DropRegion(layer, attributions[layer], rate, way, key) for layer, rate, way in places]
            with torch.no_grad():
                logits = [adapter.forward(batch, plan).logits.double() for plan in (None, *plans)]
            plain, *losses = [cross_entropy(each, batch["labels"], reduction="none") for each in logits]
            for place, loss in zip(places, losses, strict=True):
                entries += [(*place, first + row, change) for row, change in enumerate((loss - plain).tolist())]
            first += len(plain)
    return pd.DataFrame(entries, columns=["layer", "rate", "direction", "row", "change"])


def plot(found: pd.DataFrame, file: str) -> None:
    """Draw the change of the mean loss over the rate, with a panel for each layer."""
    layers = list(found["layer"].unique())
    figure, axes = plt.figure(figsize=(9, 2.5 * -(-len(layers) // 3)), layout="constrained"), None
    for panel, layer in enumerate(layers, 1):
        axes = figure.add_subplot(-(-len(layers) // 3), min(3, len(layers)), panel, sharex=axes, sharey=axes)
        axes.set_title(layer, fontsize="small")
        for direction, color in DIRECTIONS.items():
            chosen = found[(found["layer"] == layer) & (found["direction"] == direction)].groupby("rate")["change"]
            mean, half = chosen.mean(), chosen.sem() * stats.t.ppf(0.975, chosen.count() - 1)
            axes.plot(mean.index, mean, "o-", markersize=3, color=color, label=direction)
            axes.fill_between(mean.index, mean - half, mean + half, color=color, alpha=0.15)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", title="attribution dropped")
    figure.supxlabel("fraction of each row of attention dropped")
    figure.supylabel("change of the mean loss")
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of a fine-tuned classifier, such as a run's")
    parser.add_argument("file", help="CSV file of labelled rows that it was not trained on")
    parser.add_argument("--texts", default="text", help="columns of the texts, comma-separated")
    parser.add_argument("--label", default="label", help="column of the labels")
    parser.add_argument("--rates", default="0.1,0.3,0.5,0.7,0.9", help="fractions of positions to drop")
    parser.add_argument("--rows", type=int, default=128, help="number of rows, from the beginning of the file")
    parser.add_argument("--output", default="probe.png", help="the figure; its values stand beside it, as CSV")
    given = parser.parse_args()
    rates = [float(rate) for rate in given.rates.split(",")]
    rows = pd.read_csv(given.file, dtype=str, keep_default_na=False).head(given.rows)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForSequenceClassification.from_pretrained(given.model)
    if unknown := set(rows[given.label]) - model.config.label2id.keys():
        parser.error(f"the model has no classes {sorted(unknown)}, only {list(model.config.label2id)}")
    if not all(0 < rate < 1 for rate in rates):
        parser.error(f"--rates {given.rates} must be above 0 and below 1")
    batches = []
    for start in range(0, len(rows), 16):
        some = rows[start : start + 16]
        inputs = tokenizer(*(list(some[name]) for name in given.texts.split(",")), padding=True, truncation=True)
        inputs["labels"] = [model.config.label2id[label] for label in some[given.label]]
        batches.append({name: torch.tensor(values) for name, values in inputs.items()})
    changes = probe(model, batches, rates)
    changes.groupby(["layer", "rate", "direction"])["change"].mean().to_csv(f"{given.output}.csv")
    plot(changes, given.output)
