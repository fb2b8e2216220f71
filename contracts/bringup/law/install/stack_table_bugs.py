"""Checks that misread what is installed: by name, by text, or only in part."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec.installation import InstalledPart
from contracts.stacks.reference.stack import Reference

Parts = tuple[InstalledPart, ...]


@broken(Reference, "compare_stack", "INST-01[newer-driver]: found where all is well: INST-01 driver", bugs=("INS-08",))
def compares_versions_as_text(compare_stack, self, table, installed):
    """Compares versions as strings: driver 590.105 sorts below 590.48, and a newer host is refused."""
    floor = next(line.version for line in table.lines if line.component == "driver")
    as_text = tuple(
        replace(part, version="0") if part.name == "driver" and (part.version or "") < floor else part
        for part in installed
    )
    return compare_stack(self, table, as_text)


@broken(
    Reference,
    "compare_stack",
    "INST-01[driver-590-9]: nothing was found, expected a finding on driver",
    bugs=("INS-08",),
)
def reads_versions_as_decimals(compare_stack, self, table, installed):
    """Over-correction: reads a version as a decimal number, so 590.9 is above 590.48."""

    def newest(part):
        decimal = (part.version or "").count(".") == 1 and part.name == "driver"
        return replace(part, version=part.version + "00") if decimal and part.version else part

    return compare_stack(self, table, tuple(newest(part) for part in installed))


@broken(
    Reference,
    "compare_stack",
    "INST-01[torch-of-another-cuda]: nothing was found, expected a finding on torch",
    bugs=("INS-01",),
)
def drops_the_local_tag(compare_stack, self, table, installed):
    """Compares only public versions, so a cu130 build of the same night passes for the cu132 one."""
    lines = tuple(replace(line, version=line.version.partition("+")[0]) for line in table.lines)
    parts = tuple(replace(part, version=part.version and part.version.partition("+")[0]) for part in installed)
    return compare_stack(self, replace(table, lines=lines), parts)


@broken(
    Reference,
    "compare_stack",
    "INST-01[quack-missing]: nothing was found, expected a finding on quack-kernels",
    bugs=("INS-03",),
)
def compares_what_is_there(compare_stack, self, table, installed):
    """Walks over the installed packages instead of the table, so a missing package is never noticed."""
    return tuple(each for each in compare_stack(self, table, installed) if "not installed" not in str(each))


@broken(Reference, "compare_stack", "INST-01[driver-prints-garbage]: nothing was found, expected a finding on driver")
def unreadable_is_fine(compare_stack, self, table, installed):
    """Skips a tool that prints no version: if nvidia-smi fails, the driver counts as right."""
    silent = {part.name for part in installed if part.version is None or not part.version[:1].isdigit()}
    return tuple(each for each in compare_stack(self, table, installed) if each.field not in silent)


@broken(
    Reference, "compare_stack", "INST-01[torch-twice]: nothing was found, expected a finding on torch", bugs=("INS-01",)
)
def looks_at_the_first(compare_stack, self, table, installed):
    """Looks at the first of two installations only, as importlib.metadata does, and misses the user's home."""
    first = {}
    for part in installed:
        first.setdefault(part.name, part)
    return compare_stack(self, table, tuple(first.values()))


@broken(
    Reference,
    "compare_stack",
    "INST-01[fla-from-the-index]: nothing was found, expected a finding on flash-linear",
    bugs=("PRV-31",),
)
def believes_the_number(compare_stack, self, table, installed):
    """Compares only version numbers: a release from an index passes for a source checkout."""
    return compare_stack(self, table, tuple(replace(part, source=None) for part in installed))


@broken(Reference, "compare_stack", "INST-01[three-at-once]: found on torch only, expected a finding on flash-attn")
def stops_at_the_first(compare_stack, self, table, installed):
    """Returns at the first line that differs, so three repairs take three attempts on a rented host."""
    return compare_stack(self, table, installed)[:1]


@broken(Reference, "compare_stack", "INST-01[equal]: found where all is well: INST-01 flash-attn")
def knows_one_spelling(compare_stack, self, table, installed):
    """Looks distributions up by their common name, and `flash_attn` is not `flash-attn`."""
    names = {line.component for line in table.lines} | {name for line in table.lines for name in line.distributions}
    return compare_stack(self, table, tuple(part for part in installed if part.name in names))


@broken(
    Reference,
    "compare_stack",
    "INST-01[newer-gcc]: nothing was found, expected a finding on gcc",
    bugs=("INS-10", "PRV-34"),
)
def compares_python_packages(compare_stack, self, table, installed):
    """Treats the table as a requirements file, which has no lines for the host's compiler, driver and toolkit."""
    packages = tuple(line for line in table.lines if line.source != "system")
    return compare_stack(self, replace(table, lines=packages), installed)


@broken(
    Reference,
    "compare_stack",
    "INST-01[datasets-below-its-floor]: nothing was found, expected a finding on datasets",
    bugs=("INS-07",),
)
def floors_of_the_host_only(compare_stack, self, table, installed):
    """Asserts a minimum version for the driver and for no library, so the second resume starts over."""
    free = {line.component for line in table.lines if line.at_least and line.source != "system"}
    return tuple(each for each in compare_stack(self, table, installed) if each.field not in free)


@broken(Reference, "stack_table", "INST-01a[nccl]: nccl has 0 lines")
def leaves_out_what_is_bundled(stack_table, self):
    """Packages that came with torch are not listed, so nobody sees when another package replaces one."""
    table = stack_table(self)
    return replace(table, lines=tuple(line for line in table.lines if line.source != "bundled"))


@broken(
    Reference,
    "stack_table",
    "INST-01a[torch]: torch 2.12.0.dev20260405 does not say which build it is",
    bugs=("INS-01",),
)
def table_without_tags(stack_table, self):
    """The table was copied from a requirements file, which allows no local tags."""
    table = stack_table(self)
    lines = tuple(replace(line, version=line.version.partition("+")[0]) for line in table.lines)
    return replace(table, lines=lines)


@broken(Reference, "compare_stack", "INST-01b[own-table]: nothing was found, expected a finding on driver")
def floors_are_forgiven(compare_stack, self, table, installed):
    """A minimum version is only a recommendation, so any driver passes."""
    floors = {line.component for line in table.lines if line.at_least}
    there = {part.name for part in installed}
    return tuple(each for each in compare_stack(self, table, installed) if each.field not in floors & there)


@broken(
    Reference, "check_torch", "INST-03[next-nightly]: nothing was found, expected a finding on torch", bugs=("INS-02",)
)
def looks_for_the_tag(check_torch, self, wanted, found, extensions):
    """`assert 'cu132' in torch.__version__`, as the runbook says, also passes for the next night's build."""
    if found is not None and wanted.version.partition("+")[2] in found.version:
        found = replace(found, version=wanted.version)
    return check_torch(self, wanted, found, extensions)


@broken(Reference, "check_torch", "INST-03[built-for-another-cuda]: nothing was found, expected a finding on torch")
def believes_the_name(check_torch, self, wanted, found, extensions):
    """Looks only at the version, and a renamed wheel carries another CUDA under the right tag."""
    found = found and replace(found, cuda=wanted.cuda)
    return check_torch(self, wanted, found, extensions)


@broken(Reference, "check_torch", "INST-03[gone]: nothing was found, expected a finding on torch", bugs=("INS-01",))
def nothing_to_compare(check_torch, self, wanted, found, extensions):
    """A missing torch gives nothing to compare, so nothing differs."""
    return check_torch(self, wanted, found or wanted, extensions)


@broken(
    Reference,
    "check_torch",
    "INST-03a[undefined-symbol]: nothing was found, expected a finding on mamba-ssm",
    bugs=("INS-02", "INS-03"),
)
def swallows_the_import(check_torch, self, wanted, found, extensions):
    """`except ImportError: pass`: the extension does not load, and the slow path runs under the fast one's name."""
    return check_torch(self, wanted, found, tuple(each for each in extensions if each.loads is not False))


@broken(
    Reference,
    "check_torch",
    "INST-03a[built-for-the-stable]: nothing was found, expected a finding on mamba-ssm",
    bugs=("INS-02",),
)
def loading_is_fitting(check_torch, self, wanted, found, extensions):
    """Accepts every extension that imports: one compiled for another torch, whose symbols happen to exist, drifts."""
    trusted = tuple(replace(each, built_for=None) if each.loads else each for each in extensions)
    return check_torch(self, wanted, found, trusted)


@broken(
    Reference,
    "check_torch",
    "INST-03a[2.1-is-not-2.10]: nothing was found, expected a finding on flash-attn",
    bugs=("INS-08",),
)
def matches_the_prefix(check_torch, self, wanted, found, extensions):
    """`torch.__version__.startswith("2.1")` is true of 2.10."""
    version = found.version if found else ""
    alike = tuple(
        replace(each, built_for=version) if version.startswith(each.built_for or "?") else each for each in extensions
    )
    return check_torch(self, wanted, found, alike)


@broken(
    Reference,
    "check_torch",
    "INST-03a[nobody-knows]: nothing was found, expected a finding on mamba-ssm",
    bugs=("INS-02",),
)
def unknown_is_fine(check_torch, self, wanted, found, extensions):
    """Ignores a wheel when nobody recorded the torch it was compiled for."""
    return check_torch(self, wanted, found, tuple(each for each in extensions if each.built_for is not None))


@broken(Reference, "check_torch", "INST-03a[python-alone]: found where all is well: INST-03 quack-kernels")
def wants_a_record_of_everything(check_torch, self, wanted, found, extensions):
    """Over-correction: refuses pure Python packages, which have no ABI, for not stating one."""
    compiled = tuple(replace(each, tag="cp313-cp313-linux_x86_64") for each in extensions)
    return check_torch(self, wanted, found, compiled)
