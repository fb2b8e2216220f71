"""Operators' habits that cost a day: everything hangs in the network, everything is the launcher, run it again."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.triage import Diagnosis, RunFacts, Symptom
from contracts.stacks.reference.stack import Reference


@mutant(of="MANI-02", case="stuck-detached", says="layer is collector, expected launch")
class WaitingIsWaiting(Reference):
    """Blames the collector for every manifest that does not move, even if the remote call never began."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        return super().triage(replace(facts, state="running", steps=1) if facts.state == "detached" else facts)


@mutant(
    of="MANI-02", case="one-artifact-of-three-absent", says="layer is None, expected observability", bugs=("PRV-18",)
)
class CountsADeclaredArtifactAsThere(Reference):
    """Takes the artifacts from the list in the manifest, without checking that the files exist."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        return super().triage(replace(facts, present=facts.declared))


@mutant(of="MANI-02", case="complete-since-yesterday", says="layer is collector, expected None")
class EndedIsStuckToo(Reference):
    """Over-correction: a watchdog on the manifest's age does not check whether the run has ended."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        late = facts.silent_s > facts.patience_s and facts.state == "ok"
        return super().triage(replace(facts, state="running") if late else facts)


@mutant(of="MANI-02", case="running-and-polled", says="layer is collector, expected None")
class NoReceiptYetIsStuck(Reference):
    """Over-correction: a running manifest without a receipt counts as stuck from the first second."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        waits = facts.state == "running" and not facts.receipt
        return super().triage(replace(facts, silent_s=2 * facts.patience_s) if waits else facts)


@mutant(of="MANI-02a", case="last-rank-empty", says="layer is distributed compile, expected sharding")
class NeverCountsTokens(Reference):
    """Treats all hangs before the first step alike, and does not look for the rank without tokens."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        return super().triage(replace(facts, local_tokens=()))


@mutant(of="MANI-02a", case="short-last-rank", says="layer is sharding, expected distributed compile")
class UnevenIsEmpty(Reference):
    """Over-correction: any rank with fewer tokens than the others is blamed, though a short shard still takes part."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        most = max(facts.local_tokens, default=0)
        return super().triage(replace(facts, local_tokens=tuple(n if n == most else 0 for n in facts.local_tokens)))


@mutant(of="MANI-02a", case="polled-all-the-while", says="layer is bootstrap, expected distributed compile")
class APolledRunDoesNotHang(Reference):
    """While the collector polls, nobody checks who waits in the collective: a two-hour hang reads as a cold start."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        return super().triage(replace(facts, waiting_ranks=()) if facts.silent_s <= facts.patience_s else facts)


@mutant(of="MANI-03", case="first-collective", says="layer is execution, expected distributed compile")
class BlamesTheNetwork(Reference):
    """Blames NCCL for every hang, though that explanation was the first to be ruled out."""

    def symptom_row(self, symptom: Symptom) -> Diagnosis:
        if symptom != "first collective hangs":
            return super().symptom_row(symptom)
        return Diagnosis(layer="execution", symptom=symptom, first_surface="NCCL_DEBUG=INFO", fix="raise the timeout")


@mutant(of="MANI-03", case="re-run", says="the fix names none of")
class RunsItAgain(Reference):
    """Proposes another run as every fix, which changes one more thing at once."""

    def symptom_row(self, symptom: Symptom) -> Diagnosis:
        return replace(super().symptom_row(symptom), fix="retry")


@mutant(of="MANI-03a", case="other-backend", says="expected ('re-run differs', 'image or volume')", bugs=("PRV-20",))
class SameNameSameBackend(Reference):
    """Does not compare the backend's identity: a new image under the same name reads as a regression."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        if facts.own is None or facts.prior is None:
            return super().triage(facts)
        return super().triage(replace(facts, own=replace(facts.own, backend_identity=facts.prior.backend_identity)))


@mutant(of="MANI-03a", case="older-volume", says="expected ('re-run differs', 'image or volume')", bugs=("PRV-21",))
class MountedIsCurrent(Reference):
    """Compares the names of the mounted volumes and not their visible contents."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        if facts.own is None or facts.prior is None or facts.own.volumes.keys() != facts.prior.volumes.keys():
            return super().triage(facts)
        return super().triage(replace(facts, own=replace(facts.own, volumes=facts.prior.volumes)))


@mutant(of="MANI-03a", case="still-compiling", says="expected (None, None)")
class NoStepIsAHang(Reference):
    """Over-correction: calls a run slow when it has no step after the usual polling time, during a cold compile."""

    def triage(self, facts: RunFacts) -> Diagnosis:
        return super().triage(replace(facts, startup_budget_s=facts.patience_s))
