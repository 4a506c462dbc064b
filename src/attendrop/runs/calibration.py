"""Calibration: a temperature that makes the probabilities of a classifier fit rows it was not trained on."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task


def check_calibrates(task: Task) -> None:
    """Raise AttendropError if the predictions of a kind of task are not one of several classes."""
    if not task.head.num_classes:
        raise AttendropError(f"calibrate is for classes; the labels are {task.head.labels_are}: omit it.")


def divide_logits(model: PreTrainedModel, temperature: float) -> None:
    """Divide the logits of a model by a temperature, in the weights of its last layer.

    So every program that loads the model, stock transformers and ONNX files among them, computes the calibrated
    probabilities. The predicted classes stay.

    Args:
        model: A classifier, changed in place.
        temperature: Above 0; above 1 makes the model less sure.

    Raises:
        AttendropError: The model has no linear layer with an output for each class at its end.

    Source: Guo, Pleiss, Sun, Weinberger (2017), On Calibration of Modern Neural Networks, section 4.2.
    """
    outputs = model.config.num_labels
    found = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == outputs]
    last = next((layer for layer in reversed(found) if layer.weight.requires_grad), None)
    if last is None:
        raise AttendropError("calibrate: the model has no linear layer at its end that could be scaled; omit it.")
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.div_(temperature)
