"""Recorded runs as literals, for the checks on receipts and comparisons."""

from dataclasses import replace

from contracts.law._support.launches import NAM56R
from contracts.spec import Degrees, Lane, Launch, LayerNumbers
from contracts.spec.machine import Finding
from contracts.spec.receipt import (
    Backend,
    Component,
    EffectiveLane,
    Environment,
    LaunchedRun,
    MachineClass,
    Peak,
    Place,
    Preflight,
    Provenance,
    RankMemory,
    Receipt,
    ReportedStep,
    Source,
    Window,
    Witness,
)

TOKENS = 262_144  # 64 sequences of 4096 tokens

INHERITED = {
    "HOME": "/home/operator",
    "LS_COLORS": "di=01;34",
    "NCCL_SOCKET_IFNAME": "eth0",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "TORCH_LOGS": "recompiles",
}

DEGREES = Degrees(tp=2, sp=True, ep=2, etp=0)
LANE = Lane(
    mode="nemo_native", regime="fsdp2", degrees=DEGREES, compile="regional", run="nam56r-17", inherited=INHERITED,
    overrides={"optim.lr": "1e-4"},
)  # fmt: skip
LAUNCH = Launch(
    torchrun=("torchrun", "--standalone", "--nproc_per_node=8"),
    script=("-m", "trainer"),
    argv=("--recipe", "nam56r", "--tokenizer", "NullTokenizer"),
    env={"PYTORCH_ALLOC_CONF": "expandable_segments:True", "TORCH_NCCL_HIGH_PRIORITY": "1", "LANE_LAYERS": "12,24"},
    unset=("CUDA_DEVICE_MAX_CONNECTIONS",),
    recorded={"NCCL_SOCKET_IFNAME": "eth0", "TORCH_LOGS": "recompiles"},
    launcher="trainer",
    launcher_version="3.1",
    degrees=DEGREES,
    world=8,
    recurrent=LayerNumbers(base=1, numbers=(12, 24, 36, 48)),
    sparse=LayerNumbers(base=1, numbers=()),
    gives_up=("layer 12 runs another mixer",),
)
PROVENANCE = Provenance(
    source=Source(revision="3f2c9ab14d", dirty=True, changed=("model.py", "notes/a b.txt")),
    machine=MachineClass(host="bench-1@us-west1-c", device="NVIDIA H200", devices=8, driver="590.48.01"),
    python="3.13.12",
    image="sha256:77aa",
    components=(
        Component(name="torch", version="2.12.0.dev20260405+cu132", build="sha256:11"),
        Component(name="megatron-core", version="0.19.2", build="sha256:22"),
    ),
)
FINDING = Finding(
    promise="PREF-02", field="numa_balancing", value="1", problem="is on", remedy="echo 0 to numa_balancing"
)
PLACES = tuple(
    Place(local_rank=rank, device=rank, bus=f"0000:{rank}b:00.0", nic=f"mlx5_{rank // 2}") for rank in range(8)
)
# The first step compiles for five minutes. The next two are measured: 524 288 tokens in 8 s, 65 536 tokens/s.
# The mean of the two rates would be 87 381.3, and all four steps together give 3 276.8.
STEPS = (
    ReportedStep(number=0, seconds=308.0, tokens=TOKENS, loss=11.09, grad_norm=9.0),
    ReportedStep(number=1, seconds=2.0, tokens=TOKENS, loss=10.5, grad_norm=4.0),
    ReportedStep(number=2, seconds=6.0, tokens=TOKENS, loss=9.75, grad_norm=3.5),
    ReportedStep(number=3, seconds=4.0, tokens=TOKENS, loss=9.5, grad_norm=2.5),
)
GIB = 2**30
FACTS = LaunchedRun(
    recipe=NAM56R,
    lane=LANE,
    launch=LAUNCH,
    provenance=PROVENANCE,
    preflight=Preflight(ran=True, findings=(FINDING,), acknowledged=("PREF-02",)),
    places=PLACES,
    started="2026-11-20T10:00:00+00:00",
    finished="2026-11-20T10:06:00+00:00",
    ending="ok",
    exit_code=0,
    steps=STEPS,
    warmup=1,
    bounded=2,
    memory=(
        RankMemory(rank=0, allocated=88 * GIB, reserved=97 * GIB),
        RankMemory(rank=5, allocated=91 * GIB, reserved=96 * GIB),
    ),
    backends=(
        Backend(part="attention", requested="flash4", actual="flash2", reason="sm_90 only has flash2 in this wheel"),
        Backend(part="experts", requested="grouped_gemm", actual="grouped_gemm"),
    ),
)

RECEIPT = Receipt(
    schema="rankproof.receipt/1",
    run="nam56r-17",
    started="2026-11-20T10:00:00+00:00",
    finished="2026-11-20T10:06:00+00:00",
    ending="ok",
    exit_code=0,
    failure=None,
    provenance=PROVENANCE,
    preflight=Preflight(ran=True),
    environment=Environment(
        overlay={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        unset=(),
        reached={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        allocator=("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
    ),
    lane=EffectiveLane(
        preset="nam56r_h200_bf16_v1", family="nam56r", mode="nemo_native", regime="fsdp2", compile="regional",
        degrees=DEGREES, world=8, launcher="trainer", launcher_version="3.1",
    ),
    command=("torchrun", "-m", "trainer"),
    places=PLACES,
    window=Window(first=1, last=2, steps=2, dropped=1, tokens=524_288, seconds=8.0),
    witness=Witness(
        steps=4, skipped=0, finite_losses=True, finite_gradients=True, first_loss=11.09, last_loss=9.5
    ),
    tokens_per_second=65_536.0,
    withheld=None,
    peak=Peak(allocated=91 * GIB, reserved=97 * GIB),
    backends=(
        Backend(part="attention", requested="flash4", actual="flash2", reason="sm_90 only has flash2 in this wheel"),
        Backend(part="experts", requested="grouped_gemm", actual="grouped_gemm"),
    ),
)  # fmt: skip


def exporting(facts: LaunchedRun, **variables: str) -> LaunchedRun:
    """The same run, launched from a shell that exports further variables."""
    return replace(facts, lane=replace(facts.lane, inherited={**facts.lane.inherited, **variables}))


def on_host(receipt: Receipt, host: str | None) -> Receipt:
    """The same run, on another machine."""
    machine = replace(receipt.provenance.machine, host=host)
    return replace(receipt, provenance=replace(receipt.provenance, machine=machine))


def with_component(receipt: Receipt, component: Component) -> Receipt:
    """The same run, with another build of one package."""
    others = tuple(each for each in receipt.provenance.components if each.name != component.name)
    return replace(receipt, provenance=replace(receipt.provenance, components=(*others, component)))
