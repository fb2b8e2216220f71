"""Initial weights depend on the seed and on a tensor's name and shape, and on nothing else."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from contracts.contract import contract
from contracts.instruments import numerics
from contracts.law._support import training_run
from contracts.law._support.answers import refusal_of
from contracts.law._support.late import Tensor, torch
from contracts.law._support.model_passes import EVERYTHING, WHOLE, batch, one_pass
from contracts.law._support.recipes import DENSE, SMALL, SMALL_DSA, SMALL_MLA
from contracts.law._support.training_run import LETTERS, SEEDS, TIED
from contracts.spec import (
    EXACT,
    FLOAT32,
    Batch,
    Execution,
    Mhc,
    Mode,
    Moe,
    Mtp,
    Recipe,
    Refused,
    Session,
    Training,
    require_none,
    within,
)

DRAWN: dict[str, tuple[Recipe, Mode]] = {
    "streams-and-depths": (EVERYTHING, "nemo_native"),
    "custom-mixers": (SMALL, "author_dp"),
    "bf16": (replace(WHOLE, dtype="bf16"), "nemo_native"),
    "dense": (DENSE, "nemo_native"),
}


def _initial(stack: Training, recipe: Recipe, mode: Mode) -> dict[str, Tensor]:
    return numerics.tensors(stack.initial(recipe, mode))


def _drawn_tensors(stack: Training, recipe: Recipe, mode: Mode) -> dict[str, Tensor]:
    """The tensors that are drawn: those that change with the seed."""
    one, other = (_initial(stack, replace(recipe, seed=seed), mode) for seed in (7, 8))
    return {name: each for name, each in one.items() if not bool((each == other[name]).all())}


@contract("PAR-04a", asks="initial", cases=DRAWN, source="F14; INI-13")
def the_seed_decides_the_initial_weights(stack: Training, recipe: Recipe, mode: Mode) -> None:
    """Initial weights are the same when asked for again, after other models were built and other random numbers drawn;
    every randomly initialised matrix changes with the seed.

    Ranks build their parts in different orders and draw other random numbers in between.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        before = stack.initial(recipe, mode)
        stack.initial(replace(recipe, depth=recipe.depth - 2, seed=5), mode)
        torch.manual_seed(99)
        after = stack.initial(recipe, mode)
    words = numerics.differences("the second time", after, before, EXACT)
    assert not words, words
    drawn = _drawn_tensors(stack, recipe, mode)
    alike = [name for name, each in before.items() if name not in drawn and _varies(each.shape, name)]
    assert not alike, f"{', '.join(alike)} do not depend on the seed"


def _varies(shape: tuple[int, ...], name: str) -> bool:
    """Whether a tensor of two or more dims is drawn: recurrences begin as the identity, biases as constants."""
    return len(shape) > 1 and not (len(shape) == 3 and shape[1] == shape[2]) and not name.endswith("bias")


@contract("PAR-04b", asks=("initial", "built"), cases=DRAWN, source="F14; INI-03")
def no_two_tensors_start_alike(stack: Training, recipe: Recipe, mode: Mode) -> None:
    """No two randomly initialised tensors start with the same numbers: not two layers, not two experts of a layer, not
    a head and a layer.

    Experts that start alike get the same gradients and stay one expert. Pipeline chunks that restart the generator give
    pairs of identical layers.
    """
    experts = {row.name for row in stack.built(recipe, mode).parameters if row.role == "expert"}
    pieces: dict[str, Tensor] = {}
    for name, each in _drawn_tensors(stack, recipe, mode).items():
        parts = {f"{name}[{e}]": part for e, part in enumerate(each)} if name in experts else {name: each}
        pieces |= {label: part.flatten()[:64].double() for label, part in parts.items()}
    for size in {len(each) for each in pieces.values()}:
        labels = [label for label, each in pieces.items() if len(each) == size]
        rows = torch.stack([pieces[label] - pieces[label].mean() for label in labels])
        rows = rows / rows.norm(dim=1, keepdim=True)
        alike = (rows @ rows.T).fill_diagonal_(0) > (0.8 if size == 64 else 1 - 1e-9)  # 64 numbers are 6 sigma from 0.8
        where = [(labels[int(i)], labels[int(j)]) for i, j in alike.nonzero() if i < j]
        pairs = ", ".join(" and ".join(pair) for pair in where[:3])
        assert not where, f"{pairs} start alike ({len(where)} pairs)"


OTHERS: dict[str, tuple[Recipe, Recipe, Mode]] = {  # one model, another that shares names with it, mode
    "deeper": (WHOLE, replace(WHOLE, depth=9), "nemo_native"),
    "depths-and-streams": (WHOLE, EVERYTHING, "nemo_native"),
    "another-dtype": (WHOLE, replace(WHOLE, dtype="bf16", recompute="full"), "nemo_native"),
    "another-pattern": (WHOLE, replace(WHOLE, pattern="AEAE"), "nemo_native"),
    "other-experts": (WHOLE, replace(WHOLE, moe=Moe(experts=16, top_k=2, expert_hidden=20)), "author_dp"),
    "another-batch": (SMALL_MLA, replace(SMALL_MLA, batch=Batch(micro=1, total=8), mtp=Mtp(depth=1)), "nemo_native"),
    "more-streams": (replace(WHOLE, mhc=Mhc(streams=2)), replace(WHOLE, mhc=Mhc(streams=4)), "nemo_native"),
}


@contract("PAR-04c", asks="initial", cases=OTHERS, source="F14; INI-13")
def a_tensor_starts_the_same_in_another_model(stack: Training, one: Recipe, other: Recipe, mode: Mode) -> None:
    """A tensor of the same name and shape starts with the same numbers, up to a factor, whatever else the model
    contains.

    An ablation then changes only what it names, and a pipeline stage with half of the layers starts where the whole
    model does.
    """
    left, right = _initial(stack, one, mode), _initial(stack, other, mode)
    shared = [name for name in left if name in right and left[name].shape == right[name].shape]
    assert len(shared) >= 8, f"the models share {len(shared)} tensors, expected the layers they have in common"
    for name in shared:
        got, want = (side[name].double() for side in (left, right))
        if bool(want.any()) and bool(got.any()):
            got, want = got / got.norm(), want / want.norm()
        words = numerics.difference(f"{name} in the other model", got, want, FLOAT32)
        assert not words, words


QUIET = {  # recipe, the logarithm of its vocabulary
    "every-family": (SMALL, math.log(61)),
    "streams-and-depths": (EVERYTHING, math.log(61)),
    "a-wide-vocabulary": (replace(WHOLE, vocab=1021), math.log(1021)),
    "tied": (replace(WHOLE, untied_embeddings=False), math.log(61)),
}


@contract("PAR-04d", asks=("built", "initial", "run_model"), cases=QUIET, source="F14; INI-10")
def a_model_starts_without_an_opinion(stack: Training, recipe: Recipe, entropy: float) -> None:
    """Every initial tensor is finite, every norm weight starts at 1, and the first loss is the logarithm of the
    vocabulary size within 2 %.

    A parameter that was never initialised after the meta device holds whatever was in memory. An init scale that is off
    by the square root of the width shows in the first loss and in no later one.
    """
    tensors = _initial(stack, recipe, "nemo_native")
    bad = [name for name, each in tensors.items() if not bool(each.isfinite().all())]
    assert not bad, f"{', '.join(bad)} are not finite"
    norms = [row.name for row in stack.built(recipe, "nemo_native").parameters if row.role == "norm"]
    off = [name for name in norms if not bool((tensors[name] == 1).all())]
    assert not off, f"{', '.join(off)} do not start at 1"
    losses = one_pass(stack, recipe, {}, batch(recipe), precision="float32").losses
    for name in ("lm", "mtp"):
        loss = losses.get(name, entropy)
        assert abs(loss / entropy - 1) < 0.02, (
            f"{name} loss starts at {loss:.4f}, expected the logarithm of the vocabulary, {entropy:.4f}"
        )


BOUNDED: Mapping[str, tuple[Recipe, Mode, str, float, float]] = {  # recipe, mode, vector, its least and greatest rate
    "decay": (SMALL, "nemo_native", "A_log", 0.5, 32.0),
    "decay-bf16": (replace(SMALL, dtype="bf16"), "nemo_native", "A_log", 0.5, 32.0),
    "step": (SMALL, "nemo_native", "dt_bias", 5e-4, 0.2),
    "step-custom-mixers": (replace(SMALL, dtype="bf16"), "author_dp", "dt_bias", 5e-4, 0.2),
}


@contract("PAR-04e", asks="initial", cases=BOUNDED, source="arXiv 2405.21060, 2603.14360; INI-08")
def recurrences_start_with_memory(
    stack: Training, recipe: Recipe, mode: Mode, vector: str, low: float, high: float
) -> None:
    """A_log and dt_bias start in float32, differ between heads, and give decays exp(A_log) and time steps
    softplus(dt_bias) in the ranges of their papers.

    With a lower bound of 1e-6 some heads never forget; in bfloat16 several heads collapse to the same value.
    """
    found = {name: each for name, each in _initial(stack, recipe, mode).items() if name.rsplit(".", 1)[-1] == vector}
    assert found, f"no tensor is called {vector}"
    for name, each in found.items():
        assert each.dtype == torch.float32, f"{name} starts in {each.dtype}, expected float32"
        rates = each.double().exp() if vector == "A_log" else torch.nn.functional.softplus(each.double())
        least, greatest = float(rates.min()), float(rates.max())
        assert low <= least <= greatest <= high, f"{name} gives {least:.3g} … {greatest:.3g}, expected {low} … {high}"
        assert len(set(each.tolist())) == each.numel(), f"heads of {name} start alike: {each.tolist()}"


ROUTED = replace(SMALL_DSA, moe=Moe(experts=12, top_k=3, expert_hidden=20, score="sigmoid", selection_bias=True))
PLAIN: dict[str, tuple[Recipe, Mode, tuple[str, ...], str]] = {  # last names of tensors, and what they start as
    "skip": (SMALL, "nemo_native", ("D",), "one"),
    "skip-custom-mixers": (SMALL, "author_dp", ("D",), "one"),
    "offsets": (SMALL, "author_dp", ("b_bias", "c_bias"), "one"),
    "recurrence": (SMALL, "nemo_native", ("W",), "the identity"),
    "biases": (ROUTED, "nemo_native", ("bias",), "zero"),
    "streams": (EVERYTHING, "nemo_native", ("alpha",), "0.01"),
}


@contract(
    "PAR-04j", asks="initial", cases=PLAIN, source="arXiv 2405.21060, 2603.14360, 2603.15569, 2512.24880; mamba-ssm"
)
def what_is_not_drawn_starts_plain(
    stack: Training, recipe: Recipe, mode: Mode, names: tuple[str, ...], value: str
) -> None:
    """D and the biases of B and C start at 1, the transition W of a recurrence as the identity, the biases of routers
    and norms at 0, and the gates of hyper-connections at 0.01.

    None of it shows in the first loss. With D at 0 a block passes nothing of a token on but what its state holds, and
    with a W that is drawn like a matrix a state keeps nothing of the token before.
    """
    every = _initial(stack, recipe, mode)
    found = {name: each for name, each in every.items() if name.rsplit(".", 1)[-1] in names and ".conv" not in name}
    assert found, f"no tensor is called {' or '.join(names)}"
    for name, each in found.items():
        numbers = {"one": 1.0, "zero": 0.0, "0.01": 0.01}
        want = torch.eye(each.shape[-1]) if value == "the identity" else torch.tensor(numbers[value])
        off = float((each.double() - want).abs().max())
        assert off < 1e-6, f"{name} starts off by {off:.3g} from {value}"


@contract("PAR-04k", asks="initial", cases=DRAWN, source="F14; torch: nn.init")
def what_is_drawn_is_centred(stack: Training, recipe: Recipe, mode: Mode) -> None:
    """The mean of every randomly initialised weight of two or more dims lies within six standard errors of 0.

    A uniform draw over 0 … 1 in place of -1 … 1 has the same spread, and every output of its channel the same sign.
    """
    for name, each in _drawn_tensors(stack, recipe, mode).items():
        if each.dim() < 2:
            continue
        mean, error = float(each.double().mean()), float(each.double().std()) / math.sqrt(each.numel())
        assert abs(mean) < 6 * error, f"{name} is drawn around {mean:.3g}, and its standard error is {error:.3g}"


DEEPENED: dict[str, tuple[Recipe, Mode]] = {
    "every-family": (replace(SMALL, pattern="AEMR", depth=4), "nemo_native"),
    "custom-mixers": (replace(SMALL, pattern="AEMR", depth=4), "author_dp"),
    "dense": (DENSE, "nemo_native"),
}


@contract("PAR-04h", asks=("built", "initial"), cases=DEEPENED, source="F14; INI-09")
def layers_write_smaller_together(stack: Training, recipe: Recipe, mode: Mode) -> None:
    """If one kind of layer has weights that start smaller when the model is four times as deep, every kind of layer has
    such weights, smaller by the same factor.

    Stacks that scale what layers write to the residual stream (GPT-2) do it for every kind of layer, or deep models
    start with one kind that outweighs the others. A class that the initialiser does not know keeps the usual scale, and
    no first loss shows it.
    """
    shallow, deep = (_scales(stack, each, mode) for each in (recipe, replace(recipe, depth=4 * recipe.depth)))
    factor = {kind: shallow[kind] / deep[kind] for kind in shallow.keys() & deep.keys()}
    most = {family: max(value for (of, _), value in factor.items() if of == family) for family, _ in factor}
    if max(most.values()) < 1.4:
        return  # nothing here depends on the depth
    for family, value in sorted(most.items()):
        largest = max(most.values())
        assert value > 0.75 * largest, (
            f"at four times the depth no weight of {family} starts smaller than by {value:.2f}, others by {largest:.2f}"
        )


def _scales(stack: Training, recipe: Recipe, mode: Mode) -> dict[tuple[str, str], float]:
    """Family of the layer (experts apart) and name of the tensor in it → the size of its elements; only drawn ones."""
    built = stack.built(recipe, mode)
    families = {layer.number: layer.family for layer in built.layers}
    drawn = _drawn_tensors(stack, recipe, mode)
    found: dict[tuple[str, str], list[float]] = {}
    for row in built.parameters:
        if row.layer is not None and row.role in ("matrix", "expert") and row.name in drawn:
            of = families[row.layer] + (" experts" if row.role == "expert" else "")
            kind = of, row.name.partition(f".{row.layer}.")[2]
            found.setdefault(kind, []).append(float(drawn[row.name].double().square().mean()))
    return {kind: math.sqrt(sum(each) / len(each)) for kind, each in found.items()}


TRAINED = {
    "every-letter": replace(LETTERS, mtp=Mtp(depth=1), mhc=Mhc(streams=2)),
    "every-letter-in-bf16": replace(LETTERS, dtype="bf16"),
    "tied": TIED,
    "dense": training_run.DENSE,
}


@contract(
    "PAR-04i", asks=("built", "initial", "train"), cases=TRAINED, needs=(), sheds=("packed",), source="F14; INI-13"
)
def a_run_starts_from_its_initial_weights(stack: Training, recipe: Recipe) -> None:
    """A run on one rank that is given no weights starts from `initial`: its first losses and gradients equal those of a
    run that is given the weights of `initial`.

    A framework that initialises a model once more after the stack, or what was loaded, or only the parts that it
    knows, trains another model than the one that was looked at.
    """
    given = (training_run.batch("first", recipe=recipe),)
    session = Session(recipe=recipe, steps=1, batches=given, observe=frozenset({"gradients"}))
    (drawn,) = stack.train(session).steps
    names = {row.name for row in stack.built(recipe, "nemo_native").parameters}
    whole = stack.initial(recipe, "nemo_native")
    weights = {name: each for name, each in whole.items() if name in names}
    (taken,) = stack.train(replace(session, weights=weights)).steps
    for name, loss in taken.losses.items():
        found = drawn.losses.get(name, float("nan"))
        assert abs(found - loss) <= 1e-6 * max(1.0, abs(loss)), (
            f"without given weights {name} is {found:.9g}, from the initial weights it is {loss:.9g}"
        )
    words = numerics.gradient_differences(
        "without given weights the gradient of", drawn.gradients, taken.gradients, FLOAT32
    )
    assert not words, words


@contract("PAR-04l", asks="initial", cases={"dense": (DENSE,)}, source="F14; F15")
def every_seed_draws_other_weights(stack: Training, recipe: Recipe) -> None:
    """No two of the seeds 0, 1, 7, 42, 1234, 1337 and 2^31 + 7 give the same initial weights.

    `seed or 1234` makes the runs of two seeds one run: the error bars of a study are too small, and nothing else shows
    it.
    """
    drawn = {seed: _initial(stack, replace(recipe, seed=seed), "nemo_native") for seed in SEEDS}
    for one, other in itertools.combinations(SEEDS, 2):
        alike = all(bool((each == drawn[other][name]).all()) for name, each in drawn[one].items())
        assert not alike, f"seeds {one} and {other} give the same initial weights"


LITTLE = replace(training_run.DENSE, name="dense-given", depth=2)
WRONGLY: dict[str, tuple[Literal["missing", "foreign", "misshapen"]]] = {
    "one-is-missing": ("missing",), "a-foreign-name": ("foreign",), "another-shape": ("misshapen",),
}  # fmt: skip


@contract("PAR-04m", asks=("built", "initial", "train"), cases=WRONGLY, source="F07; RSM-52")
def weights_that_do_not_fit_are_not_taken(stack: Training, how: Literal["missing", "foreign", "misshapen"]) -> None:
    """A run is refused, with the name, if it is given a tensor whose name or shape the model does not have. If it is
    given all weights but one, it is refused or starts that one from its initial value.

    `strict=False` leaves out what does not fit: a renamed tensor keeps the numbers of its memory, and the run trains.
    """
    rows = training_run.table(stack, LITTLE)
    weights = dict(training_run.drawn_weights(rows))
    name = next(row.name for row in rows if row.role == "matrix")
    matrix = numerics.tensor(weights.pop(name))
    asked = Session(
        recipe=LITTLE, steps=1, execution=Execution(precision="float64"),
        batches=(replace(training_run.batch("given", recipe=LITTLE), documents=None),),
    )  # fmt: skip
    if how != "missing":
        foreign = how == "foreign"
        wrong = {name: numerics.array(matrix if foreign else matrix[:-1])}
        wrong |= {f"{name}.of_another_model": numerics.array(matrix)} if foreign else {}
        refused = str(refusal_of(lambda: stack.train(replace(asked, weights=weights | wrong))))
        assert name in refused, f"the refusal does not name {name}: {refused}"
        return
    try:
        got = stack.train(replace(asked, weights=weights)).steps[0].losses["lm"]
    except Refused as error:
        unnamed = "" if name in str(error) else f"the refusal does not name {name}: {error}"
        require_none(unnamed)
        return
    initial = stack.initial(LITTLE, "nemo_native")[name]
    want = stack.train(replace(asked, weights=weights | {name: initial})).steps[0].losses["lm"]
    words = f"lm is {got:.9g} where {name} was not given, {want:.9g} with its initial value"
    assert abs(got - want) <= within(1e-9, FLOAT32.bound) * want, words
