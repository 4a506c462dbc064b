"""The device of tests: the CPU, or with ``pytest --device cuda -m gpu`` a GPU."""

import os

import torch

# Also for processes that tests start.
VARIABLE = "ATTENDROP_TEST_DEVICE"
DEVICE = torch.device(os.environ.get(VARIABLE, "cpu"))
ON_CPU = DEVICE.type == "cpu"
