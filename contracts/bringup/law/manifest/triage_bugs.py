"""Operators' habits that cost a day: everything hangs in the network, everything is the launcher, run it again."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec.triage import Diagnosis
from contracts.stacks.reference.stack import Reference


@broken(Reference, "triage", "MANI-02[stuck-detached]: layer is collector, expected launch")
def waiting_is_waiting(triage, self, facts):
    """Blames the collector for every manifest that does not move, even if the remote call never began."""
    return triage(self, replace(facts, state="running", steps=1) if facts.state == "detached" else facts)


@broken(
    Reference,
    "triage",
    "MANI-02[one-artifact-of-three-absent]: layer is None, expected observability",
    bugs=("PRV-18",),
)
def counts_a_declared_artifact_as_there(triage, self, facts):
    """Takes the artifacts from the list in the manifest, without checking that the files exist."""
    return triage(self, replace(facts, present=facts.declared))


@broken(Reference, "triage", "MANI-02[complete-since-yesterday]: layer is collector, expected None")
def ended_is_stuck_too(triage, self, facts):
    """Over-correction: a watchdog on the manifest's age does not check whether the run has ended."""
    late = facts.silent_s > facts.patience_s and facts.state == "ok"
    return triage(self, replace(facts, state="running") if late else facts)


@broken(Reference, "triage", "MANI-02[running-and-polled]: layer is collector, expected None")
def no_receipt_yet_is_stuck(triage, self, facts):
    """Over-correction: a running manifest without a receipt counts as stuck from the first second."""
    waits = facts.state == "running" and not facts.receipt
    return triage(self, replace(facts, silent_s=2 * facts.patience_s) if waits else facts)


@broken(Reference, "triage", "MANI-02a[last-rank-empty]: layer is distributed compile, expected sharding")
def never_counts_tokens(triage, self, facts):
    """Treats all hangs before the first step alike, and does not look for the rank without tokens."""
    return triage(self, replace(facts, local_tokens=()))


@broken(Reference, "triage", "MANI-02a[short-last-rank]: layer is sharding, expected distributed compile")
def uneven_is_empty(triage, self, facts):
    """Over-correction: any rank with fewer tokens than the others is blamed, though a short shard still takes part."""
    most = max(facts.local_tokens, default=0)
    return triage(self, replace(facts, local_tokens=tuple(n if n == most else 0 for n in facts.local_tokens)))


@broken(Reference, "triage", "MANI-02a[polled-all-the-while]: layer is bootstrap, expected distributed compile")
def a_polled_run_does_not_hang(triage, self, facts):
    """While the collector polls, nobody checks who waits in the collective: a two-hour hang reads as a cold start."""
    return triage(self, replace(facts, waiting_ranks=()) if facts.silent_s <= facts.patience_s else facts)


@broken(Reference, "symptom_row", "MANI-03[first-collective]: layer is execution, expected distributed compile")
def blames_the_network(symptom_row, self, symptom):
    """Blames NCCL for every hang, though that explanation was the first to be ruled out."""
    if symptom != "first collective hangs":
        return symptom_row(self, symptom)
    return Diagnosis(layer="execution", symptom=symptom, first_surface="NCCL_DEBUG=INFO", fix="raise the timeout")


@broken(Reference, "symptom_row", "MANI-03[re-run]: the fix names none of")
def runs_it_again(symptom_row, self, symptom):
    """Proposes another run as every fix, which changes one more thing at once."""
    return replace(symptom_row(self, symptom), fix="retry")


@broken(
    Reference, "triage", "MANI-03a[other-backend]: expected ('re-run differs', 'image or volume')", bugs=("PRV-20",)
)
def same_name_same_backend(triage, self, facts):
    """Does not compare the backend's identity: a new image under the same name reads as a regression."""
    if facts.own is None or facts.prior is None:
        return triage(self, facts)
    return triage(self, replace(facts, own=replace(facts.own, backend_identity=facts.prior.backend_identity)))


@broken(Reference, "triage", "MANI-03a[older-volume]: expected ('re-run differs', 'image or volume')", bugs=("PRV-21",))
def mounted_is_current(triage, self, facts):
    """Compares the names of the mounted volumes and not their visible contents."""
    if facts.own is None or facts.prior is None or facts.own.volumes.keys() != facts.prior.volumes.keys():
        return triage(self, facts)
    return triage(self, replace(facts, own=replace(facts.own, volumes=facts.prior.volumes)))


@broken(Reference, "triage", "MANI-03a[still-compiling]: expected (None, None)")
def no_step_is_a_hang(triage, self, facts):
    """Over-correction: calls a run slow when it has no step after the usual polling time, during a cold compile."""
    return triage(self, replace(facts, startup_budget_s=facts.patience_s))
