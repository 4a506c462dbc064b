"""What methods are made of: the public names for a method of one's own, and those that the library's methods use.

``docs/own_method.md`` has a worked example and an overview; any file of ``attendrop/methods`` is another. A
:class:`Method` holds options and defines one training pass. A :class:`MethodState` is a method attached to a model, if
it keeps state or takes additional passes. A :class:`Plan` defines what one pass does to attention and to the blocks
around it.
"""

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.blocks import Block
from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit, BlockEdit
from attendrop.attention.isolation import evaluating, forked_rng, in_full_precision
from attendrop.attention.layers import AttentionLayer, select_layers
from attendrop.attention.plan import ConstantAttention, Plan
from attendrop.attribution.finite_gradients import wide
from attendrop.attribution.gradient import attention_attribution, gradient_attribution
from attendrop.attribution.head_importance import head_importance
from attendrop.attribution.integrated_gradients import integrated_gradient_attribution
from attendrop.errors import AttendropError
from attendrop.methods.common.antithetic import AntitheticPlan, row_losses, with_antithetic_pass
from attendrop.methods.common.divergence import mean_divergence, with_views
from attendrop.methods.common.initial_state import InitialState
from attendrop.methods.common.own_parameters import LearntProbabilities, OwnParameters, ValuePerLayer
from attendrop.methods.common.parameters import ParameterOverride, WeightMixing
from attendrop.methods.common.perturbations import WordPlan, loss_gradients, word_noise
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import (
    ANY,
    DECIDES_PASSES,
    EXCHANGES_WEIGHTS,
    REPLACES_DROPOUT,
    REPLACES_PARAMETERS,
    SCORES_ROWS,
    SECOND_MODEL,
    SKIPS_BLOCKS,
    LayerRanking,
    MethodInfo,
    Preset,
    Rule,
)
from attendrop.methods.core.options import (
    LAYERS,
    SWITCH,
    Range,
    choice,
    count,
    option,
    optional,
    positive,
    unit_interval,
)
from attendrop.model_support.batches import Batch, number_of_rows
from attendrop.randomness.candidates import candidate_region, floor_fraction
from attendrop.randomness.keyed_random import SampleKey, normal, sample_mask, sample_parameter_mask, uniform

__all__ = [
    "ANY",
    "DECIDES_PASSES",
    "EXCHANGES_WEIGHTS",
    "LAYERS",
    "REPLACES_DROPOUT",
    "REPLACES_PARAMETERS",
    "SCORES_ROWS",
    "SECOND_MODEL",
    "SKIPS_BLOCKS",
    "SWITCH",
    "AntitheticPlan",
    "AttendropError",
    "AttentionCall",
    "AttentionEdit",
    "AttentionLayer",
    "Batch",
    "Block",
    "BlockEdit",
    "ComputeLoss",
    "ConstantAttention",
    "InitialState",
    "LayerRanking",
    "LearntProbabilities",
    "Method",
    "MethodInfo",
    "MethodState",
    "ModelAdapter",
    "OwnParameters",
    "ParameterOverride",
    "Plan",
    "Preset",
    "RandomMaskPlan",
    "Range",
    "Rule",
    "SampleKey",
    "StepContext",
    "TrainingContext",
    "ValuePerLayer",
    "WeightMixing",
    "WordPlan",
    "attention_attribution",
    "candidate_region",
    "choice",
    "count",
    "evaluating",
    "floor_fraction",
    "forked_rng",
    "gradient_attribution",
    "head_importance",
    "in_full_precision",
    "integrated_gradient_attribution",
    "loss_gradients",
    "mean_divergence",
    "normal",
    "number_of_rows",
    "option",
    "optional",
    "positive",
    "row_losses",
    "sample_mask",
    "sample_parameter_mask",
    "select_layers",
    "uniform",
    "unit_interval",
    "wide",
    "with_antithetic_pass",
    "with_views",
    "word_noise",
]
