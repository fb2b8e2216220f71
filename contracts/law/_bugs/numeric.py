"""How mutants are made, and the parts of the reference that mutants of numeric contracts break: torch is imported.

Mutants that need no torch take `contracts.law._bugs.broken` and their owner's own file.
"""

from contracts.contract import mutant
from contracts.law._bugs.broken import broken, derived, with_attributes
from contracts.stacks.reference.checkpoint import manifest, rng_state
from contracts.stacks.reference.checkpoint.checkpoint import Checkpoints
from contracts.stacks.reference.checkpoint.dcp_storage import ShardReader
from contracts.stacks.reference.checkpoint.filesystem import Disk
from contracts.stacks.reference.checkpoint.manifest import Manifest
from contracts.stacks.reference.data import IGNORED, DataOrder
from contracts.stacks.reference.model import hybrid_model
from contracts.stacks.reference.model.blocks import (
    M2RNN,
    Attention,
    Causal,
    CausalConv,
    Experts,
    Fp8Matmul,
    GatedNorm,
    Indexer,
    LatentAttention,
    Linear,
    Mamba2,
    Mamba3,
    Mlp,
    MoE,
    Output,
    Packing,
    RMSNorm,
    Router,
    Routing,
    State,
)
from contracts.stacks.reference.model.blocks.common import local, packing
from contracts.stacks.reference.model.blocks.fp8 import GRADIENT, INPUT, WEIGHT
from contracts.stacks.reference.model.blocks.mamba2 import wide
from contracts.stacks.reference.model.blocks.sequence import WHOLE_SEQUENCE
from contracts.stacks.reference.model.hybrid_model import Layer, Model, ModelOutput
from contracts.stacks.reference.model.init import Initializer
from contracts.stacks.reference.model.mtp import MtpModule, shift_left
from contracts.stacks.reference.model.parts import Parts
from contracts.stacks.reference.optim.optimizer import Muon, Optimizer, orthogonalise
from contracts.stacks.reference.optim.schedule import learning_rate
from contracts.stacks.reference.parallel import collectives, mesh, parallel_trainer, parallelize
from contracts.stacks.reference.parallel.collectives import all_gather, all_reduce, all_to_all, own_rows, sum_over_ranks
from contracts.stacks.reference.parallel.context_parallel import ContextParallel
from contracts.stacks.reference.parallel.expert_parallel import TokenDispatcher
from contracts.stacks.reference.parallel.mesh import TrainingMesh
from contracts.stacks.reference.parallel.parallel_trainer import ParallelTrainer, ShardedMuon, ShardedOptimizer
from contracts.stacks.reference.parallel.parallelize import tensor_parallel
from contracts.stacks.reference.parallel.pipeline import Pipeline, Stage
from contracts.stacks.reference.parallel.pipeline_messages import BatchedStage
from contracts.stacks.reference.parallel.pipeline_trainer import PipelineTrainer, every_rank
from contracts.stacks.reference.parallel.placements import from_local_part, local_part
from contracts.stacks.reference.parallel.tensor_parallel import SplitVocabulary, TensorParallel
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training import trainer
from contracts.stacks.reference.training.trainer import GENERATORS, Batch, Trainer
