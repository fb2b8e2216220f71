"""The kernels that ran at the sites of a block, compared with those that its rows state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contracts.checks._support.executed_kernels import Offers, call_of
from contracts.checks._support.fp8_calls import BF16, FP8
from contracts.checks._support.recipes import A_LAYER, E_LAYER, M_LAYER, R_LAYER
from contracts.checks.kernels.kernel_selection import NARROW, SSM, TE
from contracts.contract import contract
from contracts.spec.kernel_selection import Site, Wish
from contracts.spec.recipe import Mode, Recipe

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
