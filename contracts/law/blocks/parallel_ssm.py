"""A with a state-space branch beside attention, as in Falcon-H1 and Hymba, against its definition.

What holds for M holds beside attention too: BLK-01c, BLK-02c and BLK-04d have cases of it, and so have the contracts of
whole models and of ranks.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import oracles
from contracts.law._support import scan_calls
from contracts.law._support.recipes import PARALLEL, SMALL_MLA
from contracts.law._support.scan_calls import ScanCase
from contracts.spec import Blocks

_SHORT = ((11,), (11,))
_PACKED = ((3, 5, 1), (7, 2))
_PLAIN = ScanCase(block="parallel", recipe=PARALLEL, lengths=_SHORT, chunk=4)
DEFINED = {
    "plain": _PLAIN,
    "without-qk-norm": replace(_PLAIN, recipe=replace(PARALLEL, qk_norm=False)),
    "packed-with-state": replace(_PLAIN, lengths=_PACKED, state=True),
    "one-token": replace(_PLAIN, lengths=((1,), (1,)), state=True),
    "custom-mixer": replace(_PLAIN, block="parallel-mamba3", lengths=_PACKED, state=True),
    "latent": replace(_PLAIN, recipe=replace(SMALL_MLA, parallel_ssm=PARALLEL.parallel_ssm), lengths=_PACKED),
    "a-large-epsilon": replace(_PLAIN, recipe=replace(PARALLEL, qk_norm=False, norm_eps=0.3)),
    "float32": replace(_PLAIN, recipe=replace(PARALLEL, qk_norm=False), dtype="float32"),
}


@contract("BLK-12a", asks=("block_weights", "run_block"), cases=DEFINED, source="arXiv 2507.22448, 2411.13676")
def attention_and_a_scan_side_by_side_are_added_up(stack: Blocks, case: ScanCase) -> None:
    """Attention beside a state-space branch has the output, last state and every gradient of its definition: both read
    the block's normed input, and their outputs are added up, each times its own scale.

    A branch that reads the other's output or the stream before the norm, a scale that is left out or stands at both,
    and a branch that is added twice all train, and a little worse.
    """
    scan_calls.equals_its_definition(stack, case, oracles.model.side_by_side)
