"""What is installed: the stack compared with its table, torch and the binaries with the build they were made for."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.answers import assert_no_findings, finding_on
from contracts.spec.installation import (
    Extension,
    Installation,
    InstalledPart,
    StackLine,
    StackTable,
    TorchBuild,
)

NIGHTLY = "2.12.0.dev20260405+cu132"
STABLE = "2.11.0+cu130"  # what the index resolves for torch

TABLE = StackTable(
    name="h200",
    lines=(
        StackLine(component="python", version="3.13.12", source="system"),
        StackLine(component="torch", version=NIGHTLY, source="index", origin="PyTorch nightly cu132 index"),
        StackLine(component="triton", version="3.7.0+git9c288bc5", source="bundled",
                  distributions=("triton", "pytorch-triton")),
        StackLine(component="driver", version="590.48", source="system", at_least=True),
        StackLine(component="datasets", version="4.8", source="index", at_least=True),
        StackLine(component="flash-attn", version="2.8.3", source="wheel"),
        StackLine(component="flash-linear-attention", version="0.5.0", source="git", no_deps=True),
        StackLine(component="quack-kernels", version="0.3.9", source="bundled", origin="flash-attn-4"),
        StackLine(component="gcc", version="11.4.0", source="system"),
    ),
)  # fmt: skip
WELL = {
    "python": InstalledPart(name="python", version="3.13.12", source="system"),
    "torch": InstalledPart(name="torch", version=NIGHTLY, source="index"),
    "triton": InstalledPart(name="pytorch-triton", version="3.7.0+git9c288bc5", source="index"),
    "driver": InstalledPart(name="driver", version="590.48.01", source="system"),
    "datasets": InstalledPart(name="datasets", version="4.10.1", source="index"),
    "flash-attn": InstalledPart(name="flash_attn", version="2.8.3", source="wheel"),
    "flash-linear-attention": InstalledPart(name="flash-linear-attention", version="0.5.0", source="git"),
    "quack-kernels": InstalledPart(name="Quack.Kernels", version="0.3.9", source="index"),
    "gcc": InstalledPart(name="gcc", version="11.4.0", source="system"),
    "numpy": InstalledPart(
        name="numpy", version="2.4.1", source="index"
    ),  # not a line of the table, so it is not judged
}


def _with(**versions: str | None) -> tuple[InstalledPart, ...]:
    return tuple(
        replace(part, version=versions[name.replace("-", "_")]) if name.replace("-", "_") in versions else part
        for name, part in WELL.items()
    )


def _without(*names: str) -> tuple[InstalledPart, ...]:
    return tuple(part for name, part in WELL.items() if name not in names)


Expected = tuple[tuple[str, ...], ...]
"""For each finding that must be there: the field, then words; none at all means that all is well."""

ENVIRONMENTS: dict[str, tuple[tuple[InstalledPart, ...], Expected]] = {
    "equal": (_with(), ()),
    "newer-driver": (_with(driver="590.105.08"), ()),  # as text 590.105 is below 590.48
    "older-driver": (_with(driver="580.95.05"), (("driver", "580.95.05", "590.48"),)),
    "driver-590-9": (_with(driver="590.9"), (("driver", "590.9", "590.48"),)),
    "datasets-below-its-floor": (_with(datasets="4.7.0"), (("datasets", "4.7.0", "4.8"),)),  # breaks the second resume
    "torch-downgraded": (_with(torch=STABLE), (("torch", STABLE, NIGHTLY),)),
    "torch-of-the-next-day": (_with(torch="2.12.0.dev20260406+cu132"), (("torch", "20260406", "20260405"),)),
    "torch-of-another-cuda": (_with(torch="2.12.0.dev20260405+cu130"), (("torch", "cu130", "cu132"),)),
    "newer-gcc": (_with(gcc="13.3.0"), (("gcc", "13.3.0", "11.4.0"),)),
    "quack-missing": (_without("quack-kernels"), (("quack-kernels", "0.3.9"),)),
    "flash-attn-says-nothing": (_with(flash_attn=None), (("flash-attn", "2.8.3"),)),
    "driver-prints-garbage": (_with(driver="NVIDIA-SMI has failed"), (("driver", "590.48"),)),
    "torch-twice": (
        (*_with(), InstalledPart(name="torch", version=STABLE, source="index", place="~/.local")),
        (("torch", STABLE),),
    ),
    "fla-from-the-index": (
        (*_without("flash-linear-attention"),
         InstalledPart(name="flash-linear-attention", version="0.5.0", source="index")),
        (("flash-linear-attention", "index", "git"),),
    ),
    "three-at-once": (
        tuple(part for part in _with(torch=STABLE, gcc="13.3.0") if part.name != "flash_attn"),
        (("torch", STABLE), ("flash-attn", "2.8.3"), ("gcc", "13.3.0")),
    ),
    "nothing-installed": ((), tuple((line.component, line.version) for line in TABLE.lines)),
}  # fmt: skip


@contract("INST-01", asks="compare_stack", cases=ENVIRONMENTS, source="bringup: the stack we actually run")
def what_is_installed_is_compared_line_by_line(
    stack: Installation, installed: tuple[InstalledPart, ...], expected: Expected
) -> None:
    """Every line of the stack table is compared with what is installed. The check reports each line that differs, is
    missing, has no version, appears twice or comes from another source, and no other line.

    One page says what the stack is, "everything else is commentary". Two hosts of one name with different dependency
    lists were compared for weeks. Versions are numbers: 590.105 is newer than 590.48, though not as text.
    """
    findings = stack.compare_stack(TABLE, installed)
    if not expected:
        assert_no_findings(findings)
    for field, *words in expected:
        finding_on(findings, field, *words)
    also = {finding.field for finding in findings} - {field for field, *_ in expected}
    assert not also, f"also found on {sorted(also)[0]}, whose line is equal"


NEEDED = {name: name for name in ("python", "torch", "cuda", "driver", "cudnn", "nccl")}


@contract("INST-01a", asks="stack_table", cases=NEEDED, source="bringup: the stack we actually run")
def the_table_states_what_sets_the_abi(stack: Installation, needed: str) -> None:
    """The stack states its table as data: interpreter, torch, CUDA, driver, cuDNN and NCCL each have one line with a
    version, and torch's line includes its build tag.

    A torch version without its local tag (`+cu132`) names a dozen builds, and no binary fits all of them.
    """
    table = stack.stack_table()
    lines = [line for line in table.lines if needed in line.component.lower()]
    if needed in ("torch", "cuda"):  # torchao and qoptim-cuda are other components
        lines = [line for line in lines if line.component.lower() in (needed, "cuda-toolkit", "cuda toolkit")]
    assert len(lines) == 1, f"{needed} has {len(lines)} lines in {table.name}, expected 1"
    assert any(letter.isdigit() for letter in lines[0].version), f"{needed} has the version {lines[0].version!r}"
    if needed == "torch":
        assert "+" in lines[0].version, f"torch {lines[0].version} does not say which build it is"


@contract("INST-01b", asks=("stack_table", "compare_stack"), cases={"own-table": ()}, source="bringup")
def every_line_of_the_table_counts(stack: Installation) -> None:
    """Checked against the stack's own table, an environment that matches every line passes, and one that lacks or
    changes any single line fails.
    """
    table = stack.stack_table()
    parts = {
        line.component: InstalledPart(
            name=line.distributions[0] if line.distributions else line.component, version=line.version,
            source=line.source if line.source != "bundled" else None,
        )
        for line in table.lines
    }  # fmt: skip
    assert_no_findings(stack.compare_stack(table, tuple(parts.values())))
    for component, part in parts.items():
        others = tuple(each for name, each in parts.items() if name != component)
        finding_on(stack.compare_stack(table, others), component, part.version or "")
        older = replace(part, version="0.0.0.1")
        finding_on(stack.compare_stack(table, (*others, older)), component, "0.0.0.1")


WAS = TorchBuild(version=NIGHTLY, cuda="13.2", python_tag="cp313", cxx11_abi=True)
BUILDS: dict[str, tuple[TorchBuild | None, tuple[str, ...]]] = {
    "as-it-was": (WAS, ()),
    "gone": (None, (NIGHTLY,)),
    "stable": (replace(WAS, version=STABLE, cuda="13.0"), (STABLE, NIGHTLY)),
    "without-cuda": (replace(WAS, version="2.12.0.dev20260405+cpu", cuda=None), ("+cpu", "+cu132")),
    "tag-dropped": (replace(WAS, version="2.12.0.dev20260405"), (NIGHTLY,)),
    "tag-that-begins-alike": (replace(WAS, version=f"{NIGHTLY}0"), (f"{NIGHTLY}0",)),
    "next-nightly": (replace(WAS, version="2.12.0.dev20260406+cu132"), ("20260406", "20260405")),
    "built-for-another-cuda": (replace(WAS, cuda="12.8"), ("12.8", "13.2")),
}


@contract("INST-03", asks="check_torch", cases=BUILDS, source="bringup: if that assert fails, stop")
def torch_is_the_build_it_was(stack: Installation, found: TorchBuild | None, words: tuple[str, ...]) -> None:
    """torch is exactly the build that the stack was made with: version, local tag and CUDA. Otherwise the stack stops
    and names both builds.

    The symptoms of a partial downgrade range from import errors to a drift that shows after a thousand steps. A common
    assertion looks for cu132 in the version, which the next nightly build also has.
    """
    findings = stack.check_torch(WAS, found, ())
    if words:
        finding_on(findings, "torch", *words)
    else:
        assert_no_findings(findings)


LINUX = "linux_x86_64"
RELEASE = TorchBuild(version="2.10.0+cu128", cuda="12.8", python_tag="cp312", cxx11_abi=True)
MAMBA_SSM = Extension(name="mamba-ssm", version="2.3.1", tag=f"cp313-cp313-{LINUX}", built_for=NIGHTLY,
                      cxx11_abi=True, loads=True)  # fmt: skip
FLASH = replace(MAMBA_SSM, name="flash-attn", version="2.8.3", tag=f"cp312-cp312-{LINUX}", built_for="2.10")
BINARIES: dict[str, tuple[TorchBuild, Extension, tuple[str, ...]]] = {
    "built-for-it": (WAS, MAMBA_SSM, ()),
    "python-alone": (WAS, replace(MAMBA_SSM, name="quack-kernels", tag="py3-none-any", built_for=None, loads=None), ()),
    "stable-python-abi": (WAS, replace(MAMBA_SSM, tag=f"cp39-abi3-{LINUX}"), ()),
    "release-series": (RELEASE, FLASH, ()),
    "built-for-the-stable": (WAS, replace(MAMBA_SSM, built_for=STABLE), (STABLE, NIGHTLY)),
    "built-for-the-night-before": (WAS, replace(MAMBA_SSM, built_for="2.12.0.dev20260404+cu132"), ("20260404",)),
    "series-is-no-nightly": (WAS, replace(MAMBA_SSM, built_for="2.12"), ("2.12", NIGHTLY)),
    "2.1-is-not-2.10": (RELEASE, replace(FLASH, built_for="2.1"), ("2.1", "2.10.0+cu128")),
    "other-string-abi": (RELEASE, replace(FLASH, cxx11_abi=False), ("abi",)),
    "other-interpreter": (WAS, replace(MAMBA_SSM, tag=f"cp312-cp312-{LINUX}"), ("cp312", "cp313")),
    "undefined-symbol": (
        WAS, replace(MAMBA_SSM, loads=False, error="undefined symbol: _ZN3c104cuda9SetDeviceEi"),
        ("undefined symbol: _ZN3c104cuda9SetDeviceEi",),
    ),
    "nobody-knows": (WAS, replace(MAMBA_SSM, built_for=None, loads=None), ()),
}  # fmt: skip
FITTING = {"built-for-it", "python-alone", "stable-python-abi", "release-series"}


@contract(
    "INST-03a",
    asks="check_torch",
    cases={name: (*case, name in FITTING) for name, case in BINARIES.items()},
    source="bringup; flash-attn #919, mamba #217: undefined symbol",
)
def binaries_fit_the_torch_that_is_there(
    stack: Installation, torch: TorchBuild, extension: Extension, words: tuple[str, ...], fits: bool
) -> None:
    """Every compiled package was built for the installed torch, interpreter and C++ ABI, and loads. A package that was
    not, or whose build is unknown, is named.

    A nightly's symbols change every night. An `except ImportError` often hides an extension that does not load, and a
    slow path runs under the fast one's name.
    """
    findings = stack.check_torch(torch, torch, (extension,))
    if fits:
        assert_no_findings(findings)
    else:
        finding_on(findings, extension.name, *words)
