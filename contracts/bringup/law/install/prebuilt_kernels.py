"""Pre-built kernels beside the installed torch: each computes one small case on the device."""

from dataclasses import replace

from contracts import instruments
from contracts.contract import contract
from contracts.law._support.device_calls import BlockCase, call_of, cases_on
from contracts.law.blocks.third_party_kernels import INSTALL, Stack
from contracts.spec import BFLOAT16, Kernel, Package, Site, Unreachable, Wish

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
    words = instruments.numerics.difference("y", run.y, own.y, BFLOAT16)
    assert not words, f"{kernel} {package.version} beside the stack's own kernel: {words}"
