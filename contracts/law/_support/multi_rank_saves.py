"""What the checks on checkpoints of several ranks share: a recipe, layouts that save and load it, and a common verdict.

A rank that fails by itself leaves the others in the next collective. All ranks therefore learn what one rank found
before any of them asserts.
"""

from dataclasses import replace
from pathlib import Path

from contracts.instruments.ranks import gathered, here
from contracts.law._support import saved_states
from contracts.law.checkpoint.resume import SHORT
from contracts.spec import Arrays, Degrees, Execution, Fp8, Observed, Refused, Session, Step, Training

SPREAD = replace(SHORT, name="short-spread", seq_length=18)
"""12 experts, 61 rows of the vocabulary, 2 KV heads and 2 SSM groups, norms of 8 and 24; a batch of 5 sequences."""
SPREAD_MUON = replace(SPREAD, name="short-spread-muon", optim=replace(SPREAD.optim, rule="muon"))

EVEN = replace(SPREAD, name="short-even", batch=replace(SPREAD.batch, total=4))
"""A batch that divides into as many microbatches as there are pipeline stages."""
EVEN_MUON = replace(EVEN, name="short-even-muon", optim=SPREAD_MUON.optim)

SCALED = replace(
    SPREAD,
    name="short-fp8",
    seq_length=16,
    hidden=32,
    ffn_hidden=48,
    moe=replace(SPREAD.moe, expert_hidden=16, shared_hidden=16) if SPREAD.moe else None,
    dtype="bf16",
    fp8=Fp8(scaling="delayed"),
)
"""FP8 with scales from earlier steps, which each rank derives from the tokens it saw; widths are whole tiles."""

STATE: frozenset[Observed] = frozenset({"weights", "optimizer", "buffers"})
ONE = Execution(precision="float64")
DP2 = Execution(world=2, precision="float64")
FSDP2 = Execution(world=2, fsdp=True, precision="float64")
TP2 = Execution(world=2, degrees=Degrees(tp=2), precision="float64")
TP2_SP = Execution(world=2, degrees=Degrees(tp=2, sp=True), precision="float64")
EP2 = Execution(world=2, degrees=Degrees(ep=2), precision="float64")
EP2_BORROWED = Execution(world=2, degrees=Degrees(ep=2), layout="borrowed", fsdp=True, precision="float64")
PP2 = Execution(world=2, degrees=Degrees(pp=2), microbatches=5, precision="float64")
PP2_EVEN = Execution(world=2, degrees=Degrees(pp=2), microbatches=4, precision="float64")
INTERLEAVED = Execution(world=2, degrees=Degrees(pp=2), microbatches=2, schedule="interleaved", precision="float64")
PP4 = Execution(world=4, degrees=Degrees(pp=4), microbatches=4, precision="float64")
PP2_FSDP2 = Execution(world=4, degrees=Degrees(pp=2), microbatches=2, fsdp=True, precision="float64")
PP2_TP2 = Execution(world=4, degrees=Degrees(pp=2, tp=2, sp=True), microbatches=2, precision="float64")
INTERLEAVED_FSDP2 = Execution(
    world=4, degrees=Degrees(pp=2), microbatches=2, schedule="interleaved", fsdp=True, precision="float64"
)
CP2 = Execution(world=2, degrees=Degrees(cp=2), layout="borrowed", precision="float64")
CP2_FSDP = replace(CP2, fsdp=True)
CP2_TP2 = Execution(world=4, degrees=Degrees(cp=2, tp=2), layout="borrowed", fsdp=True, precision="float64")
FSDP4 = Execution(world=4, fsdp=True, precision="float64")
HSDP = Execution(world=4, fsdp=True, replicas=2, precision="float64")
TP2_EP2 = Execution(world=4, degrees=Degrees(tp=2, ep=2, sp=True), precision="float64")
TP2_FSDP2 = Execution(world=4, degrees=Degrees(tp=2, sp=True), fsdp=True, precision="float64")
EP4_BORROWED = Execution(
    world=4, degrees=Degrees(tp=2, ep=4, etp=1, sp=True), layout="borrowed", fsdp=True, precision="float64"
)


def save_folder(at: Path, execution: Execution) -> Path:
    """The folder of a run's saves: single-rank runs each in their own folder, runs of several ranks in one."""
    own = at / f"{layout_name(execution)}-{here().rank if execution.world == 1 else 'all'}"
    own.mkdir(exist_ok=True, parents=True)
    return own


def layout_name(execution: Execution) -> str:
    """An execution in a word, for messages and folder names."""
    degrees = execution.degrees
    sizes = {"tp": degrees.tp, "ep": degrees.ep, "pp": degrees.pp, "cp": degrees.cp, "copies": execution.replicas}
    words = [f"{name}{size}" for name, size in sizes.items() if size > 1]
    words += ["sp"] if degrees.sp else []
    words += ["fsdp"] if execution.fsdp else []
    words += [execution.schedule] if execution.schedule == "interleaved" else []
    words += [execution.layout] if execution.layout == "borrowed" else []
    return "-".join([f"{execution.world}-ranks" if execution.world > 1 else "one-rank", *words])


def first_finding(words: str) -> str:
    """The finding of the first rank that has one, on every rank; empty when no rank has any."""
    told = gathered(words)
    return next((f"rank {rank}: {each}" for rank, each in enumerate(told) if each), "")


def state_difference(got: Step, want: Step) -> str:
    """How two states differ bit for bit, one tensor of each kind."""
    kinds: tuple[tuple[str, Arrays, Arrays], ...] = (
        ("buffers", got.buffers, want.buffers), ("optimizer", got.optimizer, want.optimizer),
        ("weights", got.weights, want.weights), ("rng", got.rng, want.rng),
    )  # fmt: skip
    found = [f"{kind}: {words.split(';')[0]}" for kind, left, right in kinds
             if (words := saved_states.bit_difference(left, right))]  # fmt: skip
    return "; ".join(found)


def refusal(stack: Training, session: Session) -> str:
    """The words in which a run is refused; empty when it was carried out."""
    try:
        stack.train(session)
    except Refused as refused:
        return str(refused)
    return ""
