"""What methods of one's own are made of: all that the methods of the library are made of themselves.

``docs/own_method.md`` has a worked example, and says what is for what. A :class:`Method` holds options and says what
one pass looks like; a :class:`Session` is a method at work that keeps something or takes passes of its own; a
:class:`Plan` is what one pass does to attention and around it.
"""

from attendrop import attribution
from attendrop.attention import Attachment, Combined, Plan, evaluating, forked_rng
from attendrop.errors import AttendropError
from attendrop.gates import Gates
from attendrop.gradients import finite_gradients, gradients_of, wide
from attendrop.labels import aligned_labels
from attendrop.masks import (
    DrawKey,
    Region,
    candidate_region,
    draw,
    draw_matrix,
    draw_rows,
    origins_of,
    pack,
    real_rows,
    share,
    uniform,
    unpack,
)
from attendrop.methods import Method, register_method
from attendrop.methods.base import Batch, ComputeLoss, Facts, LabelledData, Pass, Processes, Session, Setup
from attendrop.methods.compatibility import (
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
from attendrop.methods.consistency import divergences, kind_of, mean, mean_spread
from attendrop.methods.drawing import Drawing, dropout
from attendrop.methods.layerdrop import Skipping, draw_blocks
from attendrop.methods.mixed import Mixing
from attendrop.methods.options import LAYERS, SWITCH, Range, choice, count, fraction, option, positive
from attendrop.methods.rewind import Start
from attendrop.methods.vanilla import Bernoulli
from attendrop.parameters import Swapped, embedding_weights, layer_parameters, projection_weights
from attendrop.rows import number_of_rows, to_device
from attendrop.scoring import Call, Edit
from attendrop.sites import Site, checked_layers, select_self_attention, select_sites
from attendrop.structure import Block, BlockEdit, block_of
from attendrop.tally import Tally
from attendrop.validation import check_choice, check_count, check_positive, check_share, check_switch, suggestion

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
    "Attachment",
    "AttendropError",
    "Batch",
    "Bernoulli",
    "Block",
    "BlockEdit",
    "Call",
    "Combined",
    "ComputeLoss",
    "DrawKey",
    "Drawing",
    "Edit",
    "Facts",
    "Gates",
    "LabelledData",
    "Method",
    "Mixing",
    "Pass",
    "Plan",
    "Processes",
    "Range",
    "Region",
    "Rule",
    "Session",
    "Setup",
    "Site",
    "Skipping",
    "Start",
    "Swapped",
    "Tally",
    "aligned_labels",
    "attribution",
    "block_of",
    "candidate_region",
    "check_choice",
    "check_count",
    "check_positive",
    "check_share",
    "check_switch",
    "checked_layers",
    "choice",
    "count",
    "divergences",
    "draw",
    "draw_blocks",
    "draw_matrix",
    "draw_rows",
    "dropout",
    "embedding_weights",
    "evaluating",
    "finite_gradients",
    "forked_rng",
    "fraction",
    "gradients_of",
    "kind_of",
    "layer_parameters",
    "mean",
    "mean_spread",
    "number_of_rows",
    "option",
    "origins_of",
    "pack",
    "positive",
    "projection_weights",
    "real_rows",
    "register_method",
    "select_self_attention",
    "select_sites",
    "share",
    "suggestion",
    "to_device",
    "uniform",
    "unpack",
    "wide",
]
