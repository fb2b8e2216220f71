"""M of the reference with mamba-ssm's scan and with its own, in the environment of `make kernels`: run as a file.

    python -O _adapter.py LYING

The worst distance of y, last state and gradients, by name, as JSON. `LYING` is how documents lie: `packed` or `whole`.
"""

import json
import sys
from dataclasses import replace

import torch

from contracts.instruments import fixtures, numerics
from contracts.instruments.mamba_ssm_worker import on_the_cpu
from contracts.law._support.recipes import M_LAYER, SMALL
from contracts.spec import BlockCall, BlockRun, Seam
from contracts.stacks.reference.answers import blocks as branch
from contracts.stacks.reference.kernels.substitution import substitute_kernels
from contracts.stacks.reference.model.parts import PARTS
from contracts.stacks.reference.stack import Reference


def run(call: BlockCall, kernel: str) -> BlockRun:
    held = branch.build_block(call, PARTS)
    seam = Seam(site="scan", requested="mamba-ssm", actual=kernel)  # type: ignore[arg-type]
    ran = substitute_kernels(held, call.recipe, (seam,))
    found = branch.run_call(held, lambda *given: branch.forward_block(held, *given), call, PARTS)
    return replace(found, kernels=ran)


def main(lying: str) -> None:
    torch.set_num_threads(1)
    on_the_cpu()
    shapes = Reference().block_weights(SMALL, M_LAYER, "nemo_native")
    x_BTD, dy_BTD = (fixtures.normal(name, (2, 21, SMALL.hidden)).float() for name in ("x", "dy"))
    mamba = SMALL.mamba
    state = fixtures.normal("s", (2, mamba.heads, mamba.head_dim, mamba.state)).float()
    documents = 3 + fixtures.documents(((9, 12), (4, 17))) if lying == "packed" else None
    call = BlockCall(
        recipe=SMALL, layer=M_LAYER, weights=fixtures.as_arrays(fixtures.weights(shapes), torch.float32),
        x=numerics.array(x_BTD), dy=numerics.array(dy_BTD), chunk=16,
        documents=None if documents is None else numerics.array(documents),
        state={"ssm": numerics.array(state)},
    )  # fmt: skip
    own, theirs = run(call, "native"), run(call, "mamba-ssm")
    pairs = {"y": (theirs.y, own.y), "state": (theirs.state["ssm"], own.state["ssm"])}
    pairs |= {name: (theirs.gradients[name], each) for name, each in own.gradients.items()}
    far = {
        name: max(
            each.relative
            for each in numerics.distances(numerics.tensor(one).double(), numerics.tensor(two).double()).values()
        )
        for name, (one, two) in pairs.items()
    }
    json.dump({"far": far, "ran": dict(theirs.kernels), "own": dict(own.kernels)}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
