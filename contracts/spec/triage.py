"""The first place to look when a run is stuck, failed or suspicious: the operator's symptom table, and the rules to
find the row.

The facts are visible from outside, without touching the run: the manifest, the receipt, the logs, the artifacts, the
ranks that wait. They are examined in this order: stdout comes last, and a rerun never comes first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from contracts.spec.errors import Refusals
from contracts.spec.manifest import RunError, State

Symptom = Literal[
    "long startup", "first collective hangs", "collector never finishes", "numbers are suspect",
    "logs without a bundle", "re-run differs",
]  # fmt: skip
Layer = Literal[
    "launch", "bootstrap", "distributed compile", "sharding", "execution", "collector", "observability", "comparison",
    "image or volume",
]  # fmt: skip
"""launch: includes scheduling. collector: includes the remote call. execution: the run reported an error."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What must be equal for one run to repeat another. `volumes` maps a volume's name to its visible generation."""

    lane: str
    metric: str
    image: str
    backend_identity: str
    runtime_provenance: str
    volumes: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts about a run that are visible from outside.

    Args:
        state: of the manifest; None when there is no manifest.
        silent_s: seconds since a detached run was launched or a running one was last polled; `patience_s`: the usual
            maximum.
        startup_s: seconds from launch to the first useful step, or until now if there is none; None when unknown.
        steps: number of steps seen; None when unknown.
        waiting_ranks: ranks seen waiting in a collective; `local_tokens`: tokens of each rank, empty when unknown.
        declared, present: artifacts that the manifest names, and those that exist.
        own, prior: identities of this run and of the run with which it is compared.
    """

    state: State | None
    silent_s: float
    patience_s: float
    startup_s: float | None
    startup_budget_s: float
    steps: int | None
    receipt: bool
    logs: bool
    waiting_ranks: tuple[int, ...] = ()
    local_tokens: tuple[int, ...] = ()
    declared: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    error: RunError | None = None
    own: RunIdentity | None = None
    prior: RunIdentity | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Where to look first. `layer` None: nothing is wrong, or it is too early to say."""

    layer: Layer | None
    symptom: Symptom | None = None
    first_surface: str = ""
    fix: str = ""
    why: str = ""


TABLE: Mapping[Symptom, tuple[Layer, str, str]] = {  # symptom → layer, first surface, usual fix
    "long startup": (
        "bootstrap",
        "the image build and the runtime environment; is the compile cache cold?",
        "bake or pin the image, and keep caches on purpose",
    ),
    "first collective hangs": (
        "distributed compile",
        "the training receipts, the launch flags and the status of each rank",
        "warm the compile state on every rank, or go back to an owned node of eight GPUs, before blaming the network",
    ),
    "collector never finishes": (
        "collector",
        "the manifest's state, what the collector wrote, and the receipt summaries",
        "verify the identity of the remote call, poll its state, read the call graph, capture the error payload",
    ),
    "numbers are suspect": (
        "comparison",
        "the receipts and their provenance: which lane, which metric",
        "compare only inside one lane and one definition of the metric",
    ),
    "logs without a bundle": (
        "observability",
        "the observability settings and the manifests they generate",
        "see that artifact categories, summary files and uploads are enabled",
    ),
    "re-run differs": (
        "image or volume",
        "the image definition, the mounted volumes, and the provenance in both receipts",
        "pin what goes into the image, reload and commit volumes on purpose, compare provenance",
    ),
}
"""From the debugging guide for detached runs, which derived it from failures of real runs."""


def symptom_row(symptom: Symptom) -> Diagnosis:
    """The row of the table for a reported symptom."""
    return _row(symptom, "reported")


def triage(facts: RunFacts) -> Diagnosis:
    """The first layer in which the facts show a problem.

    Raises:
        Refused: for impossible facts: negative times, an error without its state, ranks that do not exist.
    """
    _possible(facts)
    if facts.state is None:
        return Diagnosis(
            layer="launch", first_surface="the launcher's own output: no manifest was written",
            fix="write the manifest before the remote call is made, then launch again", why="there is no manifest",
        )  # fmt: skip
    if facts.state == "error":
        return _failed(facts)
    return _ended(facts) if facts.state == "ok" else _under_way(facts)


def _under_way(facts: RunFacts) -> Diagnosis:
    waits = f"{facts.state} and silent for {facts.silent_s:.0f} s, {facts.patience_s:g} s are usual"
    stuck = facts.silent_s > facts.patience_s
    if facts.state == "detached":
        if not stuck:
            return Diagnosis(layer=None, why=f"detached for {facts.silent_s:.0f} s only")
        return Diagnosis(
            layer="launch", first_surface="the launch record and the scheduler: did the remote call ever start?",
            fix="verify the remote call's identity and the capacity asked for; launch again if it never began",
            why=waits,
        )  # fmt: skip
    if facts.steps == 0 and facts.waiting_ranks and (stuck or _slow(facts)):
        return _hang(facts)
    if facts.steps == 0 and _slow(facts):
        return _row(
            "long startup", f"no step after {facts.startup_s or 0:.0f} s, {facts.startup_budget_s:g} s are usual"
        )
    if stuck:
        landed = "a receipt landed" if facts.receipt else "no receipt"
        return _row("collector never finishes", f"{waits}; {landed}")
    return Diagnosis(layer=None, why=f"running, and polled {facts.silent_s:.0f} s ago")


def _hang(facts: RunFacts) -> Diagnosis:
    """A rank with an empty shard compiles another graph and hangs the others. It is cheap to check, so it is first."""
    ranks = ", ".join(map(str, facts.waiting_ranks))
    empty = [rank for rank, tokens in enumerate(facts.local_tokens) if tokens == 0]
    if not empty:
        return _row("first collective hangs", f"ranks {ranks} wait in a collective before any step")
    lacking = ", ".join(map(str, empty))
    return Diagnosis(
        layer="sharding", symptom="first collective hangs",
        first_surface=f"sequence length, padding and batch split: rank {lacking} has no tokens",
        fix="make sequence and batch divide by the ranks that share them, then try again",
        why=f"ranks {ranks} wait in a collective, rank {lacking} has nothing to bring",
    )  # fmt: skip


def _failed(facts: RunFacts) -> Diagnosis:
    error = facts.error
    said = f"{error.type}: {error.message}" if error else "an error that nobody wrote down"
    return Diagnosis(
        layer="execution", first_surface="the manifest's error, then the call graph it keeps",
        fix="read the error before running again", why=said,
    )  # fmt: skip


def _ended(facts: RunFacts) -> Diagnosis:
    absent = sorted(set(facts.declared) - set(facts.present))
    if not facts.receipt:
        logs = "logs exist" if facts.logs else "no logs either"
        return _row("logs without a bundle", f"ok without a receipt; {logs}")
    if absent or not facts.declared:
        return _row("logs without a bundle", f"artifacts absent: {', '.join(absent) or 'none were declared'}")
    if facts.own is not None and facts.prior is not None:
        changed = [f.name for f in fields(RunIdentity) if getattr(facts.own, f.name) != getattr(facts.prior, f.name)]
        if {"lane", "metric"} & set(changed):
            return _row("numbers are suspect", f"not the same {', '.join(changed)}")
        if changed:
            return _row("re-run differs", f"not the same {', '.join(changed)}")
    if _slow(facts):
        return _row("long startup", f"the first step came after {facts.startup_s or 0:.0f} s")
    return Diagnosis(layer=None, why="ok, with a receipt and every artifact it names")


def _slow(facts: RunFacts) -> bool:
    return facts.startup_s is not None and facts.startup_s > facts.startup_budget_s


def _row(symptom: Symptom, why: str) -> Diagnosis:
    layer, surface, fix = TABLE[symptom]
    return Diagnosis(layer=layer, symptom=symptom, first_surface=surface, fix=fix, why=why)


def _possible(facts: RunFacts) -> None:
    found = Refusals()
    for name in ("silent_s", "patience_s", "startup_s", "startup_budget_s", "steps"):
        value = getattr(facts, name)
        found.unless(value is None or value >= 0, name, value, "must not be negative", "measure it again")
    state, error = facts.state, facts.error
    found.unless(error is None or state == "error", "error", error, f"stands beside state {state}", "read both at once")
    world = len(facts.local_tokens)
    outside = [rank for rank in facts.waiting_ranks if rank < 0 or (world and rank >= world)]
    found.unless(not outside, "waiting_ranks", outside, f"are no ranks of a world of {world}", "count ranks from 0")
    found.raise_any()
