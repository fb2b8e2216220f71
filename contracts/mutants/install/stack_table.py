"""Checks that misread what is installed: by name, by text, or only in part."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.installation import Extension, InstalledPart, StackTable, TorchBuild
from contracts.spec.machine import Finding
from contracts.stacks.reference.stack import Reference

Parts = tuple[InstalledPart, ...]


def _line_of(table: StackTable, field: str) -> str:
    return next(line.version for line in table.lines if line.component == field)


@mutant(of="INST-01", case="newer-driver", says="found where all is well: INST-01 driver", bugs=("INS-08",))
class ComparesVersionsAsText(Reference):
    """Compares versions as strings: driver 590.105 sorts below 590.48, and a newer host is refused."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        floor = _line_of(table, "driver")
        as_text = tuple(
            replace(part, version="0") if part.name == "driver" and (part.version or "") < floor else part
            for part in installed
        )
        return super().compare_stack(table, as_text)


@mutant(of="INST-01", case="driver-590-9", says="nothing was found, expected a finding on driver", bugs=("INS-08",))
class ReadsVersionsAsDecimals(Reference):
    """Over-correction: reads a version as a decimal number, so 590.9 is above 590.48."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        def newest(part: InstalledPart) -> InstalledPart:
            decimal = (part.version or "").count(".") == 1 and part.name == "driver"
            return replace(part, version=part.version + "00") if decimal and part.version else part

        return super().compare_stack(table, tuple(newest(part) for part in installed))


@mutant(
    of="INST-01", case="torch-of-another-cuda", says="nothing was found, expected a finding on torch", bugs=("INS-01",)
)
class DropsTheLocalTag(Reference):
    """Compares only public versions, so a cu130 build of the same night passes for the cu132 one."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        lines = tuple(replace(line, version=line.version.partition("+")[0]) for line in table.lines)
        parts = tuple(replace(part, version=part.version and part.version.partition("+")[0]) for part in installed)
        return super().compare_stack(replace(table, lines=lines), parts)


@mutant(
    of="INST-01", case="quack-missing", says="nothing was found, expected a finding on quack-kernels", bugs=("INS-03",)
)
class ComparesWhatIsThere(Reference):
    """Walks over the installed packages instead of the table, so a missing package is never noticed."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        return tuple(each for each in super().compare_stack(table, installed) if "not installed" not in str(each))


@mutant(of="INST-01", case="driver-prints-garbage", says="nothing was found, expected a finding on driver")
class UnreadableIsFine(Reference):
    """Skips a tool that prints no version: if nvidia-smi fails, the driver counts as right."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        silent = {part.name for part in installed if part.version is None or not part.version[:1].isdigit()}
        return tuple(each for each in super().compare_stack(table, installed) if each.field not in silent)


@mutant(of="INST-01", case="torch-twice", says="nothing was found, expected a finding on torch", bugs=("INS-01",))
class LooksAtTheFirst(Reference):
    """Looks at the first of two installations only, as importlib.metadata does, and misses the user's home."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        first: dict[str, InstalledPart] = {}
        for part in installed:
            first.setdefault(part.name, part)
        return super().compare_stack(table, tuple(first.values()))


@mutant(
    of="INST-01",
    case="fla-from-the-index",
    says="nothing was found, expected a finding on flash-linear",
    bugs=("PRV-31",),
)
class BelievesTheNumber(Reference):
    """Compares only version numbers: a release from an index passes for a source checkout."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        return super().compare_stack(table, tuple(replace(part, source=None) for part in installed))


@mutant(of="INST-01", case="three-at-once", says="found on torch only, expected a finding on flash-attn")
class StopsAtTheFirst(Reference):
    """Returns at the first line that differs, so three repairs take three attempts on a rented host."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        return super().compare_stack(table, installed)[:1]


@mutant(of="INST-01", case="equal", says="found where all is well: INST-01 flash-attn")
class KnowsOneSpelling(Reference):
    """Looks distributions up by their common name, and `flash_attn` is not `flash-attn`."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        names = {line.component for line in table.lines} | {name for line in table.lines for name in line.distributions}
        return super().compare_stack(table, tuple(part for part in installed if part.name in names))


@mutant(of="INST-01", case="newer-gcc", says="nothing was found, expected a finding on gcc", bugs=("INS-10", "PRV-34"))
class ComparesPythonPackages(Reference):
    """Treats the table as a requirements file, which has no lines for the host's compiler, driver and toolkit."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        packages = tuple(line for line in table.lines if line.source != "system")
        return super().compare_stack(replace(table, lines=packages), installed)


@mutant(
    of="INST-01",
    case="datasets-below-its-floor",
    says="nothing was found, expected a finding on datasets",
    bugs=("INS-07",),
)
class FloorsOfTheHostOnly(Reference):
    """Asserts a minimum version for the driver and for no library, so the second resume starts over."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        free = {line.component for line in table.lines if line.at_least and line.source != "system"}
        return tuple(each for each in super().compare_stack(table, installed) if each.field not in free)


@mutant(of="INST-01a", case="nccl", says="nccl has 0 lines")
class LeavesOutWhatIsBundled(Reference):
    """Packages that came with torch are not listed, so nobody sees when another package replaces one."""

    def stack_table(self) -> StackTable:
        table = super().stack_table()
        return replace(table, lines=tuple(line for line in table.lines if line.source != "bundled"))


@mutant(of="INST-01a", case="torch", says="torch 2.12.0.dev20260405 does not say which build it is", bugs=("INS-01",))
class TableWithoutTags(Reference):
    """The table was copied from a requirements file, which allows no local tags."""

    def stack_table(self) -> StackTable:
        table = super().stack_table()
        lines = tuple(replace(line, version=line.version.partition("+")[0]) for line in table.lines)
        return replace(table, lines=lines)


@mutant(of="INST-01b", case="own-table", says="nothing was found, expected a finding on driver")
class FloorsAreForgiven(Reference):
    """A minimum version is only a recommendation, so any driver passes."""

    def compare_stack(self, table: StackTable, installed: Parts) -> tuple[Finding, ...]:
        floors = {line.component for line in table.lines if line.at_least}
        there = {part.name for part in installed}
        return tuple(each for each in super().compare_stack(table, installed) if each.field not in floors & there)


@mutant(of="INST-03", case="next-nightly", says="nothing was found, expected a finding on torch", bugs=("INS-02",))
class LooksForTheTag(Reference):
    """`assert 'cu132' in torch.__version__`, as the runbook says, also passes for the next night's build."""

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        if found is not None and wanted.version.partition("+")[2] in found.version:
            found = replace(found, version=wanted.version)
        return super().check_torch(wanted, found, extensions)


@mutant(of="INST-03", case="built-for-another-cuda", says="nothing was found, expected a finding on torch")
class BelievesTheName(Reference):
    """Looks only at the version, and a renamed wheel carries another CUDA under the right tag."""

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        found = found and replace(found, cuda=wanted.cuda)
        return super().check_torch(wanted, found, extensions)


@mutant(of="INST-03", case="gone", says="nothing was found, expected a finding on torch", bugs=("INS-01",))
class NothingToCompare(Reference):
    """A missing torch gives nothing to compare, so nothing differs."""

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        return super().check_torch(wanted, found or wanted, extensions)


@mutant(of="INST-03a", case="undefined-symbol", says="nothing was found, expected a finding on mamba-ssm",
        bugs=("INS-02", "INS-03"))  # fmt: skip
class SwallowsTheImport(Reference):
    """`except ImportError: pass`: the extension does not load, and the slow path runs under the fast one's name."""

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        return super().check_torch(wanted, found, tuple(each for each in extensions if each.loads is not False))


@mutant(
    of="INST-03a",
    case="built-for-the-stable",
    says="nothing was found, expected a finding on mamba-ssm",
    bugs=("INS-02",),
)
class LoadingIsFitting(Reference):
    """Accepts every extension that imports: one compiled for another torch, whose symbols happen to exist, drifts."""

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        trusted = tuple(replace(each, built_for=None) if each.loads else each for each in extensions)
        return super().check_torch(wanted, found, trusted)


@mutant(
    of="INST-03a", case="2.1-is-not-2.10", says="nothing was found, expected a finding on flash-attn", bugs=("INS-08",)
)
class MatchesThePrefix(Reference):
    """`torch.__version__.startswith("2.1")` is true of 2.10."""

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        version = found.version if found else ""
        alike = tuple(
            replace(each, built_for=version) if version.startswith(each.built_for or "?") else each
            for each in extensions
        )
        return super().check_torch(wanted, found, alike)


@mutant(of="INST-03a", case="nobody-knows", says="nothing was found, expected a finding on mamba-ssm", bugs=("INS-02",))
class UnknownIsFine(Reference):
    """Ignores a wheel when nobody recorded the torch it was compiled for."""

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        return super().check_torch(wanted, found, tuple(each for each in extensions if each.built_for is not None))


@mutant(of="INST-03a", case="python-alone", says="found where all is well: INST-03 quack-kernels")
class WantsARecordOfEverything(Reference):
    """Over-correction: refuses pure Python packages, which have no ABI, for not stating one."""

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        compiled = tuple(replace(each, tag="cp313-cp313-linux_x86_64") for each in extensions)
        return super().check_torch(wanted, found, compiled)
