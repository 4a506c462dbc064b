"""Published training settings as options of a run."""

from __future__ import annotations

from typing import Any

from attendrop.argument_checks import check_choice

PRESETS = ("paper",)
# The fine-tuning of Yang et al. (2022) and of their code (SST-2 and the three large sets train for fewer epochs and
# stop sooner). Of the values that they searched (learning rate 1, 2, 3e-5; batch 16, 32, 64) these are the middle and
# the first; the best epoch is chosen on the development set.
_PAPER = {
    "learning_rate": 2e-5,
    "batch_size": 16,
    "schedule": "constant",
    "warmup": 0.0,
    "weight_decay": 0.01,
    "epochs": 50,
    "patience": 5,
    "protocol": "paper",
    "pooling": "cls",
    "head_start": "random",
}
_PAPER_BY_TASK: dict[str, dict[str, Any]] = {
    "cola": {"max_length": 47},
    "rte": {"max_length": 128},
    "mrpc": {"max_length": 100},
    "stsb": {"max_length": 100},
    "sst2": {"epochs": 20, "patience": 5},
    **{task: {"epochs": 10, "patience": 3} for task in ("qnli", "mnli", "qqp")},
}


def preset(name: str, task: str | None, method: str) -> dict[str, Any]:
    """Look up the options of a preset, as keywords of :class:`RunConfig`.

    Args:
        name: ``"paper"``: fine-tuning as in Yang et al. (2022), and what the method's own paper says where it differs
            (:meth:`attendrop.methods.core.base.Method.preset`).
        task: Decides length, epochs and patience, and options of some methods.
        method: Name of the method, or several joined by ``+``.

    Raises:
        AttendropError: There is no such preset or method.
    """
    check_choice("preset", name, PRESETS)
    from attendrop.methods.core.registry import get_method

    training = {**_PAPER, **_PAPER_BY_TASK.get(task or "", {})}
    methods = [get_method(part.strip()) for part in method.split("+")]
    options: dict[str, dict[str, Any]] = {}
    for each in methods:
        published = each.preset(name, task)
        training |= published.training
        options |= {each.info.name: dict(published.options)} if published.options else {}
    return training | {"options": options if len(methods) > 1 else options.get(methods[0].info.name, {})}
