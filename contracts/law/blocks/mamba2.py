"""M as Mamba-2: its recurrence, limits of its decay, its time step, its groups.

Cases have 2 to 3 rows, 4 or 6 heads in 2 or 3 groups, and lengths that are no multiple of the chunk.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support import scan_calls
from contracts.law._support.late import torch
from contracts.law._support.recipes import SMALL
from contracts.law._support.scan_calls import PACKED, WHOLE, ScanCase, drawn_inputs, last_state, run
from contracts.spec import FLOAT64, Blocks, Mamba

THREE_GROUPS = replace(SMALL, name="three-groups", mamba=Mamba(heads=6, head_dim=4, state=8, groups=3))

DEFINED = {
    "plain": ScanCase(lengths=WHOLE, chunk=16),
    "packed-with-state": ScanCase(lengths=PACKED, state=True, chunk=8),
    "three-groups-of-two": ScanCase(recipe=THREE_GROUPS, lengths=((11,), (11,), (11,)), chunk=4),
    "float32": ScanCase(lengths=((27, 21), (48,)), dtype="float32", chunk=16),
    "shorter-than-the-convolution": ScanCase(lengths=((2,), (1, 1)), state=True),
    "one-token": ScanCase(lengths=((1,), (1,)), state=True),
    "a-large-epsilon": ScanCase(recipe=replace(SMALL, norm_eps=0.3), lengths=((9,), (9,))),
    "a-large-epsilon-of-the-first-norm": ScanCase(  # what the second one sees is so large that its own does not count
        recipe=replace(SMALL, norm_eps=0.3),
        lengths=((9,), (9,)),
        loud=("mixer.wx.weight", "mixer.conv_x.weight", "mixer.D"),
    ),
    "saturated": ScanCase(
        lengths=((9,), (4, 5)), loud=("mixer.wz.weight", *(f"mixer.conv_{name}.weight" for name in "xbc"))
    ),
}


@contract("BLK-04a", asks=("block_weights", "run_block"), cases=DEFINED, source="arXiv 2405.21060; mamba-ssm")
def mamba2_is_its_recurrence(stack: Blocks, case: ScanCase) -> None:
    """Mamba-2 has the output, last state and every gradient of its recurrence, including that of the initial state.

    The recurrence is s_t = exp(dt_t A) s_{t-1} + dt_t x_t B_tᵀ and y_t = s_t C_t + D x_t. A causal convolution of four
    taps with bias and silu precedes it, and the norm of y · silu(z) follows. Written out as x · exp(x) / (1 + exp(x)),
    silu is NaN from 710 on (in float32 from 89 on), where it should be x.
    """
    scan_calls.equals_its_definition(stack, case, oracles.mamba.mamba2)


FORGETS = {  # A_log: decay so fast that nothing remains, and so slow that everything does
    "memoryless": (20.0, ((12,), (12,))),
    "everything-kept": (-40.0, ((12,), (12,))),
}


@contract("BLK-04e", asks=("block_weights", "run_block"), cases=FORGETS, source="arXiv 2405.21060 §2: limits of A")
def the_decay_has_its_limits(stack: Blocks, a_log: float, lengths: scan_calls.Lengths) -> None:
    """As A goes to minus infinity, each output of Mamba-2 depends only on its own token; at A = 0, reversing the
    sequence does not change the last state.

    The convolution passes each token through unmixed here, so only the scan has memory.
    """
    taps = {f"mixer.conv_{name}.weight": [0.0, 0.0, 0.0, 1.0] for name in "xbc"}
    case = ScanCase(lengths=lengths, chunk=5, weights={**taps, "mixer.A_log": a_log, "mixer.dt_bias": 0.5})
    inputs = drawn_inputs(stack, case)
    one = run(stack, case, inputs, backward=False)
    order = torch.arange(case.tokens - 1, -1, -1)
    two = run(stack, case, replace(inputs, x=inputs.x[:, order]), backward=False)
    if a_log > 0:
        words = numerics.difference("y of the reversed sequence", numerics.tensor(two.y)[:, order], one.y, FLOAT64)
        assert not words, f"{words}: each token should see only itself"
    else:
        back, forth = last_state(two)["ssm"], last_state(one)["ssm"]
        words = numerics.difference("the state of the reversed sequence", back, forth, FLOAT64)
        assert not words, f"{words}: nothing should be forgotten"


STEPS = {  # dt_bias of four heads; wdt is 0
    "long-and-short": [-50.0, 0.0, 21.0, 100.0],
    "near-the-switch": [19.0, 20.0, 20.5, -1.0],
    "below-the-switch": [6.5, 8.0, 9.5, 11.0],
}


@contract("BLK-04h", asks=("block_weights", "run_block"), cases=STEPS, source="mamba-ssm: softplus over dt > 20")
def the_step_is_softplus_everywhere(stack: Blocks, biases: list[float]) -> None:
    """The time step of Mamba-2 is the softplus of its input, in float32, forward and backward, from -50 to 100.

    A literal log(1 + exp(x)) is infinite from 89 on, and its gradient is NaN. One that is x itself before x is 20 is
    off by digits that float32 has.
    """
    weights = {"mixer.dt_bias": biases, "mixer.wdt.weight": 0.0, "mixer.A_log": -3.0}
    case = ScanCase(lengths=((7,), (4, 3)), dtype="float32", weights=weights)
    scan_calls.equals_its_definition(stack, case, oracles.mamba.mamba2)


READ = {  # head, and the group whose B, C and norm it shares
    "first-of-the-second-group": (2, 1),
    "last-of-the-first-group": (1, 0),
    "last": (5, 2),
}


@contract("BLK-04i", asks=("block_weights", "run_block"), cases=READ, source="arXiv 2405.21060 §7.2; mamba-ssm ngroups")
def neighbouring_heads_share_a_group(stack: Blocks, head: int, group: int) -> None:
    """In Mamba-2 head i of h reads group i // (h / g), and its norm covers only the heads of that group.

    With all of wo zero except one head's part, the gradients of wb and wc are zero outside that group's rows, and those
    of wx and wz outside its heads' rows. The cases have 6 heads in 3 groups; with i mod g, head 2 would read group 2.
    """
    case = ScanCase(recipe=THREE_GROUPS, lengths=((11,), (6, 5)), chunk=4)
    inputs, width, size, together = drawn_inputs(stack, case), 4, 8, 2
    wo = torch.zeros_like(inputs.weights["mixer.wo.weight"])
    read = slice(head * width, (head + 1) * width)
    wo[:, read] = inputs.weights["mixer.wo.weight"][:, read]
    got = run(stack, case, replace(inputs, weights=inputs.weights | {"mixer.wo.weight": wo}))
    for name, rows in (("wb", size), ("wc", size), ("wx", width * together), ("wz", width * together)):
        scan_calls.assert_reaches(got, f"{name}.weight", rows, head, [group])
