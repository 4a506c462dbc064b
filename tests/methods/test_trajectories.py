"""Ten steps of training with each method of the table, pinned as numbers that show unintended changes of behaviour.

``make trajectories`` writes the file again after an intended change.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import zoo
from helpers.table import TABLE, given

from attendrop import Method, regularize

FILE = Path(__file__).with_name("trajectories.json")
PINNED = json.loads(FILE.read_text(encoding="utf-8"))
STEPS = 10


def trajectory(method: Method) -> list[float]:
    """Compute ten losses of a tiny BERT without dropout, in float64, and the final norm of its parameters."""
    model = zoo.build("bert", dtype=torch.float64)
    batches = [zoo.batch_of("bert", (8, 5 + i % 3, 3)) for i in range(STEPS)]
    needed = given(model, batches[0]) | {"total_steps": STEPS}
    found = []
    torch.manual_seed(0)
    with regularize(model, method, **needed) as reg:
        for step, batch in enumerate(batches):
            reg.set_epoch(step // 5)
            loss = reg.loss(batch)
            loss.backward()
            needed["optimizer"].step()
            needed["optimizer"].zero_grad()
            reg.step()
            found.append(float(loss.detach()))
    return [*found, float(torch.cat([p.detach().flatten() for p in model.parameters()]).norm())]


def test_every_row_is_pinned() -> None:
    assert PINNED.keys() == TABLE.keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row", TABLE)
def test_ten_steps_are_as_pinned(row: str) -> None:
    assert trajectory(TABLE[row]) == pytest.approx(PINNED[row], rel=1e-6, abs=1e-7)


if __name__ == "__main__":
    rows = [f'  "{row}": {json.dumps([round(x, 8) for x in trajectory(m)])}' for row, m in TABLE.items()]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
