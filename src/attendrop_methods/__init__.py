"""Methods that the papers of AD-DROP and AttendOut only cite, as a package of methods on ``attendrop.extend``.

They have names on the command line by entry points in the group ``attendrop.methods``, as those of any other package.
"""

from attendrop_methods.attention_dropout import AdversarialDropout as AdversarialDropout
from attendrop_methods.attention_dropout import AlphaDropout as AlphaDropout
from attendrop_methods.attention_dropout import DropAttention as DropAttention
from attendrop_methods.attention_dropout import DropBlock as DropBlock
from attendrop_methods.attention_dropout import EDropout as EDropout
from attendrop_methods.attention_dropout import HeadMask as HeadMask
from attendrop_methods.features import R3F as R3F
from attendrop_methods.features import SMART as SMART
from attendrop_methods.features import TokenCutoff as TokenCutoff
from attendrop_methods.features import UniDrop as UniDrop
from attendrop_methods.learnt_dropout import ConcreteDropout as ConcreteDropout
from attendrop_methods.learnt_dropout import ContextualDropout as ContextualDropout
from attendrop_methods.learnt_dropout import LearnableBernoulli as LearnableBernoulli
from attendrop_methods.learnt_dropout import VariationalDropout as VariationalDropout
from attendrop_methods.weights import L2SP as L2SP
from attendrop_methods.weights import SAM as SAM
from attendrop_methods.weights import DropConnect as DropConnect
from attendrop_methods.weights import LayerReinit as LayerReinit

__all__ = [name for name in dir() if name[0].isupper()]
