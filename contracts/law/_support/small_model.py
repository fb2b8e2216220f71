"""The small model whose parameters the capacity checks count by hand, and how they read a budget."""

from contracts.spec import Batch, Layout, Mamba, Moe, Party, Recipe
from contracts.spec.capacity import Budget, Card, StageBudget

MOE = Moe(experts=12, top_k=2, expert_hidden=40, shared_hidden=56)

# AEM at depth 5 is A E M A E; 12 heads of 8 over 4 KV groups; inner width of M 8 · 24 = 192, twice the hidden size.
SMALL = Recipe(
    name="small", family="test", pattern="AEM", depth=5, hidden=96, ffn_hidden=200, heads=12, kv_groups=4,
    seq_length=64, vocab=1000, moe=MOE, mamba=Mamba(heads=8, head_dim=24, state=16, groups=2),
    batch=Batch(micro=1, total=96),
)  # fmt: skip

ROOMY = Card(name="roomy", usable_bytes=10**15)  # nothing is refused for its size


def any_layout(stack: Party) -> Layout:
    """A layout that the stack builds, for cases that do not depend on one."""
    return "own-axis" if "own-axis" in stack.layouts else "borrowed"


def bytes_of(stage: StageBudget, *parts: str) -> int:
    """The bytes of some parts of a stage."""
    return sum(line.bytes for line in stage.lines if line.part in parts)


def only_stage(budget: Budget) -> StageBudget:
    """The stage of a plan without a pipeline.

    Raises:
        AssertionError: when there is not exactly one.
    """
    assert len(budget.stages) == 1, f"a plan without a pipeline has {len(budget.stages)} stages"
    return budget.stages[0]


def within(value: float, low: float, high: float, what: str) -> None:
    """Hold a value between two bounds, both included."""
    assert low <= value <= high, f"{what} is {value}, expected {_range(low, high)}"


def _range(low: float, high: float) -> str:
    return f"{low}" if low == high else f"{low} … {high}"
