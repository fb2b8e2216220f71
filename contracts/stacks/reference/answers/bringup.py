"""What the reference answers about a launch, a node and the evidence of a run: `contracts/bringup` asks it.

It plans memory, chooses kernels, judges an installed stack and a storage map, and says what became of a run.
"""

from collections.abc import Mapping

from contracts.spec import Recipe, allocator, cards, install_plan, memory, parameters, stack_table, triage
from contracts.spec import goodput as clock
from contracts.spec import kernels as catalogue
from contracts.spec import manifest as manifests
from contracts.spec import storage as volumes
from contracts.spec.allocator import AllocatorTrend, FlagEffect, MemorySample, OomCause, OutOfMemory
from contracts.spec.capacity import (
    Budget,
    Card,
    Fit,
    KernelChoice,
    KernelRequest,
    KernelRule,
    Measured,
    ParameterCount,
    Promotion,
    Proof,
    Spread,
)
from contracts.spec.goodput import Goodput, Span
from contracts.spec.installation import (
    Disks,
    Extension,
    InstalledPart,
    InstallPlan,
    StackTable,
    StorageMap,
    TorchBuild,
)
from contracts.spec.machine import Finding
from contracts.spec.manifest import Manifest, Reuse, RunEvent, State, StateVolumes
from contracts.spec.triage import Diagnosis, RunFacts, Symptom
from contracts.stacks.reference.answers.node import NodeAnswers
from contracts.stacks.reference.receipts.receipt import ReceiptAnswers


class CapacityAnswers:
    """The answers of `Reference` on this subject."""

    def card(self, name: str) -> Card:
        return cards.card(name)

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        return parameters.count(recipe)

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        return memory.budget(recipe, spread, card)

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        return cards.fit(needed_bytes, card, measured)

    def kernels(self) -> tuple[KernelRule, ...]:
        return catalogue.CATALOGUE

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return catalogue.choose(request)

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        return catalogue.promotion(variant, device, proofs)


class InstallationAnswers:
    """The answers of `Reference` on this subject."""

    def stack_table(self) -> StackTable:
        return stack_table.H200

    def compare_stack(self, table: StackTable, installed: tuple[InstalledPart, ...]) -> tuple[Finding, ...]:
        return stack_table.findings(table, installed)

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        return install_plan.plan_findings(plan)

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        return install_plan.torch_findings(wanted, found, extensions)

    def check_storage(self, storage: StorageMap, disks: Disks) -> tuple[Finding, ...]:
        return volumes.storage_findings(storage, disks)

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        return volumes.cache_environment(storage, run)

    def check_caches(self, storage: StorageMap, disks: Disks, run: str, env: Mapping[str, str]) -> tuple[Finding, ...]:
        return volumes.cache_findings(storage, disks, run, env)


class LifecycleAnswers:
    """The answers of `Reference` on this subject."""

    def advance(self, manifest: Manifest, event: RunEvent) -> Manifest:
        return manifests.advance(manifest, event)

    def run_state(self, manifest: Manifest) -> State:
        return manifests.run_state(manifest)

    def reuse(self, volumes: StateVolumes, prior: StateVolumes | None) -> tuple[Reuse, ...]:
        return manifests.reuse(volumes, prior)

    def triage(self, facts: RunFacts) -> Diagnosis:
        return triage.triage(facts)

    def symptom_row(self, symptom: Symptom) -> Diagnosis:
        return triage.symptom_row(symptom)

    def oom_cause(self, record: OutOfMemory) -> OomCause:
        return allocator.oom_cause(record)

    def allocator_trend(self, samples: tuple[MemorySample, ...]) -> AllocatorTrend:
        return allocator.allocator_trend(samples)

    def expandable_effect(self, off: tuple[MemorySample, ...], on: tuple[MemorySample, ...]) -> FlagEffect:
        return allocator.expandable_effect(off, on)

    def goodput(self, spans: tuple[Span, ...], start: int, end: int) -> Goodput:
        return clock.goodput(spans, start, end)


class BringupAnswers(NodeAnswers, InstallationAnswers, ReceiptAnswers, LifecycleAnswers, CapacityAnswers):
    """Everything that `contracts/bringup` asks."""
