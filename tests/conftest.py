"""Settings and fixtures of all tests: no network, one thread, few messages."""

import gc
import os
import signal
import sys

# In a job in the background of a script, Ctrl-C is ignored, and would be in the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["HF_HUB_OFFLINE"] = "1"
# For processes that tests start, too: gradients of LayerNorm depend on the number of threads, in their last bits.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests marked ``gpu`` run on a GPU."""
    parser.addoption("--device", default="cpu", help="where tiny models and their batches are, for tests marked gpu")


def pytest_configure(config: pytest.Config) -> None:
    """Tell the helpers, and processes that tests start, the device; have it add up in a fixed order.

    Until all tests are imported, no garbage is collected: there is none, and looking for it is a third of the time.
    """
    gc.disable()
    os.environ["ATTENDROP_TEST_DEVICE"] = device = config.getoption("--device")
    if device != "cpu":
        import torch

        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers in ``model``, and ``train.csv`` and ``dev.csv``, for all tests of a module."""
    from helpers import tiny

    folder = tmp_path_factory.mktemp("folder")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    return folder


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch  # here: what every conftest imports delays the process that starts the others

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases but each n-th, starting with the first, of a test with ``sampled(n)`` as slow.

    With ``sampled(n, rows)``, all but about one in n of the cases with one of these rows of a table, or with the name
    of one, as a parameter, chosen by the names of the cases.
    """
    cases: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("sampled"):
            number, rows = 0, mark.args[1] if len(mark.args) > 1 else {}
            if len(mark.args) == 1:
                number, cases[test] = cases[test], cases[test] + 1
            elif any(value in rows if isinstance(value, str) else value in [*rows.values()] for value in _values(item)):
                number = crc32(item.nodeid.encode())
            if number % mark.args[0]:
                item.add_marker(pytest.mark.slow)


def _values(item: Any) -> list[Any]:
    return [*item.callspec.params.values()] if hasattr(item, "callspec") else []


_frozen_modules = 0


def pytest_collection_finish() -> None:
    """Exempt what was imported from garbage collection: without, ``gc.collect`` is half of the time of a trainer."""
    global _frozen_modules
    gc.freeze()
    gc.set_threshold(50_000)  # also where a test imports much
    gc.enable()
    _frozen_modules = len(sys.modules)


def pytest_runtest_teardown() -> None:
    """Exempt what a test imported, if it is much."""
    if len(sys.modules) > _frozen_modules + 50:
        pytest_collection_finish()
