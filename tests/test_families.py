"""The table of docs/models.md against what the library does with each family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from helpers import families
from helpers.families import row
from packaging.version import Version

from attendrop import ADDrop
from attendrop.attention import padding
from attendrop.runs.model_loading import examine

TABLE = json.loads((Path(__file__).parent.parent / "docs" / "models.json").read_text(encoding="utf-8"))
# Older versions lack families, and hand fewer arguments on to attention in some.
pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < Version(TABLE["transformers"]), reason="the table is of a newer transformers"
)
ROWS = {found["family"]: found for found in TABLE["rows"]}
SAMPLE = ("bert", "bloom", "deberta-v2", "gpt_oss", "llava", "pegasus_x", "segformer", "swin", "whisper")
every_family = pytest.mark.parametrize(
    "family", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in ROWS]
)


def test_the_table_has_a_row_for_each_family_and_80_at_least_were_tried() -> None:
    assert set(ROWS) == set(families.families())
    assert sum("unbuilt" not in found for found in ROWS.values()) >= 80


@every_family
def test_a_family_does_what_the_table_says(family: str) -> None:
    assert row(family) == ROWS[family]


@every_family
def test_a_step_is_the_same_without_padding(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "_NARROWEST", 1)
    if "unbuilt" in ROWS[family]:
        pytest.skip("no tiny model of it can be made here")
    model, batch = families.any_model(family)
    leaves_out = families.assert_padding_can_be_left_out(model, batch)
    assert leaves_out or family not in ("bert", "deberta-v2", "gpt_oss", "mpnet", "roberta")


def test_units_are_dropped_where_heads_have_masks_of_their_own() -> None:
    families.assert_acts(*families.any_model("swin"), ADDrop(p=0.5, q=0.5, units="hidden", layers="all"))


@every_family
def test_doctor_says_what_the_table_says(family: str, tmp_path: Path) -> None:
    found = ROWS[family]
    if "unbuilt" in found:
        pytest.skip("no tiny model of it can be made here")
    model, _ = families.any_model(family)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    said = examine(str(tmp_path))
    assert said["supported"] == (found["refused"] is None or "works" in found), said["reason"]
