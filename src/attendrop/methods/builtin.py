"""Methods of the library, in listing order."""

# ruff: noqa: I001
from attendrop.methods.core.base import FineTune as FineTune
from attendrop.methods.ad_drop import ADDrop as ADDrop
from attendrop.methods.attend_out.method import AttendOut as AttendOut
from attendrop.methods.random_dropout import Vanilla as Vanilla
from attendrop.methods.random_dropout import Scheduler as Scheduler
from attendrop.methods.random_dropout import DropHead as DropHead
from attendrop.methods.random_dropout import LayerDrop as LayerDrop
from attendrop.methods.random_dropout import AttentionLayerDrop as AttentionLayerDrop
from attendrop.methods.cutoff import HiddenCut as HiddenCut
from attendrop.methods.adversarial import SCAL as SCAL
from attendrop.methods.weights import Mixout as Mixout
from attendrop.methods.weights import ChildTuning as ChildTuning
from attendrop.methods.supert import SuperT as SuperT
from attendrop.methods.r_drop import RDrop as RDrop
