"""Blocks on a device: bfloat16 against float64 on the same numbers (half_precision), causality in both
dtypes, the state that a scan hands on, and third-party kernels in place of a block's own.

For causality, only one token gets an upstream gradient. It depends on the tokens where the gradient with respect to x
is not zero. The zeros are exact on every device, so one element reveals a kernel that masks with small numbers or reads
a tile too far.
"""

from dataclasses import replace
from typing import Protocol

from contracts.contract import contract
from contracts.instruments import half_precision, numerics, oracles
from contracts.law._support.device_calls import BlockCase, call_of, cases_on
from contracts.law._support.late import Tensor, torch
from contracts.spec import (
    FLOAT32_SCAN,
    HALF_GRADIENT,
    HALF_OUTPUT,
    HALF_SCAN_GRADIENT,
    BlockCall,
    BlockRun,
    Blocks,
    Kernel,
    Package,
    Seams,
    Site,
    Unreachable,
    Wish,
)

HOST, GPU = cases_on("cpu"), cases_on("cuda")

# By block letter: gradients that are sums over all tokens whose terms cancel to a tenth. In bfloat16 they are too
# inaccurate to judge; BLK-05a judges them in float32.
CANCELLING = {"R": ("mixer.A_log", "mixer.D", "mixer.dt_bias")}


@contract("BLK-08c", asks=("block_weights", "run_block"), cases=HOST, source="notes of the kernels: tolerances")
@contract("BLK-08g", asks=("block_weights", "run_block"), cases=GPU, source="hub; naming", tier="gpu")
def a_block_in_bfloat16_is_as_near_as_its_storage_allows(stack: Blocks, asked: BlockCase) -> None:
    """In bfloat16 the error of a block's output is at most twice that of a control: the definition, with only its
    matrix products stored in bfloat16. The error of a gradient is at most three times the control's, four times for a
    scan.

    A fixed tolerance that is wide enough for the worst tensor hides faults in the others, and a percentile hides a lost
    token. Here each tensor's bound follows from its own sums, and the worst token is judged by itself.
    """
    call = call_of(stack, asked)
    held_to_its_definition(call, stack.run_block(call), asked)


def held_to_its_definition(call: BlockCall, run: BlockRun, asked: BlockCase) -> None:
    """Compare a block's output and gradients with the oracle, under the policy.

    Raises:
        AssertionError: with the tensor that is too far off.
    """
    assert run.y.dtype == asked.dtype, f"activations are {asked.dtype}, and y is {run.y.dtype}"
    want, control = defined(call), defined(call, torch.bfloat16)
    policy = half_precision
    words = policy.excess_error("y", run.y, want.pop("y"), control.pop("y"), HALF_OUTPUT)
    assert not words, words
    gradients = dict(run.gradients)
    for name in CANCELLING.get(asked.family, ()):
        assert numerics.tensor(gradients.pop(name)).isfinite().all(), f"gradient of {name} is not finite"
        del want[name]
    rule = HALF_SCAN_GRADIENT if asked.family in "MR" else HALF_GRADIENT
    words = policy.named_excess_error("gradient of", gradients, want, control, rule)
    assert not words, words


def defined(call: BlockCall, stored: "torch.dtype | None" = None) -> dict[str, Tensor]:
    """`y` and the gradients of <y, dy> by name, from the oracle in float64, its products kept in dtype `stored`."""
    import contextlib

    weights = numerics.tensors(call.weights, torch.float64)
    leaves = {name: each.requires_grad_() for name, each in weights.items() if each.is_floating_point()}
    x_BTD = numerics.tensor(call.x, torch.float64).requires_grad_()
    routers = {(call.recipe.hidden, call.recipe.moe.experts)} if call.recipe.moe else set()
    rounding = half_precision.RoundedProducts(stored, frozenset(routers)) if stored else contextlib.nullcontext()
    with rounding:
        y_BTD = _through(call, weights, x_BTD)
        assert call.dy is not None
        objective = (y_BTD * numerics.tensor(call.dy, torch.float64)).sum()
        found = torch.autograd.grad(objective, [*leaves.values(), x_BTD])
    return {"y": y_BTD.detach()} | dict(zip([*leaves, "x"], found, strict=True))


def _through(call: BlockCall, weights: dict[str, Tensor], x_BTD: Tensor) -> Tensor:
    """The output of the oracle for the block of this call."""
    recipe = call.recipe
    letter = recipe.pattern[call.layer % len(recipe.pattern)]
    documents = None if call.documents is None else numerics.tensor(call.documents)
    rows = list(range(len(x_BTD)))
    y_BTD: Tensor
    if letter == "A":
        numbers = [None if documents is None else documents[row] for row in rows]
        y_BTD = torch.stack([oracles.attention.grouped(recipe, weights, x_BTD[row], numbers[row]) for row in rows])
    elif letter == "E" and recipe.moe is None:
        y_BTD = torch.stack([oracles.mlp.dense(recipe, weights, x_BTD[row]) for row in rows])
    elif letter == "E":
        y_BTD = oracles.experts.block(recipe, weights, x_BTD).y_BTD
    else:
        block = oracles.recurrent.m2rnn if letter == "R" else getattr(
            oracles.mamba, "mamba2" if call.mode == "nemo_native" else "mamba3"
        )  # fmt: skip
        y_BTD = block(recipe, weights, x_BTD, documents).y_BTD
    return y_BTD


def _in_both(device: str) -> dict[str, BlockCase]:
    """Every block in both dtypes; also attention without documents, where a fused kernel may run."""
    found = {f"{name}-bfloat16": asked for name, asked in cases_on(device).items()}
    found |= {f"{name}-float32": replace(asked, dtype="float32") for name, asked in cases_on(device).items()}
    whole = {
        f"{name}-whole": replace(asked, lengths=((13,), (13,))) for name, asked in cases_on(device, "attention").items()
    }
    return found | whole


@contract("BLK-01f", asks=("block_weights", "run_block"), cases=_in_both("cpu"), source="naming; F06")
@contract("BLK-01g", asks=("block_weights", "run_block"), cases=_in_both("cuda"), source="naming; F06", tier="gpu")
def a_token_reads_its_own_past_alone(stack: Blocks, asked: BlockCase) -> None:
    """A token depends on itself and on the earlier tokens of its document only: its gradient with respect to every
    other token of the batch is exactly zero, and with respect to itself it is not.

    A test that perturbs tokens and compares rounded outputs misses any leak smaller than rounding.
    """
    call = call_of(stack, asked)
    read = asked.lengths[0][0] + 3 if len(asked.lengths[0]) > 1 else 6  # the fourth token of a later document
    assert call.dy is not None
    dy_BTD = numerics.tensor(call.dy)
    one_BTD = torch.zeros_like(dy_BTD)
    one_BTD[0, read] = dy_BTD[0, read]
    run = stack.run_block(replace(call, dy=numerics.array(one_BTD)))
    reached = numerics.tensor(run.gradients["x"]).abs().amax(-1)
    assert bool(reached.isfinite().all()), "the gradient by x is not finite"
    assert float(reached[0, read]) > 0, f"token {read} does not depend on itself"
    begin = asked.lengths[0][0] if len(asked.lengths[0]) > 1 else 0
    outside = {"another row": reached[1:], "a token after it": reached[0, read + 1 :],
               "another document": reached[0, :begin]}  # fmt: skip
    for what, part in outside.items():
        assert not bool(part.any()), f"token {read} of row 0 reads {what}: gradient {float(part.max()):.1e}"


HALVES = {name: replace(asked, dtype="float32", lengths=((19,), (19,))) for name, asked in
          cases_on("cpu", "mamba2", "mamba3", "recurrent").items()}  # fmt: skip
HALVES_ON_GPU = {name: replace(asked, device="cuda") for name, asked in HALVES.items()}


@contract("BLK-04r", asks=("block_weights", "run_block"), cases=HALVES, source="naming; hub")
@contract("BLK-04s", asks=("block_weights", "run_block"), cases=HALVES_ON_GPU, source="naming; hub", tier="gpu")
def two_halves_are_the_whole_on_a_device(stack: Blocks, asked: BlockCase) -> None:
    """In float32 a scan over eight tokens, continued over eleven from the returned state, equals one scan over all
    nineteen, in chunks of five or in one.

    A kernel may return its state in any dtype. A single call does not show it.
    """
    call = replace(call_of(stack, asked), dy=None)
    whole = stack.run_block(call)
    x_BTD = numerics.tensor(call.x)
    first = stack.run_block(replace(call, x=numerics.array(x_BTD[:, :8])))
    second = stack.run_block(replace(call, x=numerics.array(x_BTD[:, 8:]), state=first.state, chunk=None))
    y_BTD = numerics.tensor(whole.y)
    words = numerics.difference("y of the first half", first.y, y_BTD[:, :8], FLOAT32_SCAN)
    words = words or numerics.difference("y of the second half", second.y, y_BTD[:, 8:], FLOAT32_SCAN)
    carried = {name: each for name, each in second.state.items() if name != "angle"}  # known modulo 2π
    wanted = {name: each for name, each in whole.state.items() if name != "angle"}
    words = words or numerics.differences("state", carried, wanted, FLOAT32_SCAN)
    assert not words, words


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
