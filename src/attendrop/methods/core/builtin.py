"""Methods of the library, in listing order."""

# ruff: noqa: I001
from attendrop.methods.finetune import FineTune as FineTune
from attendrop.methods.ad_drop import ADDrop as ADDrop
from attendrop.methods.attend_out.method import AttendOut as AttendOut
from attendrop.methods.score_dropout import Vanilla as Vanilla
from attendrop.methods.scheduler import Scheduler as Scheduler
from attendrop.methods.score_dropout import DropBlock as DropBlock
from attendrop.methods.structure_mask import StructureMask as StructureMask
from attendrop.methods.auto_dropout import AutoDropout as AutoDropout
from attendrop.methods.learnt_dropout import ConcreteDropout as ConcreteDropout
from attendrop.methods.head_dropout import DropHead as DropHead
from attendrop.methods.head_dropout import HeadMask as HeadMask
from attendrop.methods.head_dropout import AlphaDropout as AlphaDropout
from attendrop.methods.layers import LayerDrop as LayerDrop
from attendrop.methods.layers import AttentionLayerDrop as AttentionLayerDrop
from attendrop.methods.cutoff import HiddenCut as HiddenCut
from attendrop.methods.unidrop import UniDrop as UniDrop
from attendrop.methods.adversarial import SCAL as SCAL
from attendrop.methods.weights import Mixout as Mixout
from attendrop.methods.weights import DropConnect as DropConnect
from attendrop.methods.child_tuning import ChildTuning as ChildTuning
from attendrop.methods.supert import SuperT as SuperT
from attendrop.methods.r_drop import RDrop as RDrop
from attendrop.methods.score_dropout import DropAttention as DropAttention
from attendrop.methods.embedding_noise import NEFTune as NEFTune
from attendrop.methods.embedding_noise import R3F as R3F
from attendrop.methods.cutoff import TokenCutoff as TokenCutoff
from attendrop.methods.weights import L2SP as L2SP
from attendrop.methods.layers import LayerReinit as LayerReinit
from attendrop.methods.embedding_noise import SMART as SMART
from attendrop.methods.weights import SAM as SAM
from attendrop.methods.learnt_dropout import VariationalDropout as VariationalDropout
from attendrop.methods.learnt_dropout import LearnableBernoulli as LearnableBernoulli
from attendrop.methods.adversarial import AdversarialDropout as AdversarialDropout
from attendrop.methods.contextual_dropout import ContextualDropout as ContextualDropout
from attendrop.methods.head_dropout import EDropout as EDropout
