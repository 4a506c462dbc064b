"""What all tests share: no network, one thread, little noise."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

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
