"""Methods of the library, in listing order."""

# ruff: noqa: I001
from attendrop.methods.core.base import FineTune as FineTune
from attendrop.methods.ad_drop import ADDrop as ADDrop
from attendrop.methods.attend_out import AttendOut as AttendOut
from attendrop.methods.random_dropout import Vanilla as Vanilla
from attendrop.methods.random_dropout import Scheduler as Scheduler
from attendrop.methods.random_dropout import DropHead as DropHead
from attendrop.methods.random_dropout import LayerDrop as LayerDrop
from attendrop.methods.random_dropout import AttentionLayerDrop as AttentionLayerDrop
from attendrop.methods.consistency import HiddenCut as HiddenCut
from attendrop.methods.consistency import SCAL as SCAL
from attendrop.methods.weights import Mixout as Mixout
from attendrop.methods.weights import ChildTuning as ChildTuning
from attendrop.methods.weights import SuperT as SuperT
from attendrop.methods.consistency import RDrop as RDrop
