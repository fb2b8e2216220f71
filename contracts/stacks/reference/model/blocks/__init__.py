"""The blocks: one file a pattern letter. A is `attention` or `parallel_ssm`, E `moe` or `mlp`, M `mamba2` or
`mamba3`, R `m2rnn`.

Every mixer is a module `Mixer(recipe, layer, parts)` with `forward(x_BTD, packing, state) -> Output`. Parameters are
held in float32 and take part in the dtype of the activations (`Linear`), except where a block says otherwise. A block
keeps nothing between two calls: what it routed, lost or carried is in its output, so that recomputing it counts
nothing twice.
"""

from contracts.stacks.reference.model.blocks.attention import Attention, Causal, Indexer, LatentAttention
from contracts.stacks.reference.model.blocks.common import Linear, Output, Packing, PartsInterface, RMSNorm, State
from contracts.stacks.reference.model.blocks.fp8 import Format, Fp8Conversion, Fp8Matmul
from contracts.stacks.reference.model.blocks.hyper_connections import HyperConnections
from contracts.stacks.reference.model.blocks.m2rnn import M2RNN
from contracts.stacks.reference.model.blocks.mamba2 import CausalConv, GatedNorm, Mamba2
from contracts.stacks.reference.model.blocks.mamba3 import Mamba3
from contracts.stacks.reference.model.blocks.mlp import Mlp
from contracts.stacks.reference.model.blocks.moe import Experts, MoE, Router, Routing
from contracts.stacks.reference.model.blocks.parallel_ssm import ParallelMixers
from contracts.stacks.reference.model.blocks.sequence import SequenceView
