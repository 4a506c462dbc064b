"""Methods of the library, in listing order."""

# ruff: noqa: I001
from attendrop.methods.finetune import FineTune as FineTune
from attendrop.methods.ad_drop import ADDrop as ADDrop
from attendrop.methods.attend_out.method import AttendOut as AttendOut
from attendrop.methods.score_dropout import Vanilla as Vanilla
from attendrop.methods.scheduler import Scheduler as Scheduler
from attendrop.methods.head_dropout import DropHead as DropHead
from attendrop.methods.layers import LayerDrop as LayerDrop
from attendrop.methods.layers import AttentionLayerDrop as AttentionLayerDrop
from attendrop.methods.cutoff import HiddenCut as HiddenCut
from attendrop.methods.adversarial import SCAL as SCAL
from attendrop.methods.weights import Mixout as Mixout
from attendrop.methods.child_tuning import ChildTuning as ChildTuning
from attendrop.methods.supert import SuperT as SuperT
from attendrop.methods.r_drop import RDrop as RDrop
