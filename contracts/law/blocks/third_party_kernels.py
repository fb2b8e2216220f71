"""Third-party kernels in place of a block's own: the same definition and the same error policy, on a device."""

from dataclasses import replace
from typing import Protocol

from contracts.contract import contract
from contracts.law._support.device_calls import BlockCase, call_of, cases_on
from contracts.law.blocks.bfloat16 import held_to_its_definition
from contracts.spec import Blocks, Kernel, Package, Seams, Site, Unreachable, Wish


class Stack(Blocks, Seams, Protocol):
    """The questions that these contracts ask."""


INSTALL = {
    "mamba-ssm": "MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE pip install --no-deps --no-build-isolation "
    "mamba-ssm einops (docs/gpu.md)",
    "transformer-engine": "pip install --no-build-isolation 'transformer-engine[pytorch]' (docs/gpu.md)",
}
_M = cases_on("cuda", "mamba2")
SCANS: dict[str, tuple[BlockCase, Site]] = {"scan-of-mamba2": (_M["mamba2"], "scan")}
_TE = cases_on("cuda", "attention", "mlp", "experts", "experts-swiglu")
MODULES: dict[str, tuple[BlockCase, Site]] = {
    "attention": (_TE["attention"], "attention"),
    "mlp": (_TE["mlp"], "mlp"),
    "experts": (_TE["experts"], "experts"),
    "experts-swiglu": (_TE["experts-swiglu"], "experts"),
}


@contract("BLK-08a", asks=("block_weights", "run_block", "kernel_facts"), cases=SCANS, source="hub; naming", tier="gpu")
def mamba_ssm_computes_what_the_block_is_defined_as(stack: Stack, asked: BlockCase, site: Site) -> None:
    """With mamba-ssm's scan kernel a Mamba-2 block has the output and every gradient of its definition within bfloat16
    error, and the stack reports that mamba-ssm ran.

    Two builds of mamba-ssm with the same version string computed different functions. If mamba-ssm is not installed,
    the contract is not run. If it is installed and cannot be imported, the contract is violated.
    """
    _held(stack, asked, site, "mamba-ssm")


@contract(
    "BLK-08b", asks=("block_weights", "run_block", "kernel_facts"), cases=MODULES, source="hub; naming", tier="gpu"
)
def transformer_engine_computes_what_the_block_is_defined_as(stack: Stack, asked: BlockCase, site: Site) -> None:
    """With Transformer Engine's modules a block has the output and every gradient of its definition within bfloat16
    error, and the stack reports that Transformer Engine ran.

    The metapackage by itself raises an error on import instead of being absent. A bridge that falls back silently is
    measured as a kernel that did not run.
    """
    _held(stack, asked, site, "transformer-engine")


def _held(stack: Stack, asked: BlockCase, site: Site, kernel: Kernel) -> None:
    package = stack.kernel_facts().packages.get(kernel, Package(state="absent"))
    assert package.state != "broken", f"{kernel} is installed and cannot be imported: {package.words}"
    if package.state == "absent":
        raise Unreachable(f"{kernel} is not installed: {INSTALL[kernel]}")
    call = replace(call_of(stack, asked), kernels={site: Wish(kernel=kernel, required=True)})
    run = stack.run_block(call)
    ran = run.kernels.get(site)
    assert ran == kernel, f"{ran} ran at {site}, and {kernel} was required"
    held_to_its_definition(call, run, asked)
