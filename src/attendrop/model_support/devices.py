"""Devices on which models are trained and run."""

from __future__ import annotations

import torch

from attendrop.errors import AttendropError

# Without 64-bit floating-point numbers, in which counts are multiplied by fractions, and metrics summed.
_WITHOUT_DOUBLES = ("mps",)


def compute_device(device: str) -> torch.device:
    """Return the device that ``"auto"`` or ``"cpu"`` means on this machine; Apple's GPUs are not used."""
    if device == "cpu":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if accelerator is None or accelerator.type in _WITHOUT_DOUBLES else accelerator


def refuse_device(device: torch.device) -> None:
    """Raise AttendropError for a device on which no method can train."""
    if device.type in _WITHOUT_DOUBLES:
        raise AttendropError(
            "Apple's GPUs (MPS) have no 64-bit floating-point numbers, which the library needs; train on the CPU, in a "
            "trainer with TrainingArguments(use_cpu=True)."
        )
