"""Building blocks of custom methods, the same as those of the library's methods.

``docs/own_method.md`` has a worked example and an overview. A :class:`Method` holds options and defines one training
pass. A :class:`MethodState` is a method attached to a model, if it keeps state or takes additional passes. A
:class:`Plan` defines what one pass does to attention and to the blocks around it.
"""

from attendrop.argument_checks import (
    check_choice,
    check_count,
    check_positive,
    check_probability,
    check_switch,
    suggestion,
)
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.blocks import Block, block_of
from attendrop.attention.call import AttentionCall
from attendrop.attention.dropout_draws import DropoutDraws
from attendrop.attention.edits import AttentionEdit, BlockEdit, merge_edits
from attendrop.attention.example_inputs import example_inputs
from attendrop.attention.isolation import evaluating, forked_rng, in_full_precision
from attendrop.attention.layers import AttentionLayer, checked_layers, select_layers, select_self_attention
from attendrop.attention.plan import CombinedPlan, ConstantAttention, Plan
from attendrop.attention.projections import ValueProjection, factors, find_value_projection
from attendrop.attention.valid_keys import any_last
from attendrop.attribution.attention_weights import attention_attribution
from attendrop.attribution.finite_gradients import all_finite, finite_gradients, gradients_of, wide
from attendrop.attribution.gradient import gradient_attribution
from attendrop.attribution.head_importance import GatePlan, head_importance
from attendrop.attribution.integrated_gradients import QUADRATURE_RULES, SCOPES, integrated_gradient_attribution
from attendrop.attribution.label_positions import aligned_labels
from attendrop.attribution.predictions import is_regression, kind_of
from attendrop.attribution.targets import fix_target
from attendrop.batches import Batch, number_of_rows, refuse_graph, to_device
from attendrop.candidates import Region, candidate_region, floor_fraction, pack, unpack
from attendrop.errors import AttendropError
from attendrop.fused_optimizers import skips_step
from attendrop.keyed_random import SampleKey, normal, sample_mask, sample_parameter_mask, sample_row_mask, uniform
from attendrop.methods.common.antithetic import AntitheticPlan, with_antithetic_pass
from attendrop.methods.common.consistent_views import with_views
from attendrop.methods.common.divergence import divergences, mean, mean_divergence, mean_spread
from attendrop.methods.common.initial_state import InitialState
from attendrop.methods.common.learnt_probabilities import LearntProbabilities, probability_rules
from attendrop.methods.common.own_parameters import OwnParameters, ValuePerLayer, own_parameter_rules
from attendrop.methods.common.parameter_override import (
    ParameterOverride,
    embedding_weights,
    layer_parameters,
    pretrained_parameters,
    projection_weights,
)
from attendrop.methods.common.random_mask import RandomMaskPlan, dropout
from attendrop.methods.common.row_losses import row_losses, row_shares
from attendrop.methods.common.weight_mixing import WeightMixing
from attendrop.methods.common.word_embeddings import NOISES, Perturbation, WordPlan, word_noise
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.compatibility import (
    ANY,
    DECIDES_PASSES,
    EXCHANGES_WEIGHTS,
    REPLACES_DROPOUT,
    REPLACES_PARAMETERS,
    SCORES_ROWS,
    SECOND_MODEL,
    SKIPS_BLOCKS,
    Rule,
)
from attendrop.methods.core.context import ComputeLoss, LabelledData, Processes, StepContext, TrainingContext
from attendrop.methods.core.info import LayerRanking, MethodInfo, Preset
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
from attendrop.methods.core.registry import register_method
from attendrop.methods.core.replay import Replay
from attendrop.methods.core.running_statistics import RunningStatistics
from attendrop.methods.drop_block import begin_chances, spread
from attendrop.methods.layer_drop import Skipping, sample_blocks
from attendrop.methods.vanilla import Bernoulli
from attendrop.peft_models import transformers_model
from attendrop.trained_tensors import trained_tensors
from attendrop.wording import counted

__all__ = [
    "ANY",
    "DECIDES_PASSES",
    "EXCHANGES_WEIGHTS",
    "LAYERS",
    "NOISES",
    "QUADRATURE_RULES",
    "REPLACES_DROPOUT",
    "REPLACES_PARAMETERS",
    "SCOPES",
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
    "Bernoulli",
    "Block",
    "BlockEdit",
    "CombinedPlan",
    "ComputeLoss",
    "ConstantAttention",
    "DropoutDraws",
    "GatePlan",
    "InitialState",
    "LabelledData",
    "LayerRanking",
    "LearntProbabilities",
    "Method",
    "MethodInfo",
    "MethodState",
    "ModelAdapter",
    "OwnParameters",
    "ParameterOverride",
    "Perturbation",
    "Plan",
    "Preset",
    "Processes",
    "RandomMaskPlan",
    "Range",
    "Region",
    "Replay",
    "Rule",
    "RunningStatistics",
    "SampleKey",
    "Skipping",
    "StepContext",
    "TrainingContext",
    "ValuePerLayer",
    "ValueProjection",
    "WeightMixing",
    "WordPlan",
    "aligned_labels",
    "all_finite",
    "any_last",
    "attention_attribution",
    "begin_chances",
    "block_of",
    "candidate_region",
    "check_choice",
    "check_count",
    "check_positive",
    "check_probability",
    "check_switch",
    "checked_layers",
    "choice",
    "count",
    "counted",
    "divergences",
    "dropout",
    "embedding_weights",
    "evaluating",
    "example_inputs",
    "factors",
    "find_value_projection",
    "finite_gradients",
    "fix_target",
    "floor_fraction",
    "forked_rng",
    "gradient_attribution",
    "gradients_of",
    "head_importance",
    "in_full_precision",
    "integrated_gradient_attribution",
    "is_regression",
    "kind_of",
    "layer_parameters",
    "mean",
    "mean_divergence",
    "mean_spread",
    "merge_edits",
    "normal",
    "number_of_rows",
    "option",
    "optional",
    "own_parameter_rules",
    "pack",
    "positive",
    "pretrained_parameters",
    "probability_rules",
    "projection_weights",
    "refuse_graph",
    "register_method",
    "row_losses",
    "row_shares",
    "sample_blocks",
    "sample_mask",
    "sample_parameter_mask",
    "sample_row_mask",
    "select_layers",
    "select_self_attention",
    "skips_step",
    "spread",
    "suggestion",
    "to_device",
    "trained_tensors",
    "transformers_model",
    "uniform",
    "unit_interval",
    "unpack",
    "wide",
    "with_antithetic_pass",
    "with_views",
    "word_noise",
]
