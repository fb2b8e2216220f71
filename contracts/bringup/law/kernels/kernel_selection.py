"""Third-party kernels: which one runs at a site, and the reason when it is not the requested one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from contracts.contract import contract
from contracts.instruments import accelerator
from contracts.law._support.answers import refusal_of
from contracts.law._support.fp8_calls import BF16, DENSE, FP8, with_scaling
from contracts.spec import Facts, Kernel, Mode, Moe, Package, Recipe, Seam, Seams, Site, Wish

TE: Final = "transformer-engine"
SSM: Final = "mamba-ssm"
BOTH = {TE: Package(state="importable", version="2.12.0"), SSM: Package(state="importable", version="2.3.1")}
EMPTY = Package(state="broken", version="2.12.0", words="RuntimeError: Found empty transformer-engine meta package")
UNBUILT = Package(
    state="broken", version="2.3.2.post1", words="ModuleNotFoundError: No module named 'selective_scan_cuda'"
)
H200 = Facts(device="cuda", capability="sm_90", packages=BOTH)
HOST = Facts(packages=BOTH)


def _on(capability: str | None, **packages: Package) -> Facts:
    """A CUDA device with both packages, or with other states of them (`te`, `ssm`)."""
    names = {"te": TE, "ssm": SSM}
    return Facts(
        device="cuda", capability=capability, packages=BOTH | {names[name]: each for name, each in packages.items()}
    )


_NONE = Package(state="absent")
NARROW = replace(BF16, moe=Moe(experts=12, top_k=3, expert_hidden=20, shared_hidden=96))
_ODD = replace(BF16, hidden=60, moe=Moe(experts=12, top_k=3, expert_hidden=24, shared_hidden=96))
Closed = tuple[Site, Kernel, Recipe, Mode, Facts, tuple[str, ...]]
CLOSED: dict[str, Closed] = {  # the request, the machine, and what a reason must name
    "projections-no-package": ("attention", TE, BF16, "nemo_native", _on("sm_90", te=_NONE), (TE, "not installed")),
    "projections-not-named": ("mlp", TE, BF16, "author_dp", Facts(device="cuda", capability="sm_90"), (TE,)),
    "projections-broken": ("attention", TE, BF16, "author_dp", _on("sm_90", te=EMPTY), (TE, "Found empty", "2.12.0")),
    "mlp-on-a-host": ("mlp", TE, BF16, "nemo_native", HOST, ("cpu",)),
    "mlp-neither": ("mlp", TE, BF16, "nemo_native", Facts(), (TE, "not installed", "cpu")),
    "experts-no-package": ("experts", TE, BF16, "nemo_native", _on("sm_100", te=_NONE), (TE, "not installed")),
    "experts-on-v100": ("experts", TE, BF16, "nemo_native", _on("sm_70"), ("sm_70",)),
    "device-says-nothing": ("attention", TE, BF16, "nemo_native", _on(None), ("None",)),
    "device-nobody-knows": ("attention", TE, FP8, "nemo_native", _on("sm_121a"), ("sm_121a",)),
    "fp8-on-a100": ("attention", TE, FP8, "nemo_native", _on("sm_80"), ("fp8", "sm_80")),
    "mxfp8-on-h200": ("mlp", TE, with_scaling(DENSE, "mxfp8"), "author_dp", H200, ("mxfp8", "sm_90")),
    "scan-no-package": ("scan", SSM, BF16, "nemo_native", _on("sm_90", ssm=_NONE), (SSM, "not installed")),
    "scan-broken": ("scan", SSM, BF16, "nemo_native", _on("sm_90", ssm=UNBUILT), (SSM, "selective_scan_cuda")),
    "scan-on-a-host": ("scan", SSM, BF16, "nemo_native", HOST, ("cpu",)),
    "scan-on-turing": ("scan", SSM, BF16, "nemo_native", _on("sm_75"), ("sm_75",)),
    "recurrence-no-package": ("recurrence", SSM, BF16, "author_dp", _on("sm_90", ssm=_NONE), (SSM, "not installed")),
    "recurrence-without-a-kernel": ("recurrence", SSM, BF16, "nemo_native", H200, (SSM, "kernel")),
    "scan-of-turned-rates": ("scan", SSM, BF16, "author_dp", H200, (SSM,)),  # its B and C are turned before the scan
    "grouped-fp32": ("experts", "torch-grouped", replace(BF16, dtype="fp32"), "nemo_native", H200, ("fp32",)),
    "grouped-fp8": ("experts", "torch-grouped", FP8, "nemo_native", H200, ("fp8",)),
    "grouped-inner-width": ("experts", "torch-grouped", NARROW, "nemo_native", H200, ("expert_hidden", "20")),
    "grouped-outer-width": ("experts", "torch-grouped", _ODD, "nemo_native", Facts(), ("hidden", "60")),
    "grouped-on-turing": ("experts", "torch-grouped", BF16, "nemo_native", _on("sm_75"), ("sm_75",)),
}  # fmt: skip


@contract("KRN-01a", asks="seams", cases=CLOSED, source="hub")
def a_fallback_says_why(
    stack: Seams, site: Site, kernel: Kernel, recipe: Recipe, mode: Mode, facts: Facts, named: tuple[str, ...]
) -> None:
    """A preferred kernel that cannot run gives way to the stack's own kernel, with a reason that names everything
    missing.
    """
    seam = _seam(stack, site, Wish(kernel=kernel), recipe, mode, facts)
    assert seam.requested == kernel, f"{site} records {seam.requested} as requested, expected {kernel}"
    assert seam.actual == "native", f"{site} runs as {seam.actual} where it cannot, expected native"
    assert seam.reason, f"{site} falls back from {kernel} and gives no reason"
    for word in named:
        assert word in seam.reason, (
            f"{site} falls back from {kernel} because {seam.reason!r}, which does not name {word!r}"
        )


def _seam(stack: Seams, site: Site, wish: Wish, recipe: Recipe, mode: Mode, facts: Facts) -> Seam:
    found = [each for each in stack.seams(recipe, mode, {site: wish}, facts) if each.site == site]
    assert len(found) == 1, f"{site} has {len(found)} rows, expected 1"
    return found[0]


Open = tuple[Site, Kernel, Recipe, Mode, Facts]
OPEN: dict[str, Open] = {
    "projections": ("attention", TE, BF16, "nemo_native", H200),
    "projections-fp8": ("attention", TE, FP8, "author_dp", H200),
    "mlp-mxfp8-on-blackwell": ("mlp", TE, with_scaling(DENSE, "mxfp8"), "nemo_native", _on("sm_100")),
    "projections-on-ampere": ("attention", TE, BF16, "nemo_native", _on("sm_80", ssm=UNBUILT)),
    "experts": ("experts", TE, BF16, "nemo_native", H200),
    "experts-fp32": ("experts", TE, replace(BF16, dtype="fp32"), "nemo_native", H200),
    "scan": ("scan", SSM, BF16, "nemo_native", _on("sm_90", te=EMPTY)),
    "scan-on-ampere": ("scan", SSM, replace(BF16, dtype="fp32"), "nemo_native", _on("sm_80", te=_NONE)),
    "grouped-on-a-host": ("experts", "torch-grouped", BF16, "nemo_native", Facts()),
    "grouped": ("experts", "torch-grouped", BF16, "author_dp", H200),
    "own-code-anywhere": ("scan", "native", BF16, "author_dp", Facts()),
    "own-code-on-h200": ("attention", "native", FP8, "author_dp", H200),
}


@contract("KRN-01b", asks="seams", cases=OPEN, source="hub")
def what_can_run_runs_and_has_no_reason(
    stack: Seams, site: Site, kernel: Kernel, recipe: Recipe, mode: Mode, facts: Facts
) -> None:
    """A kernel that can run does run, preferred or required. A reason is given only for a fallback."""
    for required in (False, True):
        seam = _seam(stack, site, Wish(kernel=kernel, required=required), recipe, mode, facts)
        assert seam.actual == kernel, f"{site} runs as {seam.actual} ({seam.reason}), expected {kernel}"
        assert seam.reason is None, f"{site} runs as requested, but gives a reason: {seam.reason}"


REQUIRED = {name: CLOSED[name] for name in (
    "projections-no-package", "projections-broken", "mlp-neither", "experts-on-v100", "device-nobody-knows",
    "mxfp8-on-h200", "scan-no-package", "scan-broken", "recurrence-no-package", "grouped-inner-width",
)}  # fmt: skip


@contract("KRN-01c", asks="seams", cases=REQUIRED, source="hub")
def what_is_required_and_cannot_run_is_refused(
    stack: Seams, site: Site, kernel: Kernel, recipe: Recipe, mode: Mode, facts: Facts, named: tuple[str, ...]
) -> None:
    """A required kernel that cannot run is refused, with the site, the kernel, everything missing, and the remedy."""
    refused = refusal_of(stack.seams, recipe, mode, {site: Wish(kernel=kernel, required=True)}, facts)
    text = str(refused)
    for word in (site, kernel, *named):
        assert word in text, f"the refusal of {kernel} for {site} does not name {word!r}: {text}"
    assert all(each.remedy for each in refused.refusals), f"the refusal has no remedy: {text}"


STRANGE: dict[str, tuple[Site, Kernel]] = {
    "matrices-for-a-scan": ("scan", TE),
    "scan-for-experts": ("experts", SSM),
    "grouped-for-one": ("mlp", "torch-grouped"),
}


@contract("KRN-01d", asks="seams", cases=STRANGE, source="hub")
def a_kernel_of_another_site_is_refused(stack: Seams, site: Site, kernel: Kernel) -> None:
    """A stack refuses a request for a kernel of another site, and names the kernel and the site."""
    refused = refusal_of(stack.seams, BF16, "nemo_native", {site: Wish(kernel=kernel)}, H200)
    for word in (kernel, site):
        assert word in str(refused), f"the refusal of {kernel} for {site} does not name {word!r}: {refused}"


TWO: dict[str, tuple[Site, Kernel, Package]] = {"projections": ("attention", TE, EMPTY), "scan": ("scan", SSM, UNBUILT)}


@contract("KRN-01e", asks="seams", cases=TWO, source="hub")
def broken_is_not_absent(stack: Seams, site: Site, kernel: Kernel, package: Package) -> None:
    """A package that is installed but fails to import is reported so, with the text of the import error.

    An operator who reads "not installed" installs it again, and a gate that skips without the package would skip what
    is broken.
    """
    broken = _seam(stack, site, Wish(kernel=kernel), BF16, "nemo_native", replace(H200, packages={kernel: package}))
    absent = _seam(stack, site, Wish(kernel=kernel), BF16, "nemo_native", replace(H200, packages={}))
    assert package.words in (broken.reason or ""), f"{kernel} is broken, but the reason is {broken.reason!r}"
    assert broken.reason != absent.reason, f"{kernel} broken and {kernel} absent have one reason: {absent.reason!r}"
    for state, seam, other in (("broken", broken, "not installed"), ("absent", absent, "broken")):
        assert other not in (seam.reason or ""), f"{kernel} is {state}, but the reason is {seam.reason!r}"


ROWS: dict[str, tuple[Recipe, tuple[Site, ...]]] = {
    "all-letters": (BF16, ("attention", "mlp", "experts", "scan", "recurrence")),
    "dense": (replace(BF16, moe=None), ("attention", "mlp", "scan", "recurrence")),
    "no-shared-expert": (
        replace(BF16, pattern="AEME", moe=Moe(experts=12, top_k=3, expert_hidden=32, shared_hidden=0)),
        ("attention", "experts", "scan"),
    ),
    "recurrence-not-reached": (replace(BF16, depth=6), ("attention", "mlp", "experts", "scan")),
}


@contract("KRN-01f", asks="seams", cases=ROWS, source="hub")
def every_site_has_its_row(stack: Seams, recipe: Recipe, sites: tuple[Site, ...]) -> None:
    """Every kernel site of the recipe has exactly one row, and no other site has one. A fallback at one site does not
    affect another site.
    """
    wishes: Mapping[Site, Wish] = {"attention": Wish(kernel=TE), "scan": Wish(kernel=SSM)}
    rows = stack.seams(recipe, "nemo_native", wishes, _on("sm_90", ssm=UNBUILT))
    assert sorted(each.site for each in rows) == sorted(sites), (
        f"rows are {[each.site for each in rows]}, expected {sites}"
    )
    for row in rows:
        wished = wishes.get(row.site)
        fell = row.actual != row.requested
        assert wished is None or row.requested == wished.kernel, f"{row.site} records {row.requested} as requested"
        assert fell == (row.reason is not None), (
            f"{row.site}: {row.requested} requested, {row.actual} runs, {row.reason}"
        )
        assert fell == (row.site == "scan"), f"mamba-ssm is broken, and {row.site} runs as {row.actual}: {row.reason}"


@contract("KRN-01h", asks="kernel_facts", cases={"here": ()}, source="hub")
def facts_are_those_of_the_machine(stack: Seams) -> None:
    """The machine facts name the device that torch sees, and every package that a site may use, each in one of three
    states.
    """
    facts, name = stack.kernel_facts(), accelerator.name()
    assert (facts.device == "cuda") == (name is not None), f"the facts say {facts.device}, but the device is {name}"
    assert (facts.capability is None) == (name is None), f"the facts say {facts.capability}, but the device is {name}"
    for package in (TE, SSM):
        assert package in facts.packages, f"the facts do not mention {package}"
        found = facts.packages[package]
        assert (found.state == "broken") == bool(found.words), f"{package} is {found.state}, words are {found.words!r}"
