"""How many nodes of Gauss-Legendre rank attention positions as 20 Riemann steps do."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from texts import REAL_TASKS, collate, real_model, real_rows, why_no_real_data
from torch import Tensor
from workloads import BATCH_SIZE, Batch, Setting, build_model, made_up

from attendrop.attention.adapter import ModelAdapter
from attendrop.attribution.gradient import SCOPES, integrated_gradient_attribution

_ENOUGH = 0.95
_RIEMANN_STEPS = 20
_LESSONS = 30


@dataclass(frozen=True)
class Fidelity:
    """What so many nodes reach on some batches: the mean correlation of each batch."""

    case: str
    steps: int
    correlations: list[float]


def enough_nodes(setting: Setting) -> dict[str, list[Fidelity]]:
    """Find, for both scopes and each source of batches, the smallest number of nodes that ranks rows nearly alike."""
    found: dict[str, list[Fidelity]] = {scope: [] for scope in SCOPES}
    for case, model, batches in _cases(setting):
        adapter = ModelAdapter(model)
        adapter.attach()
        attention_layers = adapter.trace(batches[0])
        attribute = partial(
            integrated_gradient_attribution, adapter, attention_layers=attention_layers, target="pseudo_label"
        )
        for scope in SCOPES:
            wanted = [attribute(batch, scope=scope, rule="riemann", steps=_RIEMANN_STEPS) for batch in batches]
            for steps in range(1, 3 if setting.quick else 13):
                got = [attribute(batch, scope=scope, rule="gauss_legendre", steps=steps) for batch in batches]
                rows = [_compare(*triple) for triple in zip(got, wanted, batches, strict=True)]
                correlations = [values.mean().item() for values in rows]
                if torch.cat(rows).mean() >= _ENOUGH:
                    break
            found[scope].append(Fidelity(case, steps, correlations))
        adapter.detach()
    return found


def _cases(setting: Setting) -> Iterator[tuple[str, Any, list[Batch]]]:
    """Yield name, model and batches: the real model, fine-tuned a little, on real batches, or a random one."""
    if why_no_real_data() or setting.quick:
        batches = [setting.to_device(made_up(setting.lengths[0], ragged=True))]
        yield "random weights", build_model(setting, "tiny"), batches
        return
    for task, title in REAL_TASKS.items():
        model = real_model(setting)
        rows = real_rows(task, BATCH_SIZE * (_LESSONS + 1))
        chunks = [rows.select(range(i, i + BATCH_SIZE)) for i in range(0, len(rows), BATCH_SIZE)]
        *lessons, test = [setting.to_device(collate(list(chunk))) for chunk in chunks]
        _learn(model, lessons)
        halves = [{name: value[half] for name, value in test.items()} for half in (slice(8), slice(8, None))]
        yield f"all-MiniLM-L6-v2 after {len(lessons)} steps on {title}", model, halves


def _learn(model: Any, batches: list[Batch]) -> None:
    """Fine-tune for an epoch, so that predictions rest on something."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    for batch in batches:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _compare(got: dict[str, Tensor], wanted: dict[str, Tensor], batch: Batch) -> Tensor:
    """Rank correlation of each row with signal, over the keys that are not padding; all sites, heads and sequences."""
    found = []
    for sequence, length in enumerate(batch["attention_mask"].sum(-1).tolist()):
        for layer, expected in wanted.items():
            x, y = (values[sequence, :, :length, :length].flatten(0, 1) for values in (got[layer], expected))
            signal = (y != y[:, :1]).any(-1)
            found.append(spearman(x[signal], y[signal]))
    return torch.cat(found)


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Rank correlation of each row of two matrices ``(rows, columns)``; ties are ranked as they come."""
    x, y = (values.double().argsort(-1).argsort(-1).double() for values in (x, y))
    x, y = (ranks - ranks.mean(-1, keepdim=True) for ranks in (x, y))
    return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
