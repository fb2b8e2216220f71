"""Compare two traces: the first tensor that differs, in the order of computation, and by how much over rounding.

A sum in another order rounds otherwise. Its effect on a tensor is measured from runs of the reference whose weights
were moved by one unit in the last place (`--repeat`); without such runs a floor stands in, from the dtype and the
magnitudes. No error is ever divided by a norm that may be zero.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from contracts.observe.cut import cut, padded
from contracts.observe.merged import Clip, Merged, Whole, last
from contracts.observe.pairing import paired
from contracts.observe.sketch import distance

COMPILED = "the forward pass draws random numbers (dropout?), and compiled code draws others"
CUT, PADDED = ", cut along the sequence in one of the runs", ", padded to another length in one of the runs"
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
UNITS = 64.0
"""Roundings of the whole tensor that the floor allows in the first step; eight times as many in each later one."""
OF_AN_UPDATE = 0.02
"""The part of an update that the floor allows: Adam divides by a root, so an element whose gradient is only rounding
moves as far as any other. `--repeat` measures it instead."""
FLIPS, FLIPS_OF_ALL = 2, 0.01
"""Choices of experts that rounding may decide otherwise, at least and as a part of all: scores that tie but for it."""
OVER_MEASURED = 8.0
"""How far beyond the largest measured effect of rounding a difference must lie."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that differs: in which step and phase, where, and in words by how much."""

    step: int
    phase: str
    name: str
    words: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.phase}: {self.name}: {self.words}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two traces compared.

    Args:
        differences: in the order of computation, those of the first phase that has any.
        agreed: what agreed before it, phase by phase: how many tensors of how many.
        incomparable: why the numbers cannot be compared from some step on; empty where they can.
        unseen: what one of them has and the other has not, or could not be placed, by how often.
        paired: names of the second run → those of the reference that they were taken for.
        compared: how many pairs were compared, by what they are.
        nothing: the phases in which no pair was compared. Without a difference, the runs are not comparable then.
    """

    differences: tuple[Difference, ...] = ()
    agreed: tuple[str, ...] = ()
    incomparable: str = ""
    unseen: Mapping[str, int] = field(default_factory=dict)
    compared: Mapping[str, int] = field(default_factory=dict)
    nothing: tuple[str, ...] = ()
    paired: Mapping[str, str] = field(default_factory=dict)


FLOOR = {
    "initial weights": ("initial weights",), "the forward pass": ("outputs", "losses"), "gradients": ("gradients",),
    "updated weights": ("updated weights",),
}  # fmt: skip
"""What must be compared in a step, by the phases one of which must have a pair; initial weights in the first one."""
PAIRS = {"output of module": "outputs", "gradient": "gradients"}
"""What the pairs of a phase are called, if not as the phase."""


def compare(reference: Merged, other: Merged, repeats: Sequence[Merged] = ()) -> Comparison:
    """Compare a run with a reference run, phase by phase, until something differs."""
    steps = min(reference.steps, other.steps)
    if not steps:
        why = "a run has no whole step: a forward and a backward pass and an optimizer's step"
        return Comparison(incomparable=why, nothing=tuple(FLOOR))
    other, pairs = paired(reference, other)
    found = _Phases(reference, other, repeats)
    differences, why = found.walk(steps)
    nothing = () if differences or why else found.nothing(steps)
    if nothing:
        why = f"no pair was compared of {', '.join(nothing)}{found.leftover()}"
    if not (differences or why):
        why = _broken_off(reference, other)
    return Comparison(
        differences=tuple(differences), agreed=tuple(found.agreed), incomparable=why, unseen=found.unseen,
        compared=found.counts(), nothing=nothing, paired=pairs,
    )  # fmt: skip


def _broken_off(one: Merged, other: Merged) -> str:
    """In words that the run of fewer steps did not come to its end; empty if both runs have as many, or it did."""
    short = min(one, other, key=lambda each: each.steps)
    for rank in short.trace.ranks if one.steps != other.steps else ():
        if rank.end is None or rank.end["error"]:
            how = "died" if rank.end is None else f"ended with {rank.end['error']}"
            which = "reference" if short is one else "other run"
            return f"both agree up to step {short.steps}, and then rank {rank.rank} of the {which} {how}"
    return ""


def _incomparable(one: Merged, other: Merged, step: int) -> str:
    staged = one.staged or other.staged
    rows, its = one.rows(step, ids=staged), other.rows(step, ids=staged)
    if rows != its and not _other_form(one, other, step):
        missing, more = rows - its, its - rows
        return (
            f"the inputs differ: {sum(rows.values())} rows and {sum(its.values())} rows, of which "
            f"{sum(missing.values())} are only in the first run{_whose(one, step, missing, ids=staged)} and "
            f"{sum(more.values())} only in the second{_whose(other, step, more, ids=staged)}{_drawn(one, other)}"
        )
    drawn = [merged for merged in (one, other) if any(line["drawn"] for _, line in merged.lines("drawn", step))]
    if drawn:
        states = [[line["random"] for _, line in merged.lines("input", step)] for merged in (one, other)]
        if states[0] != states[1]:
            return "the forward pass draws random numbers (dropout?), and the random states differ"
    return ""


def _other_form(one: Merged, other: Merged, step: int) -> str:
    """The form in which two runs have the same rows, in words; empty if the rows differ."""
    if cut(one, other, step) or cut(other, one, step):
        return CUT
    return PADDED if padded(one, other, step) else ""


def _whose(merged: Merged, step: int, rows: Counter[int], *, ids: bool) -> str:
    """Where the first of such rows was consumed."""
    for rank, line in merged.lines("input", step):
        for at, row in enumerate(line["ids"] if ids and "ids" in line else line["rows"]):
            if row in rows:
                return f" (such as row {at} of microbatch {line['microbatch']} on rank {rank.rank})"
    return ""


def _drawn(one: Merged, other: Merged) -> str:
    """In words that a loader draws other numbers of its dataset in each of two runs in one layout."""
    for kind, words in (("split", "splits its dataset"), ("drawn-rows", "orders its dataset")):
        mine, theirs = ({rank.rank: [number for line in rank.of(kind) for number in line["numbers"]]
                         for rank in each.trace.ranks} for each in (one, other))  # fmt: skip
        for rank in mine if (one.trace.world, one.behind) == (other.trace.world, other.behind) else ():
            pairs = [*zip(mine[rank], theirs.get(rank, ()), strict=False)]
            if any(own != its for own, its in pairs):
                numbers = " and ".join(f"{[*each][:3]}" for each in zip(*pairs, strict=True))
                return f"; on rank {rank} each run {words} otherwise ({numbers} …): is that drawn without a seed?"
    return ""


class _Phases:
    """The phases of a step. Each gives its differences, or appends to `agreed`."""

    def __init__(self, one: Merged, other: Merged, repeats: Sequence[Merged]) -> None:
        self.one, self.other, self.repeats = one, other, repeats
        self.agreed: list[str] = []
        self.unseen: dict[str, int] = {}
        self.compared: Counter[tuple[str, int]] = Counter()
        self.flipped = self.form = ""

    def walk(self, steps: int) -> tuple[Sequence[Difference], str]:
        """The first differences in so many steps, or why no more can be compared."""
        if begun := [*self.trained(), *self.weights()]:
            return begun, ""
        for step in range(1, steps + 1):
            if why := _incomparable(self.one, self.other, step):
                return (), f"step {step}: {why}"
            self.compared["steps", step] += 1
            rows, its = (sum(each.rows(step).values()) for each in (self.one, self.other))
            same = self.one.rows(step) == self.other.rows(step)
            self.form = "" if same else _other_form(self.one, self.other, step)
            self.agreed.append(f"step {step}: inputs ({min(rows, its)} rows{self.form})")
            for phase in (self.modes, self.forward, self.loss, self.gradients, self.settings, self.updates):
                differences = phase(step)
                if self.flipped:
                    return (), f"step {step}: {self.flipped}"
                if differences and self._compiled(step):
                    return (), f"step {step}: {COMPILED}"
                if differences:
                    return differences, ""
        self._miss("step of only one run", abs(self.one.steps - self.other.steps))
        return (), ""

    def nothing(self, steps: int) -> tuple[str, ...]:
        """The phases of which no pair was compared in some step."""
        return tuple(
            name for name, of in FLOOR.items()
            if any(not sum(self.compared[each, step] for each in of)
                   for step in range(1, 2 if name == "initial weights" else steps + 1))
        )  # fmt: skip

    def leftover(self) -> str:
        """A name of each run that the other has not, and what to do about it."""
        one, other = ({name for _, line in each.lines("root") for name in (*line["trainable"], *line["frozen"])}
                      for each in (self.one, self.other))  # fmt: skip
        if not one - other or not other - one:
            return ""
        return f" ({min(one - other)} is not in one run, {min(other - one)} not in the other: --rename A=B pairs them)"

    def counts(self) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for (what, _), count in self.compared.items():
            found[what] += count
        return dict(found)

    def trained(self) -> Iterator[Difference]:
        """Parameters that one run trains and the other has frozen."""
        want, got = ({name: word for _, line in each.lines("root") for word in ("trainable", "frozen")
                      for name in line[word]} for each in (self.one, self.other))  # fmt: skip
        for name, word in want.items():
            if got.get(name, word) != word:
                words = f"is {got[name]}, and {word} in the reference"
                yield Difference(step=1, phase="what is trained", name=name, words=words)

    def weights(self) -> list[Difference]:
        one, other = self.one.tensors("weight", 1), self.other.tensors("weight", 1)
        floors = {name: 4 * _eps(each, other.get(name)) * each.norm for name, each in one.items()}
        return self._tensors("initial weights", 1, one, other, one, floors, [])

    def _compiled(self, step: int) -> bool:
        """Whether random numbers are drawn in a step that only one of the runs has compiled."""
        compiled = {any(line.get("compiled") for _, line in each.lines("root")) for each in (self.one, self.other)}
        drawn = any(line["drawn"] for each in (self.one, self.other) for _, line in each.lines("drawn", step))
        return len(compiled) > 1 and drawn

    def modes(self, step: int) -> list[Difference]:
        """Modules that compute otherwise in evaluation mode, which one run has in it and the other has not."""
        names = set.intersection(*({line["name"] for _, line in each.lines("forward", step)}
                                   for each in (self.one, self.other)))  # fmt: skip
        want, got = ({name: rank.rank for rank, line in reversed(each.lines("modes", step))
                      for name in line.get("matter", ())} for each in (self.one, self.other))  # fmt: skip
        return [
            Difference(step=step, phase="modes", name=name, words=f"{words} on rank {ranks[name]}")
            for ranks, others, words in (
                (got, want, "is in evaluation mode, and in training mode in the reference,"),
                (want, got, "is in training mode, and in evaluation mode in the reference"),
            )
            for name in sorted(names & ranks.keys() - others.keys())
        ]  # fmt: skip

    def forward(self, step: int) -> list[Difference]:
        one, other = self.one.outputs(step), self.other.outputs(step)
        floors = {name: self._units(step) * _eps(each, other.get(name)) * each.norm for name, each in one.items()}
        repeats = [each.outputs(step) for each in self.repeats]
        found = self._tensors("output of module", step, one, other, one, floors, repeats)
        return self._routing(step, [*one], found)

    def _routing(self, step: int, order: list[str], found: list[Difference]) -> list[Difference]:
        """The differences of outputs, or what stands before them: a router that chose other experts from inputs that
        agree. A few choices may be ties that rounding decides, and the step is not comparable then."""
        one, other = self.one.routed(step), self.other.routed(step)
        differ = [name for name in one if name in other and one[name] != other[name]]
        router = min(differ, key=lambda name: order.index(name) if name in order else len(order), default="")
        if not router or (found and router in order and order.index(found[0].name) < order.index(router)):
            return found
        total = sum(one[router])
        moved = sum(abs(its - own) for own, its in itertools.zip_longest(one[router], other[router], fillvalue=0)) // 2
        words = f"{moved} of {total} assignments go to other experts"
        if moved > max(FLIPS, FLIPS_OF_ALL * total):
            return [Difference(step=step, phase="routing", name=router, words=words), *found]
        self.flipped = f"{words} at {router}, and nothing seen before it differs: rounding may decide ties"
        return []

    def loss(self, step: int) -> list[Difference]:
        one, other = self.one.loss(step), self.other.loss(step)
        if one is None or other is None:
            self._miss("a loss that is no scalar")
            return []
        seen = [abs(each.loss(step) - one) for each in self.repeats if each.loss(step) is not None]  # type: ignore[operator]
        dtype = max(
            (EPS[each] for whole in self.one.outputs(step).values() for each in whole.dtypes), default=EPS["float32"]
        )
        bound = max([self._units(step) * dtype * abs(one), *(OVER_MEASURED * each for each in seen)])
        spread = self.other.sharers(step) / self.one.sharers(step)  # a share of the whole loss, or that of some rows
        off = str(one) != str(other) and not min(abs(one - other), abs(one - other * spread)) <= bound
        if off and (self.one.staged or self.other.staged):  # a sum over microbatches, or without another stage's part
            self._miss("a pipeline's loss that differs")
            return []
        self.compared["losses", step] += 1
        if off:
            words = f"{other:.9g}, and {one:.9g} in the reference; rounding explains {bound:.2g}"
            return [Difference(step=step, phase="loss", name="loss", words=words)]
        self.agreed.append(f"step {step}: loss ({one:.6g})")
        return []

    def gradients(self, step: int) -> list[Difference]:
        one, other = self.one.tensors("gradient", step), self.other.tensors("gradient", step)
        order = _backwards(one, self.one.outputs(step))
        numel = sum(math.prod(each.shape) for each in one.values())
        typical = math.sqrt(sum(each.squares for each in one.values()) / max(1, numel))
        # all are clipped by one norm, and that of n elements is a float32 sum of n squares, off by about √n roundings
        norm = max([1.0, *(math.sqrt(math.prod(each.shape)) / UNITS for each in one.values())])
        weights = self.one.tensors("weight", 1)  # a gradient that is added up in float32 was computed in their dtype
        floors = {
            name: norm * self._units(step) * max(_eps(each, other.get(name)), _eps(weights.get(name, each), None))
            * max(each.norm, typical * math.sqrt(math.prod(each.shape)))
            for name, each in one.items()
        }  # fmt: skip
        repeats = [each.tensors("gradient", step) for each in self.repeats]
        found = self._tensors("gradient", step, order, other, one, floors, repeats)
        factor = _factor([(one[each.name], other[each.name]) for each in found])
        return [replace(each, words=f"{each.words}{factor}") for each in found] or [*self.norms(step, floors)]

    def norms(self, step: int, floors: Mapping[str, float]) -> Iterator[Difference]:
        """Differences of the norms that clipping read, and of its limits: no gradient shows a factor of all that is
        clipped. `floors` are for the gradients after it."""
        one, other, *repeats = (_clips(each, step) for each in (self.one, self.other, *self.repeats))
        self._miss("norm of gradients that only one run clips together", len(one.keys() ^ other.keys()))
        for names in (each for each in one if each in other):
            own, its = one[names], other[names]
            seen = [OVER_MEASURED * abs(each[names].norm - own.norm) for each in repeats if names in each]
            floor = math.hypot(*(floors.get(name, 0.0) for name in names)) / (own.factor or 1.0)
            bound, words = max([floor, *seen]), ""
            self.compared["norms", step] += 1
            if math.isfinite(own.norm) and not abs(its.norm - own.norm) <= bound:
                times = its.norm / own.norm if own.norm else math.inf
                words = f"the norm that clipping read is {times:.4g} times that of the reference: {its.norm:.6g}, and "
                words += f"{own.norm:.6g}; rounding explains {bound:.2g}"
            elif its.most != own.most:
                words = f"they are clipped at {its.most:g}, and at {own.most:g} in the reference"
            if words:
                yield Difference(step=step, phase="clipping", name=f"{len(names)} gradients", words=words)
            else:
                self.agreed.append(f"step {step}: norm of {len(names)} gradients before clipping ({own.norm:.6g})")

    def settings(self, step: int) -> list[Difference]:
        """Learning rates and decays, by parameter and rank."""
        want = {
            name: (line["lr"], line["decay"]) for _, line in self.one.lines("group", step) for name in line["names"]
        }
        wrong: dict[tuple[float, ...], list[tuple[str, int]]] = {}
        same = 0
        for rank, line in self.other.lines("group", step):
            for name in line["names"]:
                same += name in want
                if name in want and (line["lr"], line["decay"]) != want[name]:
                    wrong.setdefault((line["lr"], line["decay"], *want[name]), []).append((name, rank.rank))
        found = [
            Difference(step=step, phase="settings of the optimizer", name=whose[0][0],
                       words=_settings(numbers, [name for name, _ in whose], [rank for _, rank in whose]))
            for numbers, whose in wrong.items()
        ]  # fmt: skip
        self.compared["rates", step] += len(want.keys() & self._rated(step))
        if not found and same:
            self.agreed.append(f"step {step}: learning rates and decays ({len(want.keys() & self._rated(step))})")
        return found

    def _rated(self, step: int) -> set[str]:
        return {name for _, line in self.other.lines("group", step) for name in line["names"]}

    def updates(self, step: int) -> list[Difference]:
        one, other = self.one.tensors("updated", step), self.other.tensors("updated", step)
        before = self.one.tensors("weight", 1) if step == 1 else self.one.tensors("updated", step - 1)
        floors = {}
        for name, each in one.items():
            moved = 0.0
            if name in before and before[name].sketch is not None and each.sketch is not None:
                moved = distance(each.sketch, before[name].sketch)
            part = 0.0 if self.repeats else OF_AN_UPDATE * moved
            floors[name] = max(self._units(step) * _eps(each, other.get(name)) * each.norm, part)
        repeats = [each.tensors("updated", step) for each in self.repeats]
        return self._tensors("updated weights", step, one, other, one, floors, repeats)

    def _tensors(
        self, phase: str, step: int, order: Iterable[str], others: Mapping[str, Whole], wants: Mapping[str, Whole],
        floors: Mapping[str, float], repeats: Sequence[Mapping[str, Whole]],
    ) -> list[Difference]:  # fmt: skip
        found, same = [], 0
        self._miss(f"{phase} of only one run", len(wants.keys() ^ others.keys()))
        for name in order:
            if name not in others:
                continue
            measured = [_apart(wants[name], each[name]) for each in repeats if name in each]
            known = [each for each in measured if each is not None]
            bound = max([floors[name], *(OVER_MEASURED * each for each in known)])
            words = self._differs(phase, wants[name], others[name], bound)
            self.compared[PAIRS.get(phase, phase), step] += words is not None
            if words:
                words += _elements(wants[name], others[name])
                found.append(Difference(step=step, phase=phase, name=name, words=words))
            else:
                same += words is not None
        if not found and same:
            self.agreed.append(f"step {step}: {phase} ({same})")
        return found

    def _differs(self, phase: str, want: Whole, got: Whole, bound: float) -> str | None:
        """How a tensor differs; empty where it does not, None where nobody can say."""
        if phase == "output of module" and self.form:
            return self._of_parts(want, got, bound)
        if want.shape != got.shape:
            if phase == "output of module":
                self._miss("outputs of another shape")
                return None
            return self._shards(phase, want, got, bound)
        if got.unlike and got.unlike != want.unlike:
            first, second = got.unlike[0]
            ranks = sorted({second for _, second in got.unlike})
            also = "" if len(ranks) == 1 else f" (and {len(ranks) - 1} more ranks)"
            return f"rank {second} holds other bits than rank {first}{also}, and both hold the same part"
        apart = _by_rank(want, got) if got.unlike else _apart(want, got)
        if apart is not None and not apart <= bound and not got.unlike:  # each rank may have a part of a sum
            sums = itertools.product((want, want.summed), (got, got.summed))
            others = [_apart(one, other) for one, other in sums if one is not None and other is not None]
            apart = min([apart, *(each for each in others if each is not None and not math.isnan(each))])
        if apart is None:
            self._miss(f"{phase} without a sketch")
            return None
        if math.isnan(apart) or apart > bound:
            over = f", {apart / bound:.3g} times as much" if bound else ""
            return f"differs by {apart:.3g} of {want.norm:.3g}; rounding explains {bound:.2g}{over}"
        return ""

    def _shards(self, phase: str, want: Whole, got: Whole, bound: float) -> str | None:
        """How parts that ranks hold, as plain tensors, differ from the whole tensor: by their norm together."""
        cut = [axis for axis, (one, its) in enumerate(zip(want.shape, got.shape, strict=False)) if one != its]
        held = {str(line["bits"]): float(line["squares"]) for _, line in got.holders}
        count, rest = divmod(math.prod(want.shape), max(1, math.prod(got.shape)))
        if len(want.shape) != len(got.shape) or len(cut) != 1 or rest or not 1 < count <= len(got.holders):
            return f"shape {got.shape}, and {want.shape} in the reference"
        squares = sum(held.values())
        if len(held) < count and squares not in (0.0, float(math.prod(got.shape))):  # zeros and ones are all alike
            return f"{len(got.holders)} ranks hold {len(held)} different parts of shape {got.shape} of {want.shape}"
        if len(held) != count:
            self._miss(f"{phase} of which ranks hold equal parts")
            return None
        apart = abs(math.sqrt(squares) - want.norm)
        words = f"the parts of {count} ranks have the norm {math.sqrt(squares):.6g} together, and {want.norm:.6g}"
        return "" if apart <= bound else f"{words} in the reference"

    def _of_parts(self, want: Whole, got: Whole, bound: float) -> str | None:
        """How outputs differ whose rows are cut in one run: by their norm over all rows."""
        if self.form == PADDED or not want.batched or not got.batched:
            self._miss(
                f"outputs of rows{self.form}" if self.form == PADDED else "outputs of parts of rows, without a batch"
            )
            return None
        apart = abs(want.norm - got.norm)
        words = f"has the norm {got.norm:.6g} over all rows, and {want.norm:.6g} in the reference"
        return "" if apart <= bound else f"{words}; rounding explains {bound:.2g}"

    def _units(self, step: int) -> float:
        return UNITS * 8.0 ** (step - 1)

    def _miss(self, what: str, count: int = 1) -> None:
        if count:
            self.unseen[what] = self.unseen.get(what, 0) + count


def _clips(merged: Merged, step: int) -> dict[tuple[str, ...], Clip]:
    """By the gradients that are clipped together, the norm that all ranks read alike: by hand, each may have a part."""
    found: dict[tuple[str, ...], list[Clip]] = {}
    for each in (each for mine in merged.clips(step).values() for each in last(mine)):
        found.setdefault(each.names, []).append(each)
    return {
        names: same[0] for names, same in found.items()
        if all(each.most == same[0].most and math.isclose(each.norm, same[0].norm, rel_tol=1e-6) for each in same)
    }  # fmt: skip


def _settings(numbers: tuple[float, ...], names: Sequence[str], ranks: Sequence[int]) -> str:
    """Rate and decay, on which ranks, those of the reference, and of how many parameters more."""
    rate, decay, its_rate, its_decay = map(float, numbers)  # one that is not finite is a text in a trace
    several, more = sorted(set(ranks)), len(set(names)) - 1
    where = f"ranks {several[0]} … {several[-1]}" if len(several) > 1 else f"rank {several[0]}"
    also = f"; likewise {more} more" if more else ""
    return (
        f"learning rate {rate:g} and decay {decay:g} on {where}, and {its_rate:g} and {its_decay:g} in the "
        f"reference{also}"
    )


def _factor(pairs: Sequence[tuple[Whole, Whole]]) -> str:
    """In words by how many times all that differ are greater or smaller, if that is one whole number."""
    ratios = [
        its.norm / own.norm for own, its in pairs if own.norm and own.sketch is not None and its.sketch is not None
    ]
    factor = ratios[0] if len(ratios) == len(pairs) > 0 else 0.0
    times = max(factor, 1 / factor) if factor else 0.0
    near = round(times) > 1 and math.isclose(times, round(times), rel_tol=1e-3)
    exact = all(distance(its.sketch, factor * own.sketch) <= 1e-3 * its.norm for own, its in pairs) if near else False
    every = "all that differ are" if len(pairs) > 1 else "it is"
    words = f"{round(times)} times" if factor > 1 else f"1/{round(times)} of"
    return f"; {every} {words} that of the reference" if exact else ""


def _elements(want: Whole, got: Whole) -> str:
    """Which elements differ, where both runs kept the tensor (`--full`)."""
    if want.shape != got.shape or want.values is None or got.values is None:
        return ""
    apart = (got.values.double() - want.values.double()).abs().nan_to_num(math.inf)
    flat = int(apart.argmax())
    at: list[int] = []
    index = flat
    for size in reversed(want.shape):
        index, last = divmod(index, size)
        at.insert(0, last)
    one, other = (float(each.values.reshape(-1)[flat]) for each in (want, got))
    return f"; {int((apart > 0).sum())} of {apart.numel()} elements differ, most at {at}: {other:.6g}, and {one:.6g}"


def _apart(one: Whole, other: Whole) -> float | None:
    """How far two tensors are apart; None if nobody can say."""
    if one.sketch is None or other.sketch is None:
        finite = math.isfinite(one.squares), math.isfinite(other.squares)
        return None if finite[0] == finite[1] else math.nan
    return distance(one.sketch, other.sketch)


def _by_rank(one: Whole, other: Whole) -> float | None:
    """How far what is another on each rank, in both runs, is apart on the rank on which it is most."""
    most = 0.0
    for mine, its in ((one.every.get(place), other.every.get(place)) for place in one.every.keys() | other.every):
        if mine is None or its is None or None in (mine[1]["sketch"], its[1]["sketch"]):
            if mine is None or its is None or mine[1]["bits"] != its[1]["bits"]:
                return None
            continue
        most = max(most, distance(mine[0].sketch(mine[1]["sketch"]), its[0].sketch(its[1]["sketch"])))
    return most


def _eps(one: Whole, other: Whole | None) -> float:
    dtypes = (*one.dtypes, *(other.dtypes if other else ()))
    return max((EPS.get(each, 0.0) for each in dtypes), default=0.0)


def _backwards(gradients: Mapping[str, Whole], outputs: Mapping[str, Whole]) -> dict[str, Whole]:
    """Gradients in the order of the backward pass: against that in which their modules ran."""
    ran = {name: at for at, name in enumerate(outputs)}
    last = -1
    return dict(sorted(gradients.items(), key=lambda each: -ran.get(each[0].rpartition(".")[0], last)))


def as_fields(comparison: Comparison) -> dict[str, object]:
    """The comparison for JSON."""
    apart = [vars(each) for each in comparison.differences]
    return vars(comparison) | {"differences": apart, "unseen": dict(comparison.unseen)}


def lines(comparison: Comparison, names: tuple[str, str], most: int = 10) -> Iterator[str]:
    """The comparison in lines; the last one is the answer."""
    reference, other = names
    if comparison.paired:
        (theirs, ours), *rest = comparison.paired.items()
        yield f"paired  {theirs} with {ours}" + (f", and {len(rest)} more parameters" if rest else "")
    for line in comparison.agreed:
        yield f"agrees  {line}"
    for what, times in sorted(comparison.unseen.items()):
        yield f"unseen  {times} × {what}"
    count = counted(comparison)
    if comparison.incomparable:
        yield f"NOT COMPARABLE: {comparison.incomparable}; {count}"
        return
    for each in comparison.differences[:most]:
        yield f"differs {each}"
    if len(comparison.differences) > most:
        yield f"        and {len(comparison.differences) - most} more of the same phase"
    if comparison.differences:
        yield f"DIFFERENT: {other} from {reference}, first in {comparison.differences[0]}; {count}"
    else:
        yield f"EQUAL: {other} does what {reference} does; {count}"


def counted(comparison: Comparison) -> str:
    """How much was compared, and how much was not."""
    compared = [
        f"{count} {what if count > 1 else what.removesuffix('es' if what == 'losses' else 's')}"
        for what, count in comparison.compared.items()
        if count
    ]
    left = sum(comparison.unseen.values())
    return f"compared: {', '.join(compared) or 'nothing'}" + (f"; not compared: {left}, listed above" if left else "")
