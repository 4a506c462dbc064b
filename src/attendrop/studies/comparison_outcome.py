"""Result of a comparison: the answer, the settings that were tried, and the model that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attendrop.studies.answer import Answer
from attendrop.studies.method_setting import MethodSetting
from attendrop.studies.setting_search import Trial, choose


@dataclass(frozen=True)
class Outcome:
    """Result of a comparison.

    Attributes:
        answer: The table, and the answer in words.
        trials: The settings that were tried, by label of the one they began with; empty without a search.
        kept: Label of the row whose model was kept; None if none was.
        best: Folder of this model.
    """

    answer: Answer
    trials: Mapping[str, Sequence[Trial]] = field(default_factory=dict)
    kept: str | None = None
    best: Path | None = None

    @property
    def chosen(self) -> dict[str, MethodSetting]:
        """The chosen settings, by label of the one they began with; empty without a search."""
        return {label: choose(each) for label, each in self.trials.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return self.answer.as_dict() | {
            "trials": {
                name: [{"setting": trial.setting.described, "scores": trial.scores} for trial in each]
                for name, each in self.trials.items()
            },
            "chosen": {name: setting.described for name, setting in self.chosen.items()},
            "kept": self.kept,
            "best": None if self.best is None else str(self.best),
        }

    def lines(self) -> list[str]:
        """Return the answer in words, and the table."""
        tried = [
            f"{name}: {setting.described}, of {len(self.trials[name])} settings on selection rows."
            for name, setting in self.chosen.items()
        ]
        lines = [*self.answer.lines(), *(["", *tried] if tried else [])]
        if self.best is None:
            return lines
        model = "The model" if self.kept == self.answer.use else f"The model of {self.kept}"
        return [*lines, "", f"{model} is in {self.best}: attendrop predict {self.best} ..."]
