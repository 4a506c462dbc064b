"""Training runs: from options to a model with its scores, and the use of what a run left."""

from attendrop.runs.config import RunConfig, preset
from attendrop.runs.infer import Source, evaluate, predict
from attendrop.runs.train import train

__all__ = ["RunConfig", "Source", "evaluate", "predict", "preset", "train"]
