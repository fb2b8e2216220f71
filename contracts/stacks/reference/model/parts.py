"""The classes that the reference is built of, as one table, so that a single part can be exchanged.

A stack of one's own, and every counterexample, is this table with one entry replaced:

    replace(PARTS, attention=Tiled)
"""

from dataclasses import dataclass

from torch import nn

from contracts.spec import Mode, Recipe
from contracts.spec import pattern as patterns
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.checkpoint.weight_names import WeightNames
from contracts.stacks.reference.model.blocks import (
    M2RNN,
    Attention,
    Experts,
    Fp8Conversion,
    HyperConnections,
    Indexer,
    LatentAttention,
    Mamba2,
    Mamba3,
    Mlp,
    MoE,
    ParallelMixers,
    RMSNorm,
    Router,
)
from contracts.stacks.reference.model.hybrid_model import Layer, Model
from contracts.stacks.reference.model.init import Initializer
from contracts.stacks.reference.model.mtp import MtpModule
from contracts.stacks.reference.parallel.context_parallel import ContextParallel
from contracts.stacks.reference.parallel.expert_parallel import TokenDispatcher
from contracts.stacks.reference.parallel.tensor_parallel import TensorParallel


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Every exchangeable class, by its role."""

    norm: type[RMSNorm] = RMSNorm
    attention: type[Attention] = Attention
    latent_attention: type[LatentAttention] = LatentAttention
    indexer: type[Indexer] = Indexer
    mlp: type[Mlp] = Mlp
    router: type[Router] = Router
    experts: type[Experts] = Experts
    moe: type[MoE] = MoE
    mamba2: type[Mamba2] = Mamba2
    mamba3: type[Mamba3] = Mamba3
    recurrent: type[M2RNN] = M2RNN
    parallel: type[ParallelMixers] = ParallelMixers
    low_precision: type[Fp8Conversion] = Fp8Conversion
    streams: type[HyperConnections] = HyperConnections
    layer: type[Layer] = Layer
    prediction: type[MtpModule] = MtpModule
    model: type[Model] = Model
    initial: type[Initializer] = Initializer
    checkpoints: type[Checkpoints] = Checkpoints
    weight_names: type[WeightNames] = WeightNames
    tensor_parallel: type[TensorParallel] = TensorParallel
    token_dispatcher: type[TokenDispatcher] = TokenDispatcher
    context_parallel: type[ContextParallel] = ContextParallel

    def mixer(self, recipe: Recipe, layer: int, mode: Mode) -> nn.Module:
        """The mixer of one layer (0-based), with the products in FP8 that the recipe asks for."""
        mixer = self.plain_mixer(recipe, layer, mode)
        return mixer if recipe.fp8 is None else self.low_precision(recipe.fp8).applied(mixer)

    def plain_mixer(self, recipe: Recipe, layer: int, mode: Mode) -> nn.Module:
        letters = patterns.parse(recipe.pattern, recipe.depth).letters
        letter = letters[layer]
        if letter == "A":
            rank = letters[:layer].count("A")
            sparse = recipe.dsa is not None and rank in recipe.dsa.a_ranks
            attends = self.latent_attention(recipe, self, sparse=sparse) if recipe.mla else self.attention(recipe, self)
            if recipe.parallel_ssm is None:
                return attends
            return self.parallel(recipe.parallel_ssm, attends, self.state_space(recipe, mode))
        if letter == "E":
            return self.mlp(recipe, recipe.ffn_hidden) if recipe.moe is None else self.moe(recipe, self)
        return self.state_space(recipe, mode) if letter == "M" else self.recurrent(recipe, self)

    def state_space(self, recipe: Recipe, mode: Mode) -> nn.Module:
        return self.mamba2(recipe, self) if mode == "nemo_native" else self.mamba3(recipe, self)


PARTS = Parts()
