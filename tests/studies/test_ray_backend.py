"""What a unit gets of a Ray cluster, and Ray that is not installed."""

from __future__ import annotations

import importlib.util

import pytest

from attendrop import AttendropError
from attendrop.studies.ray_backend import RayCluster, share_of_unit

SHARES = [
    # machines, number asked for: number of units, cores and GPUs of each
    ([{"CPU": 4}], None, 4, 1, 0),
    ([{"CPU": 8}, {"CPU": 8}], 4, 4, 4, 0),
    ([{"CPU": 2}, {"CPU": 16}], 3, 3, 2, 0),  # no more than the smallest machine has
    ([{"CPU": 2}], 4, 4, 0.5, 0),
    ([{"CPU": 16, "GPU": 2}, {"CPU": 8, "GPU": 1}], None, 3, 8, 1),
    ([{"CPU": 64}, {"CPU": 8, "GPU": 1}], None, 1, 8, 1),  # the machine without a GPU runs nothing
    ([{"CPU": 16, "GPU": 2}], 5, 5, 3, 0.33),
    ([{}], None, 1, 1, 0),  # no machine yet
]


@pytest.mark.parametrize(("machines", "asked", "count", "cores", "gpus"), SHARES)
def test_units_share_the_cores_and_gpus_of_a_cluster(
    machines: list[dict[str, float]], asked: int | None, count: int, cores: float, gpus: float
) -> None:
    assert share_of_unit(machines, asked) == (count, {"num_cpus": cores, "num_gpus": gpus})


def test_ray_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AttendropError, match=r"pip install 'attendrop\[ray\]'"):
        RayCluster("local")
