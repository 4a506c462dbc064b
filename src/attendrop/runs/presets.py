"""Published training settings as options of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attendrop.validation import check_choice

if TYPE_CHECKING:
    pass


PRESETS = ("paper",)


# Of the paper's code (SST-2, and the three large sets, train for fewer epochs and stop sooner).
_PAPER = {
    "learning_rate": 2e-5,
    "batch_size": 16,
    "schedule": "constant",
    "warmup": 0.0,
    "weight_decay": 0.01,
    "epochs": 50,
    "patience": 5,
    "protocol": "paper",
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
    """The options of a preset, as keywords of :class:`RunConfig`.

    Args:
        name: ``"paper"``: the training of the AD-DROP paper and its code. Of the values that it searched (learning rate
            1, 2, 3e-5; batch 16, 32, 64) these are the middle and the first; its tuned ``p`` and ``q`` are not public.
            It selects on the development set. AttendOut's papers give no training but "optimal parameters" and length
            256; with it the preset rewards on the development set, one sample at a time, as they do.
        task: Decides length, epochs, patience and the layers that AD-DROP acts on.
        method: The method's name.

    Raises:
        AttendropError: There is no such preset.
    """
    check_choice("preset", name, PRESETS)
    from attendrop.methods.ad_drop import ADDrop
    from attendrop.methods.attend_out.method import AttendOut

    training = {**_PAPER, **_PAPER_BY_TASK.get(task or "", {})}
    names = [name.strip() for name in method.split("+")]
    options: dict[str, dict[str, Any]] = {}
    if AttendOut.name in names:
        training["max_length"] = 256
        options[AttendOut.name] = {"reward_data": "eval", "reward_batch_size": 1}
    if ADDrop.name in names:
        options[ADDrop.name] = {"layers": ADDrop.paper_layers(task or "")}
    return training | {"options": options if len(names) > 1 else options.get(names[0], {})}
