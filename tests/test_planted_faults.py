"""The faults of ``make mutants`` can be planted: their text stands once in the sources, and their tests exist."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from plant_faults import ROOT, faults


def test_faults_can_be_planted_and_have_tests() -> None:
    for fault in faults():
        planted = fault.planted((ROOT / "src" / fault.path).read_text(encoding="utf-8"))
        compile(planted, fault.name, "exec")
        missing = [test for test in fault.tests if not (ROOT / "tests" / test.partition("::")[0]).is_file()]
        assert not missing, fault.name
