"""Settings and fixtures of all tests: no network, one thread, few messages."""

import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"
# For processes that tests start, too: gradients of LayerNorm depend on the number of threads, in their last bits.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

settings.register_profile(
    "attendrop", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("attendrop")


@pytest.fixture
def attendrop_data() -> Path:
    """The folder of real data; the test is skipped where there is none."""
    folder = os.environ.get("ATTENDROP_DATA")
    if not folder:
        pytest.skip("ATTENDROP_DATA is not set: no real data here")
    return Path(folder)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases but each n-th, starting with the first, of a test with ``sampled(n)`` as slow."""
    cases: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None:
            test = item.nodeid.partition("[")[0]
            if cases[test] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1


def pytest_collection_finish() -> None:
    """Exempt imported modules from garbage collection: without, ``gc.collect`` is half of the time of a trainer."""
    gc.collect()
    gc.freeze()
