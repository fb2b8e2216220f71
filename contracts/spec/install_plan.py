"""Problems of an install plan, and of the torch that is installed after it.

As soon as one package requires torch, pip replaces a torch nightly with any stable build that it can resolve. The rules
here do not guess what pip would do: each step carries pip's own report.
"""

import re
from collections.abc import Iterable, Iterator

from contracts.spec.installation import Extension, InstallPlan, TorchBuild
from contracts.spec.machine import Finding
from contracts.spec.stack_table import normal, release, same_version

INSTALLERS = frozenset({"pip", "setuptools", "wheel"})
"""Packages that may be installed before torch."""


def plan_findings(plan: InstallPlan) -> tuple[Finding, ...]:
    """Every reason why a plan may end with another torch than it states, or why its reports prove nothing."""
    return (*_order(plan), *_moves(plan), *_guards(plan))


def _finding(step: str, value: str, problem: str, remedy: str, promise: str = "INST-02") -> Finding:
    return Finding(promise=promise, field=step, value=value, problem=problem, remedy=remedy)


def _order(plan: InstallPlan) -> Iterator[Finding]:
    kinds = [step.kind for step in plan.steps]
    if kinds.count("torch") != 1:
        yield _finding("plan", f"{kinds.count('torch')} torch steps", f"must have one step that installs torch "
                       f"{plan.torch}", "give torch a step of its own, before all other packages")  # fmt: skip
    if not kinds or kinds[0] != "environment":
        yield _finding(plan.steps[0].name if plan.steps else "plan", kinds[0] if kinds else "no step",
                       "the first step must make the environment", "make it on the data disk")  # fmt: skip
    volume = plan.data_volume.rstrip("/") + "/"
    if not plan.environment.startswith(volume) or ".." in plan.environment.split("/") or volume == "/":
        yield _finding("environment", plan.environment, f"does not lie on the data volume {plan.data_volume}",
                       "a torch nightly and pip's caches exhaust a root volume")  # fmt: skip
    for step in plan.steps[: kinds.index("torch") if "torch" in kinds else None]:
        early = sorted({normal(name) for name in step.would_install or ()} - INSTALLERS)
        if early:
            yield _finding(step.name, ", ".join(early), "is installed before torch", "torch first: it sets the ABI")
    for step in plan.steps:
        if step.kind == "torch" and step.would_install is not None:
            brings = {normal(name): version for name, version in step.would_install.items()}.get("torch")
            if brings is None or not same_version(brings, plan.torch):
                yield _finding(step.name, str(brings), f"installs torch {brings}, the plan says {plan.torch}",
                               "name the exact version and its index")  # fmt: skip
    if not kinds or kinds[-1] != "verify":
        yield _finding(plan.steps[-1].name if plan.steps else "plan", kinds[-1] if kinds else "no step",
                       "the last step must verify torch", "assert the build tag after everything else")  # fmt: skip
    tag = plan.torch.partition("+")[2] or plan.torch
    for step in plan.steps:
        if step.kind == "verify" and not any(tag in word for word in step.words):
            yield _finding(step.name, " ".join(step.words), f"does not look for {tag}", f"assert {tag!r} in it")


def _moves(plan: InstallPlan) -> Iterator[Finding]:
    stands: dict[str, str] = {}  # torch and what came with it
    for step in plan.steps:
        if step.would_install is None:
            unknown = f"nobody knows what it would install: {step.error or 'pip gave no report'}"
            yield _finding(step.name, " ".join(step.words), unknown, "ask pip with --dry-run --report")
            continue
        brings = {normal(name): version for name, version in step.would_install.items()}
        for name, version in brings.items():
            if name in stands and not same_version(stands[name], version):
                yield _finding(step.name, f"{name} {version}", f"would move {name} from {stands[name]} to {version}",
                               "install it with --no-deps, or from a wheel without dependencies")  # fmt: skip
            elif name == "torch" and not stands and step.kind != "torch":
                yield _finding(step.name, f"{name} {version}", f"brings torch {version} by itself",
                               f"install torch {plan.torch} first")  # fmt: skip
        if step.kind == "torch":
            stands = brings


def _guards(plan: InstallPlan) -> Iterator[Finding]:
    guarded = {normal(name) for name in plan.guarded}
    for step in plan.steps:
        caught = sorted(guarded & {normal(name) for name in step.would_install or ()})
        asks = sorted({normal(name) for name, wanted in step.requires.items() if any(map(_asks_torch, wanted))})
        if caught and asks and "--no-deps" not in step.words:
            yield _finding(step.name, ", ".join(caught), f"comes without --no-deps; {', '.join(asks)} requires torch",
                           "the next torch release moves it: add --no-deps")  # fmt: skip


def _asks_torch(requirement: str) -> bool:
    """Whether a `Requires-Dist` requires torch itself; `torchao` and `torch; extra == "dev"` do not."""
    match = re.match(r"\s*([A-Za-z0-9._-]+)(.*)", requirement)
    return match is not None and normal(match[1]) == "torch" and not re.search(r"\bextra\s*==", match[2])


def torch_findings(
    wanted: TorchBuild, found: TorchBuild | None, extensions: Iterable[Extension]
) -> tuple[Finding, ...]:
    """Every reason why the installed torch is not the wanted build, or an extension does not fit it."""
    if found is None:
        return (_stop("torch", "nothing", f"is not installed, expected {wanted.version}"),)
    faults = []
    if not same_version(found.version, wanted.version):
        faults.append(_stop("torch", found.version, f"is {found.version}, expected {wanted.version}"))
    if found.cuda != wanted.cuda:
        faults.append(_stop("torch", str(found.cuda), f"is built for CUDA {found.cuda}, expected {wanted.cuda}"))
    if found.python_tag != wanted.python_tag:
        faults.append(_stop("torch", found.python_tag, f"is for {found.python_tag}, expected {wanted.python_tag}"))
    for each in extensions:
        faults += [_stop(each.name, each.version, problem) for problem in _misfits(each, found)]
    return tuple(faults)


def _stop(field: str, value: str, problem: str) -> Finding:
    return _finding(field, value, problem, "stop: do not just try training", promise="INST-03")


def _misfits(each: Extension, torch: TorchBuild) -> Iterator[str]:
    python, _, rest = each.tag.partition("-")
    abi = rest.partition("-")[0]
    pure = abi == "none" and rest.endswith("-any")
    if abi not in ("none", "abi3") and torch.python_tag not in python.split("."):
        yield f"is for {python}, the interpreter is {torch.python_tag}"
    if each.loads is False:
        yield f"does not load beside torch {torch.version}: {each.error or 'no reason given'}"
    if pure:
        return
    if None not in (each.cxx11_abi, torch.cxx11_abi) and each.cxx11_abi != torch.cxx11_abi:
        yield f"has cxx11 ABI {each.cxx11_abi}, torch has {torch.cxx11_abi}"
    if each.built_for is None:
        if each.loads is None:
            yield "nobody recorded which torch it was built for, and nobody tried to load it"
    elif not _built_for(each.built_for, torch.version):
        yield f"was built for torch {each.built_for}, installed is {torch.version}"


def _built_for(recorded: str, version: str) -> bool:
    """Whether a record names the installed torch. `2.8` names every 2.8.x release but no nightly: nightlies have no
    common ABI."""
    if same_version(recorded, version):
        return True
    numbers, full = release(recorded), release(version)
    short = re.fullmatch(r"\d+\.\d+(\.\d+)?", recorded) is not None and "dev" not in version
    return short and numbers is not None and full is not None and full[: len(numbers)] == numbers
