"""The comparison of a step on several ranks with the step of the same stack on one rank.

Every comparison answers in words: first what the loss and the gradient norm by themselves would show, then what
differs, where and by how much. The answer is empty where the steps agree.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from contracts.instruments import numerics
from contracts.instruments.ranks import gathered, here
from contracts.law._support.label_weights import like_on_one_rank
from contracts.spec import (
    EXACT,
    FLOAT64_SCAN,
    Array,
    Arrays,
    Execution,
    Layout,
    NotOffered,
    Refused,
    Session,
    Step,
    Tolerance,
    Trained,
    Training,
    compared,
    within,
)
from contracts.spec.records import Violation

STATE = {"weights": "the weight", "optimizer": "the optimizer state", "buffers": "the buffer", "seen": "the counter"}
"""What a step holds, and how it is called in words."""


def on_one_rank(stack: Training, session: Session) -> Trained:
    """A run that each rank does by itself. It must not save, load, or draw from random generators.

    A stack with `recall`, as the gate wraps it, runs it once, and later layouts reuse the answer. Any other stack runs
    it each time.
    """
    recall = getattr(stack, "recall", None)
    trained: Trained = stack.train(session) if recall is None else recall("train", session)
    return trained


@dataclass(frozen=True, kw_only=True)
class Placed(Step):
    """A step on several ranks whose loss differs, and `first`: from which layer on, in words."""

    first: str


def on_one_rank_and_many(
    stack: Training, session: Session, *, layout: Layout = "own-axis", microbatches: int = 1, bound: float | None = None
) -> list[tuple[Step, Step]]:
    """For each step of a session, the step on one rank and the step on all ranks.

    If a loss of the first step differs, all ranks also ask for models of only its first layers, until theirs does. The
    loss of a whole model does not say where a pass goes wrong. Theirs differs by more than `bound`, relative, or by
    more than rounding in float64 or float32 explains.
    """
    if bound is None:
        bound = {"float64": 1e-9, "float32": 1e-5}.get(session.execution.precision, math.inf)
    bound = bound if session.weights else math.inf
    pairs = _pairs(stack, session, layout, microbatches)
    if pairs and (differ := {name for names in gathered(_differing_losses(*pairs[0], bound)) for name in names}):
        one, many = pairs[0]
        first = "" if differ == {"mtp"} else _first_layer(stack, session, layout, microbatches, bound)
        lm = "" if "lm" in differ or "lm" not in one.losses else ", and lm agrees"
        pairs[0] = one, Placed(**vars(many), first=first + lm)
    return pairs


def _pairs(stack: Training, session: Session, layout: Layout, microbatches: int) -> list[tuple[Step, Step]]:
    asked = session.execution
    cuts = max(microbatches, like_on_one_rank(stack, asked))
    single = Execution(mode=asked.mode, precision=asked.precision, layout=layout, microbatches=cuts)
    one = on_one_rank(stack, replace(session, execution=single))
    return list(zip(one.steps, stack.train(session).steps, strict=True))


def _differing_losses(one: Step, many: Step, bound: float) -> list[str]:
    pairs = {name: (many.losses.get(name, math.nan), want) for name, want in one.losses.items() if name != "total"}
    return [name for name, (got, want) in pairs.items() if not abs(got - want) <= bound * abs(want)]


def _first_layer(stack: Training, session: Session, layout: Layout, microbatches: int, bound: float) -> str:
    """The first layer with which a loss differs, in words; empty if no model of fewer layers can be asked."""
    recipe, agreed = session.recipe, 0
    stages = _stages(session)
    letters = (recipe.pattern.replace("|", "") * recipe.depth)[: recipe.depth]
    for depth in range(len(stages), recipe.depth):
        try:
            shallow = replace(
                session, recipe=replace(recipe, depth=depth, pattern=_cut(letters[:depth], stages)), steps=1,
                batches=session.batches[:1], windows=session.windows[:1], observe=frozenset(), at=frozenset(),
                weights=_of_layers(session.weights, depth), buffers=_of_layers(session.buffers, depth),
            )  # fmt: skip
            pairs = _pairs(stack, shallow, layout, microbatches)
        except (NotOffered, Refused):  # experts on several ranks and none in these layers, say
            continue
        if any(gathered(_differing_losses(*pairs[0], bound))):
            break
        agreed = depth
    else:
        depth = recipe.depth
        if not agreed and depth > len(stages):
            return ""
    layers = [f"{layer} ({letters[layer]})" for layer in range(agreed, depth)]
    of = f" of the stages {_cut(letters[:depth], stages)}" if len(stages) > 1 else ""
    way = f"first with layer {' or '.join(layers)}" if agreed else f"already with only layer {' and '.join(layers)}"
    return f", {way}{of}"


def _stages(session: Session) -> list[int]:
    """How many layers each stage of a pipeline has, in model order."""
    recipe, execution = session.recipe, session.execution
    if "|" in recipe.pattern:
        return [len(part) for part in recipe.pattern.split("|")]
    stages = execution.degrees.pp * (2 if execution.schedule == "interleaved" else 1)
    return [recipe.depth // stages] * stages


def _cut(letters: str, stages: Sequence[int]) -> str:
    """The letters, cut as these stages are, as far as at least one is left for each later stage."""
    parts = []
    for later, size in zip(reversed(range(len(stages))), stages, strict=True):
        end = min(size, len(letters) - later) if later else len(letters)
        parts.append(letters[:end])
        letters = letters[end:]
    return "|".join(parts)


def _of_layers(arrays: Arrays, depth: int) -> Arrays:
    """The tensors of the first layers, and those of none."""
    layers = {name: re.match(r"layers\.(\d+)\.", name) for name in arrays}
    return {name: each for name, each in arrays.items() if not (at := layers[name]) or int(at[1]) < depth}


def loss_and_norm(one: Step, many: Step, *, about: str = "") -> str:
    """The loss and the gradient norm of both steps in words, as precisely as a curve shows them.

    A rate that differs is named too, and so is a clip coefficient that the norm does not explain. `about` is the
    quantity that is known to differ: nothing says that it agrees.
    """
    pairs = {"loss": (many.losses.get("total", float("nan")), one.losses["total"]),
             "norm": (many.grad_norm, one.grad_norm),
             "clip": (many.clip_coef, one.clip_coef), "rate": (many.lr, one.lr)}  # fmt: skip
    off = {name: not abs(got - want) <= CURVE * abs(want) for name, (got, want) in pairs.items()}
    off["clip"] = off["clip"] and not off["norm"] and about != "norm"
    return ", ".join(
        f"{name} is {got:.5g} and not {want:.5g}" if off[name] else f"{name} agrees"
        for name, (got, want) in pairs.items()
        if off[name] or name in {"loss", "norm"} - {about}
    )


CURVE = 1e-4
"""Relative; what two curves on one page do not show."""


def label_difference(one: Step, many: Step) -> str:
    """Whether other labels count than on one rank."""
    words = f"{many.tokens} labels count, {one.tokens} on one rank"
    return f"{words} {_where(one)}" if many.tokens != one.tokens else ""


def loss_difference(one: Step, many: Step, *names: str, bound: float | None = None) -> str:
    """The first loss off by more than `bound` (relative above 1), 1e-11 in float64; all losses are compared when none
    is named.
    """
    found = {name: many.losses.get(name, float("nan")) for name in names or one.losses}
    allowed = within(1e-11) if bound is None else bound
    words = _first_off({name: (got, one.losses[name]) for name, got in found.items()}, allowed, 1.0)
    return _differs(one, many, words and words + getattr(many, "first", ""), about="loss")


def clip_difference(one: Step, many: Step, *names: Literal["grad_norm", "clip_coef"], bound: float = 1e-11) -> str:
    """Whether the gradient norm or the clip coefficient, or the one named, is off by more than `bound`, relative."""
    pairs: dict[str, tuple[float, float]] = {
        name: (getattr(many, name), getattr(one, name)) for name in names or ("grad_norm", "clip_coef")
    }
    return _differs(one, many, _first_off(pairs, bound), about="norm")


def tensor_differences(
    one: Step, many: Step, what: str, got: Arrays, want: Arrays, tolerance: Tolerance = FLOAT64_SCAN
) -> str:
    """In which tensors two steps differ."""
    return _differs(one, many, numerics.differences(what, got, want, tolerance))


def state_differences(one: Step, many: Step, *kinds: str, tolerance: Tolerance = FLOAT64_SCAN) -> str:
    """In which tensors of the first of these `kinds` of STATE two steps differ."""
    found = (
        tensor_differences(one, many, STATE[kind], getattr(many, kind), getattr(one, kind), tolerance) for kind in kinds
    )
    return next(filter(None, found), "")


def gradient_differences(
    one: Step, many: Step, *parts: str, what: str = "the gradient of", tolerance: Tolerance = FLOAT64_SCAN
) -> str:
    """In which gradients two steps differ, of those whose names contain one of `parts`. The scale comes from all
    gradients, because a single one may cancel to rounding.
    """
    got, want = (named_like(step.gradients, *(parts or ("",))) for step in (many, one))
    scale = numerics.scale_of(one.gradients)
    return _differs(one, many, numerics.gradient_differences(what, got, want, tolerance, scale=scale))


def bias_differences(one: Step, many: Step, assignments: int, tolerance: Tolerance = EXACT) -> str:
    """How a router's counts of a step, or the biases updated from them, are wrong. A stack that keeps no count reports
    none.
    """
    for name, counts in numerics.tensors(named_like(many.seen, ".counts")).items():
        if int(counts.sum()) != assignments:
            return f"{name} has {int(counts.sum())} assignments, expected {assignments} {_where(one)}"
    return state_differences(one, many, "buffers", tolerance=tolerance)


def update_difference(before: Arrays, got: Arrays, want: Arrays, bound: float) -> str:
    """The weights that moved differently, by the L2 distance between the movements over the length of the expected one.

    L2 only: Adam turns the rounding of a gradient near zero into a full step of either sign, so that single elements
    may be off by two steps in a run without a bug.
    """
    start, found, right = (numerics.tensors(each) for each in (before, got, want))
    parts = []
    for name in sorted(right):
        if name not in found:
            parts.append(Violation(words=f"the weight {name} is not reported (rank {here().rank})", tensor=name))
            continue
        move, expected = (side[name].double() - start[name].double() for side in (found, right))
        off = numerics.distances(move, expected)["L2"]
        rounding = numerics.floor(found[name].dtype, numerics.typical_size(start[name]))  # of a weight, where it lands
        if not off.times(bound, rounding) <= 1:
            words = f"off by {off.relative:.1e} of the expected update, over {bound:.0e}"
            parts.append(Violation(words=f"{name} moved differently: {words} (rank {here().rank})", tensor=name))
    return compared(parts[0].words, parts) if parts else ""


def replica_differences(held: Arrays) -> str:
    """Tensors that are not bit-identical on another rank, or missing there; empty where all agree. All ranks must call
    it.
    """
    mine = {name: each.fingerprint for name, each in held.items()}
    for rank, other in enumerate(gathered(mine)):
        unequal = sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))
        if unequal:
            return f"rank {here().rank} and rank {rank} hold different values of {', '.join(unequal[:3])}"
    return ""


def named_like(arrays: Arrays, *parts: str) -> dict[str, Array]:
    """The tensors whose names contain one of `parts`."""
    return {name: each for name, each in arrays.items() if any(part in name for part in parts)}


def _first_off(pairs: Mapping[str, tuple[float, float]], bound: float, least: float = 0.0) -> str:
    """The first number that is off by more than `bound` times its size, or times `least` where that is more."""
    for name, (got, want) in pairs.items():
        if not abs(got - want) <= bound * max(least, abs(want)):
            return f"{name} is {got:.10g}, {want:.10g} on one rank"
    return ""


def _differs(one: Step, many: Step, words: str, *, about: str = "") -> str:
    return f"{loss_and_norm(one, many, about=about)}: {words} {_where(one)}" if words else ""


def _where(step: Step) -> str:
    return f"(step {step.number}, rank {here().rank})"
