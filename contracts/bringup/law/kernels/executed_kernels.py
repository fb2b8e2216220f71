"""The kernels that ran at the sites of a block, compared with those that its rows state."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from contracts.bringup.law.kernels.kernel_selection import NARROW, SSM, TE
from contracts.contract import contract
from contracts.law._support.executed_kernels import Offers, call_of, launches_of
from contracts.law._support.fp8_calls import BF16, FP8
from contracts.law._support.recipes import A_LAYER, E_LAYER, M_LAYER, R_LAYER
from contracts.spec import Kernel, Mode, Recipe, Site, Wish

RAN: dict[str, tuple[Recipe, int, Mode]] = {
    "attention": (BF16, A_LAYER, "nemo_native"),
    "experts": (BF16, E_LAYER, "nemo_native"),
    "experts-fp32": (replace(BF16, dtype="fp32"), E_LAYER, "nemo_native"),
    "experts-narrow": (NARROW, E_LAYER, "author_dp"),
    "experts-fp8": (FP8, E_LAYER, "nemo_native"),
    "scan": (BF16, M_LAYER, "nemo_native"),
    "scan-author": (BF16, M_LAYER, "author_dp"),
    "recurrence": (BF16, R_LAYER, "nemo_native"),
}


OF_LETTER: Mapping[int, frozenset[Site]] = {
    A_LAYER: frozenset({"attention"}), E_LAYER: frozenset({"experts", "mlp"}),
    M_LAYER: frozenset({"scan"}), R_LAYER: frozenset({"recurrence"}),
}  # fmt: skip


@contract("KRN-01g", asks=("seams", "kernel_facts", "block_weights", "run_block"), cases=RAN, source="hub")
def what_runs_is_what_is_said(stack: Offers, recipe: Recipe, layer: int, mode: Mode) -> None:
    """A block runs at each of its sites the kernel that its row states: with no preference, with packages, and with its
    own kernels.
    """
    facts = stack.kernel_facts()
    every: Mapping[Site, Wish] = {
        "attention": Wish(kernel=TE), "mlp": Wish(kernel=TE), "experts": Wish(kernel=TE), "scan": Wish(kernel=SSM),
        "recurrence": Wish(kernel=SSM),
    }  # fmt: skip
    own: Mapping[Site, Wish] = {site: Wish(kernel="native") for site in every}
    for wishes in ({}, every, own):
        said = {
            row.site: row.actual for row in stack.seams(recipe, mode, wishes, facts) if row.site in OF_LETTER[layer]
        }
        ran = stack.run_block(call_of(stack, recipe, layer, mode, wishes, facts)).kernels
        assert ran.keys() == said.keys(), f"sites that ran are {sorted(ran)}, expected {sorted(said)}"
        for site, kernel in said.items():
            assert ran[site] == kernel, f"{site} ran as {ran[site]}, but its row says {kernel}"


LAUNCHED: Mapping[Kernel, str] = {"torch-grouped": "_grouped_mm", "mamba-ssm": "_chunk_scan_fwd"}
"""A part of the name of what these kernels launch in a forward pass; native code launches none of them."""

SEEN = {name: RAN[name] for name in ("attention", "experts", "experts-fp32", "scan")}
ON_A_HOST = {name: (*case, "cpu") for name, case in SEEN.items()}
ON_A_GPU = {name: (*case, "cuda") for name, case in SEEN.items()}
_ASKS = ("kernel_facts", "block_weights", "run_block")


@contract("KRN-03c", asks=_ASKS, cases=ON_A_GPU, source="hub", tier="gpu")
@contract("KRN-03d", asks=_ASKS, cases=ON_A_HOST, source="hub")
def a_profiler_sees_the_kernels_that_are_named(
    stack: Offers, recipe: Recipe, layer: int, mode: Mode, device: Literal["cpu", "cuda"]
) -> None:
    """A block launches exactly the kernels that it reports: a profiler sees them, on the device if there is one.

    The code that runs a kernel notes its name. A fallback below that place, inside a library, keeps the fast kernel's
    name in the receipt.
    """
    facts = replace(stack.kernel_facts(), device=device)
    call = call_of(stack, recipe, layer, mode, {}, facts)
    seen: list[frozenset[str]] = []
    ran = launches_of(lambda: stack.run_block(call), device, seen.append).kernels
    for kernel, mark in LAUNCHED.items():
        found = sorted(name for name in seen[0] if mark in name)
        said = sorted(site for site, each in ran.items() if each == kernel)
        assert bool(found) == bool(said), (
            f"{kernel} is named at {', '.join(said) or 'no site'}, and of its launches on {device} a profiler saw "
            f"{', '.join(found) or 'none'}"
        )
