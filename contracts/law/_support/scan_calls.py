"""Inputs of the M and R blocks, and how their answers are compared with an oracle.

A case is a `ScanCase`: the lengths of the documents in each row, whether there is an initial state, the dtype, the
recipe, and weights that are set instead of drawn. Everything else is drawn from names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from contracts.instruments import fixtures, numerics
from contracts.law._support.late import Tensor, torch
from contracts.law._support.recipes import A_LAYER, M_LAYER, PARALLEL, R_LAYER, SMALL
from contracts.spec import (
    FLOAT32_SCAN,
    FLOAT64,
    FLOAT64_SCAN,
    Arrays,
    BlockCall,
    BlockRun,
    Blocks,
    Element,
    NotOffered,
    Recipe,
    Shape,
    Tolerance,
)

Lengths = tuple[tuple[int, ...], ...]
WHOLE: Lengths = ((37,), (37,))
PACKED: Lengths = ((3, 20, 1, 13), (30, 7))
"""Documents that begin inside a chunk and at its edge, one of one token, none aligned between the rows."""


@dataclass(frozen=True, kw_only=True)
class ScanCase:
    """The inputs of a block.

    Args:
        block: M in nemo_native, M in author_dp, R, or A with a state-space branch in nemo_native or author_dp.
        lengths: of the documents in each row; every row adds up to the same number of tokens.
        state: whether a state before the first token is given.
        weights: name → what every element is set to, or nested lists of all of them.
        loud: names of drawn weights that are a thousand times as large, so that what they feed saturates.
    """

    block: str = "mamba2"
    lengths: Lengths = WHOLE
    state: bool = False
    dtype: Element = "float64"
    chunk: int | None = None
    recipe: Recipe = SMALL
    weights: Mapping[str, Any] = field(default_factory=dict)
    loud: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(self.lengths[0])

    @property
    def tolerances(self) -> tuple[Tolerance, Tolerance]:
        """The tolerances for outputs and for gradients."""
        return (FLOAT64, FLOAT64_SCAN) if self.dtype == "float64" else (FLOAT32_SCAN, FLOAT32_SCAN)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        rows, mamba = len(self.lengths), self.recipe.mamba
        heads, width, size, grouped = mamba.heads, mamba.head_dim, mamba.state, mamba.groups * mamba.state
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            "mamba2": {"ssm": (rows, heads, width, size), "conv_x": (rows, heads * width, 3),
                       "conv_b": (rows, grouped, 3), "conv_c": (rows, grouped, 3)},
            "mamba3": {"ssm": (rows, heads, width, size), "angle": (rows, heads, size // 4),
                       "k": (rows, heads, size), "v": (rows, heads, width)},
            "m2rnn": {"h": (rows, heads, size, width)},
        }  # fmt: skip
        shapes |= {"parallel": shapes["mamba2"], "parallel-mamba3": shapes["mamba3"]}
        return shapes[self.block]


BESIDE_ATTENTION = ScanCase(block="parallel", recipe=PARALLEL, lengths=PACKED, chunk=8)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The tensors of a case in float64, rounded to its dtype."""

    weights: dict[str, Tensor]
    x: Tensor
    dy: Tensor
    documents: Tensor
    state: dict[str, Tensor]


def drawn_inputs(stack: Blocks, case: ScanCase) -> Inputs:
    """The inputs of a case, drawn for the names and shapes that the stack holds."""
    rows, hidden = len(case.lengths), case.recipe.hidden
    layer, mode = layer_and_mode(case.block)
    found = fixtures.weights(stack.block_weights(case.recipe, layer, mode))
    found |= {name: 1000 * found[name] for name in case.loud}
    found |= {name: torch.as_tensor(value).expand(found[name].shape) for name, value in case.weights.items()}

    def rounded(tensor: Tensor) -> Tensor:
        return tensor.to(getattr(torch, case.dtype)).double()

    state = {name: fixtures.normal(f"state {name}", shape) for name, shape in case.state_shapes().items()}
    return Inputs(
        weights={name: rounded(each) for name, each in found.items()},
        x=rounded(fixtures.normal("x", (rows, case.tokens, hidden))),
        dy=rounded(fixtures.normal("dy", (rows, case.tokens, hidden))),
        documents=fixtures.documents(case.lengths),
        state={name: rounded(each) for name, each in state.items()} if case.state else {},
    )


def layer_and_mode(block: str) -> tuple[int, Any]:
    """The layer of `SMALL` and the mode that build a block."""
    layer = A_LAYER if block.startswith("parallel") else R_LAYER if block == "m2rnn" else M_LAYER
    return layer, "author_dp" if block.endswith("mamba3") else "nemo_native"


def call(case: ScanCase, inputs: Inputs, *, backward: bool = True, packed: bool | None = None) -> BlockCall:
    """The call to the stack; document numbers are given where a row holds several documents."""
    dtype = getattr(torch, case.dtype)
    layer, mode = layer_and_mode(case.block)
    several = any(len(row) > 1 for row in case.lengths) if packed is None else packed
    given = fixtures.as_arrays({"x": inputs.x, "dy": inputs.dy, "documents": inputs.documents}, dtype)
    return BlockCall(
        recipe=case.recipe,
        layer=layer,
        mode=mode,
        weights=fixtures.as_arrays(inputs.weights, dtype),
        x=given["x"],
        dy=given["dy"] if backward else None,
        documents=given["documents"] if several else None,
        state=fixtures.as_arrays(inputs.state, dtype),
        chunk=case.chunk,
    )


def run(stack: Blocks, case: ScanCase, inputs: Inputs, *, backward: bool = True) -> BlockRun:
    return stack.run_block(call(case, inputs, backward=backward))


def input_slice(
    inputs: Inputs, tokens: slice, state: Mapping[str, Tensor] | None = None, row: int | None = None
) -> Inputs:
    """Some tokens of the inputs, of every row or of one, with the given state before them or none."""
    rows = slice(None) if row is None else slice(row, row + 1)
    return replace(
        inputs,
        x=inputs.x[rows, tokens],
        dy=inputs.dy[rows, tokens],
        documents=inputs.documents[rows, tokens],
        state=dict(state or {}),
    )


def equals_its_definition(stack: Blocks, case: ScanCase, oracle: Callable[..., Any]) -> None:
    """Output, state and every gradient equal the oracle's, which takes one token at a time."""
    inputs = drawn_inputs(stack, case)
    got = run(stack, case, inputs)
    leaves = inputs.weights | {"x": inputs.x} | {f"state.{name}": each for name, each in inputs.state.items()}
    leaves = {name: each.clone().requires_grad_() for name, each in leaves.items()}
    state = {name: leaves[f"state.{name}"] for name in inputs.state}
    want = oracle(case.recipe, {name: leaves[name] for name in inputs.weights}, leaves["x"], inputs.documents, state)
    gradients = torch.autograd.grad((want.y_BTD * inputs.dy).sum(), list(leaves.values()))
    assert_run_equals(
        got,
        want.y_BTD.detach(),
        {name: each.detach() for name, each in want.state.items()},
        dict(zip(leaves, gradients, strict=True)),
        case,
    )


def assert_run_equals(
    got: BlockRun, y: Tensor, state: Mapping[str, Tensor], gradients: Mapping[str, Tensor] | None, case: ScanCase
) -> None:
    """Require that the answers of a block equal these, within the tolerances of the case. Of a stack that returns no
    state none is asked, unless a second call begins with it."""
    (close, closely) = case.tolerances
    words = numerics.difference("y", got.y, y, close)
    assert not words, words
    words = numerics.differences(
        "the state", angles_as_points(numerics.tensors(got.state)), angles_as_points(state if got.state else {}), close
    )
    assert not words, words
    if gradients is not None:
        words = numerics.gradient_differences("the gradient of", got.gradients, gradients, closely)
        assert not words, words


def last_state(found: BlockRun) -> Arrays:
    """The state after the last token.

    Raises:
        NotOffered: of a stack that returns none.
    """
    if not found.state:
        raise NotOffered("its scan returns no state", "stack")
    return found.state


def angles_as_points(state: Mapping[str, Tensor]) -> Any:
    """The state with angles as points on a circle: 0 and 2π are the same angle."""
    found = dict(state)
    if "angle" in found:
        angle = found.pop("angle")
        found["angle"] = torch.stack([torch.cos(angle), torch.sin(angle)])
    return numerics.arrays(found)


def sees_nothing_of_the_future(stack: Blocks, case: ScanCase, at: int) -> None:
    """Changes from token `at` on in row 0 leave earlier positions and other rows bit-identical, and so do gradients."""
    inputs = drawn_inputs(stack, case)
    other = inputs.x.clone()
    other[0, at:] = fixtures.normal("another x", tuple(other[0, at:].shape))
    one = run(stack, case, replace(inputs, x=inputs.x), backward=False)
    two = run(stack, case, replace(inputs, x=other), backward=False)
    left, right = (numerics.tensor(each.y) for each in (one, two))
    assert bool((left[0, at:] != right[0, at:]).any()), f"token {at} changes no output, its own included"
    for row, until in ((0, at), (1, case.tokens)):
        changed = (left[row, :until] != right[row, :until]).any(-1)
        first = int(torch.nonzero(changed)[0]) if bool(changed.any()) else None
        assert first is None, f"tokens from {at} on in row 0 change the output at token {first} of row {row}"
    early = inputs.dy.clone()
    early[:, at:] = 0
    gradient = numerics.tensor(run(stack, case, replace(inputs, dy=early)).gradients["x"])
    reached = torch.nonzero(gradient[:, at:].abs().sum(-1))
    assert not len(reached), f"a loss on tokens before {at} has a gradient by x at token {at + int(reached[0][1])}"
    last = torch.zeros_like(inputs.dy)
    last[:, -1] = inputs.dy[:, -1]
    gradient = numerics.tensor(run(stack, replace(case, lengths=WHOLE), replace(inputs, dy=last,
        documents=torch.zeros_like(inputs.documents))).gradients["x"])  # fmt: skip
    assert bool(gradient[:, 0].any()), "a loss on the last token has no gradient by x at token 0"


def keeps_documents_apart(stack: Blocks, case: ScanCase) -> None:
    """Other tokens in one document leave all other documents bit-identical, in output and gradient."""
    inputs = drawn_inputs(stack, case)
    one = numerics.tensor(run(stack, case, inputs, backward=False).y)
    other = fixtures.normal("another x", tuple(inputs.x.shape))
    for number in range(len(case.lengths[0])):
        inside = inputs.documents == number
        x = torch.where(inside[..., None], other, inputs.x)
        two = numerics.tensor(run(stack, case, replace(inputs, x=x), backward=False).y)
        leaks = torch.nonzero((one != two).any(-1) & ~inside)
        assert not len(leaks), f"document {number} changes the output at token {int(leaks[0][1])} of another one"
        dy = torch.where(inside[..., None], inputs.dy, 0)
        gradient = numerics.tensor(run(stack, case, replace(inputs, dy=dy)).gradients["x"])
        leaks = torch.nonzero(gradient.any(-1) & ~inside)
        assert not len(leaks), f"a loss on document {number} has a gradient at token {int(leaks[0][1])} of another one"


def gives_each_document_what_it_gets_alone(stack: Blocks, case: ScanCase) -> None:
    """Each document has the output and gradient by x of a row of its own; the last one has its state, too."""
    inputs = drawn_inputs(stack, case)
    got = run(stack, case, inputs)
    y, gradient = numerics.tensor(got.y), numerics.tensor(got.gradients["x"])
    for row, lengths in enumerate(case.lengths):
        ends = torch.tensor(lengths).cumsum(0).tolist()
        for number, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            tokens = slice(end - length, end)
            alone = run(stack, replace(case, lengths=((length,),)), input_slice(inputs, tokens, row=row))
            name = f"document {number} of row {row}"
            words = numerics.difference(f"y of {name}", y[row, tokens], numerics.tensor(alone.y)[0], case.tolerances[0])
            alone_gradient = numerics.tensor(alone.gradients["x"])[0]
            words = words or numerics.difference(
                f"the gradient by x of {name}", gradient[row, tokens], alone_gradient, case.tolerances[1]
            )
            assert not words, f"{words} (alone)"
        want = angles_as_points(numerics.tensors(alone.state))
        have = angles_as_points({name: each[row : row + 1] for name, each in numerics.tensors(got.state).items()})
        words = numerics.differences(f"after row {row} the state", have, want, case.tolerances[0])
        assert not words, words


def passes_its_state(stack: Blocks, case: ScanCase, at: int) -> None:
    """Two calls, the second with the state of the first, give what one call gives, including the last state."""
    inputs = drawn_inputs(stack, case)
    whole = run(stack, case, inputs, backward=False)
    before = run(stack, case, input_slice(inputs, slice(0, at), inputs.state), backward=False)
    last_state(before)
    for name, shape in case.state_shapes().items():
        held = before.state[name].shape if name in before.state else None
        assert held == shape, f"the state {name} has shape {held}, expected {shape}"
    after = run(stack, case, input_slice(inputs, slice(at, None), numerics.tensors(before.state)), backward=False)
    halves = torch.cat([numerics.tensor(before.y), numerics.tensor(after.y)], dim=1)
    words = numerics.difference(f"y in two halves, cut at {at},", halves, whole.y, case.tolerances[0])
    assert not words, words
    one, two = (angles_as_points(numerics.tensors(each.state)) for each in (after, whole))
    words = numerics.differences("after two halves the state", one, two, case.tolerances[0])
    assert not words, words


def assert_weights(
    held: Mapping[str, Shape], expected: Mapping[str, tuple[int, ...]], float32: tuple[str, ...], dtype: str
) -> None:
    """A block holds tensors of these names and shapes, and some of them in float32 whatever the recipe's dtype."""
    shapes = {name: each.shape for name, each in held.items()}
    odd = {name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name)}
    words = "; ".join(f"{name} is {shapes.get(name)}, expected {expected.get(name)}" for name in sorted(odd)[:3])
    assert not odd, words
    for name in float32:
        found = held[f"mixer.{name}"].dtype
        assert found == "float32", f"{name} is held in {found} under {dtype}, expected float32"


def assert_reaches(got: BlockRun, name: str, rows: int, head: int, expected: list[int]) -> None:
    """Which parts of a weight, of so many rows each, have a gradient from a head's output."""
    gradient = numerics.tensor(got.gradients[f"mixer.{name}"])
    reached = [i for i, part in enumerate(torch.split(gradient, rows)) if bool(part.any())]
    assert reached == expected, f"head {head} reaches parts {reached} of {name}, expected {expected}"
