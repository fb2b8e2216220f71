"""What the reference says of an installed stack, an install plan and a storage map."""

from collections.abc import Mapping

from contracts.spec import install_plan, stack_table
from contracts.spec import storage as volumes
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


class InstallationAnswers:
    """The answers of `Reference` on this subject."""

    QUESTIONS = frozenset(
        {
            "stack_table", "compare_stack", "check_plan", "check_torch", "check_storage", "cache_env", "check_caches",
        }
    )  # fmt: skip

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
