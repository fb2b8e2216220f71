"""The compiler is given one graph of the experts each way, in which rows move and are never added by an index."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from contracts.instruments import fixtures
from contracts.law._support import expert_calls
from contracts.stacks.reference.model.blocks.common import packing
from contracts.stacks.reference.model.blocks.moe import gathered, inverse, scattered
from contracts.stacks.reference.model.compile import compiled
from contracts.stacks.reference.model.parts import PARTS

HIDDEN = 24
ADDS = ("adding", "aten.index_add", "aten.scatter", "aten.embedding_dense_backward")


class Graphs:
    """A compiler backend that keeps what it is given of a forward and a backward pass, and runs it as it is."""

    def __init__(self) -> None:
        self.forward: list[GraphModule] = []
        self.backward: list[GraphModule] = []
        self.backend = aot_autograd(fw_compiler=self._into(self.forward), bw_compiler=self._into(self.backward))

    def _into(self, kept: list[GraphModule]) -> Callable[[GraphModule, Any], Any]:
        def keep(graph: GraphModule, _: Any) -> Any:
            kept.append(graph)
            return make_boxed_func(graph)

        return keep


def rows_of(graph: GraphModule) -> list[str]:
    """The operations that give rows of the hidden width, with the word for an index_put that accumulates."""
    return [
        "adding " * (node.args[3:] == (True,)) + str(node.target)
        for node in graph.graph.nodes
        if node.op == "call_function"
        and isinstance(node.meta.get("val"), Tensor)
        and node.meta["val"].shape[-1:] == (HIDDEN,)
    ]


@pytest.mark.parametrize("factor", [None, 0.5])
@pytest.mark.parametrize("activation", ["relu2", "swiglu"])
def test_compiled_dispatch_and_combine_have_no_index_add(activation: str, factor: float | None) -> None:
    moe = replace(expert_calls.SOFTMAX, expert_hidden=16, shared_hidden=8, capacity_factor=factor)
    recipe = expert_calls.with_moe(moe, activation)
    assert recipe.hidden == HIDDEN
    block, seen = PARTS.moe(recipe, PARTS).bfloat16(), Graphs()
    x_BTD = fixtures.normal("x", (2, 10, HIDDEN)).bfloat16().requires_grad_()
    torch.compiler.reset()
    compiled(block, lambda x: block(x, packing(x), {}).y_BTD, seen.backend)(x_BTD).sum().backward()
    assert len(seen.forward) == len(seen.backward) == 1
    for graph in (*seen.forward, *seen.backward):
        assert not [each for each in rows_of(graph) if each.startswith(ADDS)]
        assert {"aten.index.Tensor", "aten.index_put.default"} <= set(rows_of(graph))


def test_the_test_for_index_add_sees_one() -> None:
    order_S, seen = torch.tensor([2, 0, 1]), Graphs()
    torch.compiler.reset()
    torch.compile(lambda x: x[order_S] * 2, backend=seen.backend)(
        torch.ones(3, HIDDEN, requires_grad=True)
    ).sum().backward()
    [graph] = seen.backward
    assert [each for each in rows_of(graph) if each.startswith(ADDS)] == ["adding aten.index_put.default"]


@pytest.mark.parametrize("moved", [gathered, lambda x, order_S: scattered(x, inverse(order_S))])
def test_moved_rows_and_their_gradients_are_those_of_indexed_rows(moved: Callable[[Tensor, Tensor], Tensor]) -> None:
    order_S = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    ours, theirs = (fixtures.normal("x", (40, 3)).requires_grad_() for _ in range(2))
    weight_SD = fixtures.normal("weight", (40, 3))
    assert order_S[inverse(order_S)].equal(torch.arange(40))
    assert moved(ours, order_S).equal(theirs[order_S])
    (moved(ours, order_S) * weight_SD).sum().backward()
    (theirs[order_S] * weight_SD).sum().backward()
    assert ours.grad.equal(theirs.grad)
