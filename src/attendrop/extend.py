"""What methods of one's own are made of; ``docs/own_method.md`` has a worked example.

A :class:`Method` holds options and says what one pass looks like; a :class:`Session` is a method at work that keeps
something or takes passes of its own; a :class:`Plan` is what one pass does to attention and around it.
"""

from attendrop.attention import Attachment, Plan, evaluating, forked_rng
from attendrop.masks import DrawKey, draw, draw_matrix, origins_of, real_rows, uniform
from attendrop.methods import Method, register_method
from attendrop.methods.base import ComputeLoss, Facts, Pass, Session, Setup, check_choice, check_share
from attendrop.methods.drawing import Drawing
from attendrop.scoring import Call, Edit
from attendrop.sites import Site, checked_layers, select_self_attention, select_sites
from attendrop.structure import Block, BlockEdit

__all__ = [
    "Attachment",
    "Block",
    "BlockEdit",
    "Call",
    "ComputeLoss",
    "DrawKey",
    "Drawing",
    "Edit",
    "Facts",
    "Method",
    "Pass",
    "Plan",
    "Session",
    "Setup",
    "Site",
    "check_choice",
    "check_share",
    "checked_layers",
    "draw",
    "draw_matrix",
    "evaluating",
    "forked_rng",
    "origins_of",
    "real_rows",
    "register_method",
    "select_self_attention",
    "select_sites",
    "uniform",
]
