"""Building blocks of methods: the public names for custom methods and the library's own.

``docs/own_method.md`` has a worked example and an overview; any file of ``attendrop/methods`` is another. A
:class:`Method` holds options and defines one training pass. A :class:`MethodState` is a method attached to a model, if
it keeps state or takes additional passes. A :class:`Plan` defines what one pass does to attention and to the blocks
around it.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from attendrop.attention.blocks import Block as Block
from attendrop.attention.blocks import ValueProjection as ValueProjection
from attendrop.attention.blocks import find_value_projection as find_value_projection
from attendrop.attention.blocks import projection_matrices as projection_matrices
from attendrop.attention.hooks import evaluating as evaluating
from attendrop.attention.hooks import forked_rng as forked_rng
from attendrop.attention.hooks import in_full_precision as in_full_precision
from attendrop.attention.hooks import uncompiled as uncompiled
from attendrop.attention.layers import AttentionLayer as AttentionLayer
from attendrop.attention.layers import select_layers as select_layers
from attendrop.attention.plan import AttentionCall as AttentionCall
from attendrop.attention.plan import AttentionEdit as AttentionEdit
from attendrop.attention.plan import BlockEdit as BlockEdit
from attendrop.attention.plan import ConstantAttention as ConstantAttention
from attendrop.attention.plan import Plan as Plan
from attendrop.attribution.finite_gradients import upcast as upcast
from attendrop.attribution.gradient import attention_attribution as attention_attribution
from attendrop.attribution.gradient import gradient_attribution as gradient_attribution
from attendrop.attribution.gradient import head_importance as head_importance
from attendrop.attribution.gradient import (
    integrated_gradient_attribution as integrated_gradient_attribution,
)
from attendrop.attribution.predictions import declare_output as declare_output
from attendrop.errors import AttendropError as AttendropError
from attendrop.methods.core.base import ANY as ANY
from attendrop.methods.core.base import DECIDES_PASSES as DECIDES_PASSES
from attendrop.methods.core.base import EXCHANGES_WEIGHTS as EXCHANGES_WEIGHTS
from attendrop.methods.core.base import NEEDS_ROWS as NEEDS_ROWS
from attendrop.methods.core.base import REPLACES_DROPOUT as REPLACES_DROPOUT
from attendrop.methods.core.base import REPLACES_PARAMETERS as REPLACES_PARAMETERS
from attendrop.methods.core.base import SCORES_ROWS as SCORES_ROWS
from attendrop.methods.core.base import SECOND_MODEL as SECOND_MODEL
from attendrop.methods.core.base import SKIPS_BLOCKS as SKIPS_BLOCKS
from attendrop.methods.core.base import LayerRanking as LayerRanking
from attendrop.methods.core.base import Method as Method
from attendrop.methods.core.base import MethodInfo as MethodInfo
from attendrop.methods.core.base import MethodState as MethodState
from attendrop.methods.core.base import Preset as Preset
from attendrop.methods.core.base import Rule as Rule
from attendrop.methods.core.context import ComputeLoss as ComputeLoss
from attendrop.methods.core.context import StepContext as StepContext
from attendrop.methods.core.context import TrainingContext as TrainingContext
from attendrop.methods.core.losses import mean_divergence as mean_divergence
from attendrop.methods.core.losses import row_losses as row_losses
from attendrop.methods.core.losses import row_shares as row_shares
from attendrop.methods.core.losses import with_views as with_views
from attendrop.methods.core.options import LAYERS as LAYERS
from attendrop.methods.core.options import SWITCH as SWITCH
from attendrop.methods.core.options import Range as Range
from attendrop.methods.core.options import choice as choice
from attendrop.methods.core.options import count as count
from attendrop.methods.core.options import option as option
from attendrop.methods.core.options import optional as optional
from attendrop.methods.core.options import positive as positive
from attendrop.methods.core.options import unit_interval as unit_interval
from attendrop.methods.core.parameters import InitialState as InitialState
from attendrop.methods.core.parameters import ParameterOverride as ParameterOverride
from attendrop.methods.core.parameters import WeightMixing as WeightMixing
from attendrop.methods.core.parameters import pretrained_parameters as pretrained_parameters
from attendrop.methods.core.plans import DroppedScores as DroppedScores
from attendrop.methods.core.plans import RandomMaskPlan as RandomMaskPlan
from attendrop.methods.core.plans import WordPlan as WordPlan
from attendrop.methods.core.plans import loss_gradients as loss_gradients
from attendrop.methods.core.plans import sample_layers as sample_layers
from attendrop.methods.core.plans import token_uniform as token_uniform
from attendrop.randomness.candidates import candidate_region as candidate_region
from attendrop.randomness.candidates import floor_fraction as floor_fraction
from attendrop.randomness.keyed_random import SampleKey as SampleKey
from attendrop.randomness.keyed_random import normal as normal
from attendrop.randomness.keyed_random import sample_mask as sample_mask
from attendrop.randomness.keyed_random import sample_parameter_mask as sample_parameter_mask
from attendrop.randomness.keyed_random import uniform as uniform
from attendrop.support.models import Batch as Batch
from attendrop.support.models import number_of_rows as number_of_rows

if _TYPE_CHECKING:
    from attendrop.attention.adapter import ModelAdapter as ModelAdapter
    from attendrop.attention.tracing import example_inputs as example_inputs

# Both import transformers, which takes seconds: a mistyped method or option is found without it.
_LAZY = {"ModelAdapter": "adapter", "example_inputs": "tracing"}
__all__ = [*(name for name in dir() if not name.startswith("_")), *_LAZY]


def __getattr__(name: str) -> _Any:
    if name in _LAZY:
        return getattr(_import_module(f"attendrop.attention.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'attendrop.extend' has no attribute {name!r}")
