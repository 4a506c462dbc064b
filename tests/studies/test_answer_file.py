"""An answer is read back from its file as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attendrop.errors import AttendropError
from attendrop.files.output_files import write_json
from attendrop.studies.answer import answer
from attendrop.studies.study import read_answers

PLAIN, OTHER = (0.5, 0.6, 0.55, 0.52), (0.56, 0.63, 0.6, 0.55)


def runs(method: str, scores: tuple[float, ...]) -> list[dict[str, Any]]:
    known = {"task": "cola", "model": "m", "metric": "accuracy", "method": method, "options": {}, "train_seconds": 2.0}
    return [
        known
        | {"seed": seed, "score": score, "output_dir": f"out/runs/{method}-{seed}", "data": {"rows": {"dev": 90}}}
        | {"row_scores": {"rows": 90, "data": "", "blocks": [score] * 50}}
        for seed, score in enumerate(scores)
    ]


@pytest.mark.parametrize("count", [4, 1])
def test_an_answer_is_read_back_as_it_was(tmp_path: Path, count: int) -> None:
    found = answer(runs("finetune", PLAIN[:count]) + runs("r-drop", OTHER[:count]))
    write_json(tmp_path / "comparison.json", found.as_dict())
    assert read_answers(tmp_path / "comparison.json") == {"": found}
    write_json(tmp_path / "study.json", {"settings": {"a": found.as_dict(), "b": found.as_dict()}})
    assert list(read_answers(tmp_path / "study.json") or {}) == ["a", "b"]


def test_a_file_of_another_program_is_refused_and_none_is_no_error(tmp_path: Path) -> None:
    assert read_answers(tmp_path / "answer.json") is None
    for content in ({"answer": 42}, {"settings": []}, {"settings": {"a": {"methods": []}}}):
        write_json(tmp_path / "answer.json", content)
        with pytest.raises(AttendropError, match="not written by attendrop"):
            read_answers(tmp_path / "answer.json")
