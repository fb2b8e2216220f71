"""The plan that installs a stack: what pip would do at each step, whether torch survives it, and whether each pre-built
kernel computes one small case on the device."""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support.answers import assert_no_findings, finding_on
from contracts.law._support.device_calls import BlockCase, call_of, cases_on
from contracts.law.blocks.on_devices import INSTALL, Stack
from contracts.spec import BFLOAT16, Kernel, Package, Site, Unreachable, Wish
from contracts.spec.installation import Installation, InstallPlan, InstallStep

NIGHTLY = "2.12.0.dev20260405+cu132"
STABLE = "2.11.0+cu130"  # what the index resolves for torch

VENV = InstallStep(name="venv", kind="environment", words=("python3.13", "-m", "venv", "/mnt/data/venv"),
                   would_install={})  # fmt: skip
UPDATE = InstallStep(
    name="installers", kind="packages", words=("pip", "install", "-U", "pip", "setuptools", "wheel"),
    would_install={"pip": "26.0", "setuptools": "80.9.0", "wheel": "0.46.1"},
)  # fmt: skip
TORCH = InstallStep(
    name="torch", kind="torch", words=("pip", "install", f"torch=={NIGHTLY}", "--index-url", "https://nightly/cu132"),
    would_install={"torch": NIGHTLY, "triton": "3.7.0+git9c288bc5", "nvidia-nccl-cu13": "2.29.7",
                   "nvidia-cudnn-cu13": "9.20.0.48", "sympy": "1.14.0"},
)  # fmt: skip
WHEELS = InstallStep(  # they declare nothing, so they need no --no-deps
    name="wheels", kind="packages",
    words=("pip", "install", "flash_attn.whl", "causal_conv1d.whl", "mamba_ssm.whl", "qoptim_cuda.whl"),
    would_install={"flash_attn": "2.8.3", "causal_conv1d": "1.6.1", "mamba_ssm": "2.3.1", "qoptim_cuda": "0.0.0"},
    requires={"flash_attn": (), "causal_conv1d": (), "mamba_ssm": (), "qoptim_cuda": ()},
)  # fmt: skip
FA4 = InstallStep(  # declares torch; pip's report says that the installed nightly satisfies it
    name="flash-attn-4", kind="packages", words=("pip", "install", "--pre", "flash-attn-4==4.0.0b7"),
    would_install={"flash-attn-4": "4.0.0b7", "nvidia-cutlass-dsl": "4.4.2", "quack-kernels": "0.3.9"},
    requires={"flash-attn-4": ("torch", "nvidia-cutlass-dsl>=4.4", "quack-kernels")},
)  # fmt: skip
FLA = InstallStep(
    name="fla", kind="packages", words=("pip", "install", "--no-deps", "flash-linear-attention", "fla-core==0.4.2"),
    would_install={"flash-linear-attention": "0.5.0", "fla-core": "0.4.2"},
    requires={"fla-core": ("torch>=2.7", "einops"), "flash-linear-attention": ("fla-core", "transformers")},
)  # fmt: skip
REST = InstallStep(
    name="rest", kind="packages", words=("pip", "install", "torchao==0.17.0", "dualpipe==1.0.0", "numpy"),
    would_install={"torchao": "0.17.0", "dualpipe": "1.0.0", "numpy": "2.4.1"},
    requires={"torchao": (), "dualpipe": (), "numpy": ()},
)  # fmt: skip
VERIFY = InstallStep(
    name="verify", kind="verify", words=("python", "-c", "import torch; assert 'cu132' in torch.__version__"),
    would_install={},
)  # fmt: skip
GUARDED = frozenset({"flash-attn", "causal-conv1d", "mamba-ssm", "flash-linear-attention", "fla-core"})


def _plan(*steps: InstallStep, environment: str = "/mnt/data/venv") -> InstallPlan:
    return InstallPlan(
        torch=NIGHTLY, data_volume="/mnt/data", environment=environment, steps=steps, guarded=GUARDED
    )  # fmt: skip


SEEDS = _plan(VENV, UPDATE, TORCH, WHEELS, FA4, FLA, REST, VERIFY)


def _changing(step: InstallStep, to: InstallStep) -> InstallPlan:
    return replace(SEEDS, steps=tuple(to if each is step else each for each in SEEDS.steps))


MAMBA = replace(
    WHEELS, words=("pip", "install", "mamba-ssm", "causal-conv1d"), requires={"mamba-ssm": ("torch==2.11.*",)},
    would_install={"mamba-ssm": "2.3.1", "causal-conv1d": "1.6.1", "torch": STABLE, "triton": "3.6.0"},
)  # fmt: skip
FLA_MOVES = replace(
    FLA, words=("pip", "install", "flash-linear-attention"),
    would_install={"flash-linear-attention": "0.5.0", "fla-core": "0.4.2", "Torch": STABLE},
)  # fmt: skip
MOVES: dict[str, tuple[InstallPlan, str, tuple[str, ...]]] = {  # plan, step, words to find; no step: a good plan
    "seeds-order": (SEEDS, "", ()),
    "torch-again-as-it-is": (
        _changing(REST, replace(REST, would_install={"torchao": "0.17.0", "torch": NIGHTLY})), "", (),
    ),
    "mamba-from-the-index": (_changing(WHEELS, MAMBA), "wheels", ("torch", NIGHTLY, STABLE)),
    "fla-with-dependencies": (_changing(FLA, FLA_MOVES), "fla", ("torch", NIGHTLY, STABLE)),
    "the-rest-moves-it": (
        _changing(REST, replace(REST, would_install={"some-trainer": "4.0", "torch": "2.13.0+cu132"})),
        "rest", ("torch", NIGHTLY, "2.13.0+cu132"),
    ),
    "another-tag": (
        _changing(REST, replace(REST, would_install={"torch": "2.12.0.dev20260405+cu130"})), "rest", ("cu132", "cu130"),
    ),
    "nccl-under-torch": (
        _changing(FA4, replace(FA4, would_install={"flash-attn-4": "4.0.0b7", "nvidia-nccl-cu13": "2.28.9"})),
        "flash-attn-4", ("nvidia-nccl-cu13", "2.29.7", "2.28.9"),
    ),
    "stable-torch-from-the-start": (
        _changing(TORCH, replace(TORCH, would_install={"torch": STABLE})), "torch", (NIGHTLY, STABLE),
    ),
    "repaired-while-verifying": (
        _changing(VERIFY, replace(VERIFY, would_install={"torch": STABLE})), "verify", ("torch", NIGHTLY, STABLE),
    ),
    "pip-gave-no-report": (_changing(FA4, replace(FA4, would_install=None)), "flash-attn-4", ()),
}  # fmt: skip


@contract("INST-02", asks="check_plan", cases=MOVES, source="bringup: install order matters")
def a_plan_leaves_torch_where_it_is(stack: Installation, plan: InstallPlan, step: str, words: tuple[str, ...]) -> None:
    """A plan in which pip would change torch, or a package that came with torch, is refused with the step and both
    versions. A step without a pip report is refused too. A plan that leaves them unchanged is accepted.

    "The single most expensive lesson on H200 bring-up is that pip will silently downgrade torch if you let it":
    mamba-ssm, causal-conv1d and flash-linear-attention declare torch, and the next launch crashes in Inductor, or
    drifts after a thousand steps.
    """
    findings = stack.check_plan(plan)
    if step:
        finding_on(findings, step, *words)
    else:
        assert_no_findings(findings)


DEPENDING = replace(FLA, words=("pip", "install", "flash-linear-attention", "fla-core"))
TRAPS: dict[str, tuple[InstallPlan, str, tuple[str, ...]]] = {
    "fla-is-content-today": (_changing(FLA, DEPENDING), "fla", ("fla-core", "--no-deps")),
    "a-wheel-that-declares-torch": (
        _changing(WHEELS, replace(WHEELS, requires={"mamba_ssm": ('torch (>=2.0) ; python_version >= "3.9"',)})),
        "wheels", ("mamba", "--no-deps"),
    ),
    "wheels-that-declare-nothing": (SEEDS, "", ()),
    "torch-in-an-extra": (
        _changing(WHEELS, replace(WHEELS, requires={"flash_attn": ('torch; extra == "test"', "torchvision-extra")})),
        "", (),
    ),
}  # fmt: skip


@contract("INST-02a", asks="check_plan", cases=TRAPS, source="bringup: this is the trap")
def the_traps_come_without_dependencies(
    stack: Installation, plan: InstallPlan, step: str, words: tuple[str, ...]
) -> None:
    """A step that installs a guarded package without --no-deps is refused if the package declares a dependency on
    torch, even if the installed torch satisfies it.

    A plan is run again next week on the next host. "They have no dependency metadata; they cannot touch torch" is the
    reason for pre-built wheels.
    """
    a_plan_leaves_torch_where_it_is(stack, plan, step, words)


EARLY = replace(WHEELS, name="early", would_install={"flash_attn": "2.8.3"}, requires={})
ORDERS: dict[str, tuple[InstallPlan, tuple[str, ...]]] = {
    "wheels-before-torch": (_plan(VENV, UPDATE, WHEELS, TORCH, FA4, FLA, REST, VERIFY), ("torch", "flash")),
    "one-wheel-before-torch": (_plan(VENV, EARLY, TORCH, FA4, FLA, REST, VERIFY), ("torch", "flash")),
    "no-torch-step": (_plan(VENV, UPDATE, WHEELS, FA4, FLA, REST, VERIFY), ("torch", NIGHTLY)),
    "no-verify": (_plan(VENV, TORCH, WHEELS, FA4, FLA, REST), ("verify",)),
    "verify-before-the-rest": (_plan(VENV, TORCH, WHEELS, FA4, FLA, VERIFY, REST), ("verify",)),
    "verify-of-something-else": (
        _plan(VENV, TORCH, WHEELS, REST, replace(VERIFY, words=("python", "-c", "import torch"))), ("cu132",),
    ),
    "environment-in-the-home": (replace(SEEDS, environment="/root/venv"), ("/root/venv", "/mnt/data")),
    "environment-on-a-neighbour": (replace(SEEDS, environment="/mnt/database/venv"), ("/mnt/database", "/mnt/data")),
    "no-environment": (_plan(UPDATE, TORCH, WHEELS, FLA, REST, VERIFY), ("environment",)),
    "nothing": (_plan(), ("torch", NIGHTLY)),
}  # fmt: skip


@contract("INST-02b", asks="check_plan", cases=ORDERS, source="bringup: install order matters")
def torch_first_and_verified_last(stack: Installation, plan: InstallPlan, words: tuple[str, ...]) -> None:
    """The plan creates the environment on the data disk, installs torch before every other package, and verifies
    torch's build tag in its last step. Any other order is refused.

    torch sets the ABI. A verification followed by another installation verifies nothing.
    """
    findings = stack.check_plan(plan)
    assert findings, f"nothing was found, expected a finding that names {', '.join(words)}"
    told = "\n".join(map(str, findings)).lower()
    silent = [word for word in words if word.lower() not in told]
    assert not silent, f"{findings[0]}: expected a finding that names {', '.join(words)}"


_SMALL = cases_on("cuda", "mamba2", "mlp")
PREBUILT: dict[str, tuple[Kernel, BlockCase, Site]] = {
    "mamba-ssm": ("mamba-ssm", _SMALL["mamba2"], "scan"),
    "transformer-engine": ("transformer-engine", _SMALL["mlp"], "mlp"),
}


@contract(
    "INST-03b",
    asks=("block_weights", "run_block", "kernel_facts"),
    cases=PREBUILT,
    source="bringup; flash-attn #919, mamba #217: undefined symbol",
    tier="gpu",
)
def prebuilt_kernels_run_beside_the_installed_torch(stack: Stack, kernel: Kernel, asked: BlockCase, site: Site) -> None:
    """A pre-built package that is installed is imported, and its kernel computes one forward pass on the device, with
    the output of the stack's own kernel within bfloat16 error.

    A package that was built for another torch or another device is often found by its first launch: it raises, or it
    leaves zeros. A package that is not installed is not run.
    """
    package = stack.kernel_facts().packages.get(kernel, Package(state="absent"))
    if package.state == "absent":
        raise Unreachable(f"{kernel} is not installed: {INSTALL[kernel]}")
    assert package.state != "broken", f"{kernel} is installed and cannot be imported: {package.words}"
    call = replace(call_of(stack, asked), kernels={site: Wish(kernel=kernel, required=True)}, dy=None)
    run = stack.run_block(call)
    ran = run.kernels.get(site)
    assert ran == kernel, f"{ran} ran at {site}, and {kernel} was required"
    own = stack.run_block(replace(call, kernels={site: Wish(kernel="native")}))
    words = numerics.difference("y", run.y, own.y, BFLOAT16)
    assert not words, f"{kernel} {package.version} beside the stack's own kernel: {words}"
