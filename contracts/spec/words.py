"""The names that `from contracts.spec import …` reaches."""

from contracts.spec.abilities import FEATURES, Abilities, Absence
from contracts.spec.array import Array, Arrays, Element, Shape
from contracts.spec.blending import Blend, Blending, Split
from contracts.spec.blocks import BlockCall, BlockRun, Blocks
from contracts.spec.checkpointing import Checkpointing, Loaded, Naming, Overtaken, Snapshot, WriteFault, Written
from contracts.spec.compiling import (
    AllowedBreak,
    Backend,
    Break,
    CompiledPasses,
    CompiledRuns,
    Compiling,
    Graphs,
    Operation,
    Outcome,
)
from contracts.spec.conventions import CONVENTIONS, chosen, conventions_of, declared_by
from contracts.spec.delta_rule import DeltaCall, DeltaRule, DeltaRun
from contracts.spec.devices import AllocatorSeen, Devices, Started, StartOptions, StepMemory
from contracts.spec.errors import (
    LACKS,
    MOST_REFUSALS,
    MOVED,
    Lack,
    Moved,
    NotOffered,
    Refusal,
    Refusals,
    Refused,
    Unreachable,
    decline,
    install_by,
    refuse,
    shown,
)
from contracts.spec.kernel_selection import Compute, Computed, Facts, Kernel, Package, Seam, Seams, Site, Wish
from contracts.spec.ladder import RUNGS, rung_of, rungs, stepped_down
from contracts.spec.launch import RECORDED_PREFIXES, Lane, Launch, Provenance, Reading, Regime, Reread, Stage, shell
from contracts.spec.messages import Message, Messages, Messaging
from contracts.spec.observing import Observing
from contracts.spec.party import Party, abilities_of, public
from contracts.spec.pattern import BLOCKS, HybridPattern, LayerNumbers, Pattern, Placement, Translation
from contracts.spec.recipe import (
    INERT,
    Batch,
    Biased,
    Checkpoint,
    Data,
    Dsa,
    Dtype,
    Fp8,
    Mamba,
    Mhc,
    Mla,
    Mode,
    Moe,
    Mtp,
    Optim,
    ParallelSsm,
    Recipe,
    Schedule,
)
from contracts.spec.stack import PROTOCOLS, Question, Stack, questions
from contracts.spec.tolerance import (
    BFLOAT16,
    BFLOAT16_MEAN,
    EXACT,
    FLOAT32,
    FLOAT32_DEEP,
    FLOAT32_MOMENTS,
    FLOAT32_SCAN,
    FLOAT32_STEPS,
    FLOAT32_TRANSFORMER,
    FLOAT64,
    FLOAT64_SCAN,
    HALF_GRADIENT,
    HALF_OUTPUT,
    HALF_SCAN_GRADIENT,
    HalfPrecision,
    Tolerance,
    element_bytes,
    here,
    in_float32,
    within,
)
from contracts.spec.topology import (
    NVLINK_DOMAIN,
    Degrees,
    ExpertLane,
    GradientReduction,
    Grids,
    Group,
    GroupCall,
    Kind,
    Layout,
    Mesh,
    Topology,
    grids,
    group_calls,
)
from contracts.spec.traffic import Holding, Rehearsal, Rehearsing, Routing, Sent
from contracts.spec.training import (
    Built,
    BuiltLayer,
    Execution,
    Observed,
    Parameter,
    Pass,
    Precision,
    Role,
    Rule,
    Session,
    Step,
    Tokens,
    Trained,
    Training,
    Wrap,
)
from contracts.spec.violations import Heard, Violated, compared, heard, parts_of, require_none
from contracts.spec.world import FabricPass, LeftReceipts, LiveMesh, SeenDevices, Strain, Upset, World
