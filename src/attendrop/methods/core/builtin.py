"""Methods of the library, in listing order."""

# ruff: noqa: I001
from attendrop.methods.finetune import FineTune as FineTune
from attendrop.methods.ad_drop import ADDrop as ADDrop
from attendrop.methods.attend_out.method import AttendOut as AttendOut
from attendrop.methods.vanilla import Vanilla as Vanilla
from attendrop.methods.scheduler import Scheduler as Scheduler
from attendrop.methods.drop_block import DropBlock as DropBlock
from attendrop.methods.structure_mask import StructureMask as StructureMask
from attendrop.methods.auto_dropout import AutoDropout as AutoDropout
from attendrop.methods.concrete_dropout import ConcreteDropout as ConcreteDropout
from attendrop.methods.drop_head import DropHead as DropHead
from attendrop.methods.head_mask import HeadMask as HeadMask
from attendrop.methods.alpha_dropout import AlphaDropout as AlphaDropout
from attendrop.methods.layer_drop import LayerDrop as LayerDrop
from attendrop.methods.attention_layer_drop import AttentionLayerDrop as AttentionLayerDrop
from attendrop.methods.hidden_cut import HiddenCut as HiddenCut
from attendrop.methods.unidrop import UniDrop as UniDrop
from attendrop.methods.scal import SCAL as SCAL
from attendrop.methods.mixout import Mixout as Mixout
from attendrop.methods.drop_connect import DropConnect as DropConnect
from attendrop.methods.child_tuning import ChildTuning as ChildTuning
from attendrop.methods.supert import SuperT as SuperT
from attendrop.methods.r_drop import RDrop as RDrop
from attendrop.methods.drop_attention import DropAttention as DropAttention
from attendrop.methods.neftune import NEFTune as NEFTune
from attendrop.methods.r3f import R3F as R3F
from attendrop.methods.token_cutoff import TokenCutoff as TokenCutoff
from attendrop.methods.l2_sp import L2SP as L2SP
from attendrop.methods.layer_reinit import LayerReinit as LayerReinit
from attendrop.methods.smart import SMART as SMART
from attendrop.methods.sam import SAM as SAM
from attendrop.methods.variational_dropout import VariationalDropout as VariationalDropout
from attendrop.methods.learnable_bernoulli import LearnableBernoulli as LearnableBernoulli
from attendrop.methods.adversarial_dropout import AdversarialDropout as AdversarialDropout
from attendrop.methods.contextual_dropout import ContextualDropout as ContextualDropout
from attendrop.methods.edropout import EDropout as EDropout
