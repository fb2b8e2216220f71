"""Which two features the contracts ask a stack for together, and which three axes of parallelism.

A pair that no case asks for is where two correct halves may go wrong together unseen. The needs of a case are read off
its recipe and its execution (`contracts.spec.needs`), so a new case counts by itself. A recipe that a check builds
without taking it as an argument is not seen: the counts are lower bounds.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from contracts.contract import Contract
from contracts.spec import FEATURES

Group = frozenset[str]

AXES = ("dp", "fsdp", "replicas", "tp", "sp", "cp", "ep", "etp", "pp", "interleaved", "microbatches", "recompute")
"""Of these three meet as well."""
_OF_EXPERTS = ("softmax", "sigmoid", "top-1", "selection-bias", "shared-expert", "route-scale", "balance-loss",
               "z-loss", "capacity", "ep", "own-axis", "borrowed", "ep-with-etp", "ep-without-fsdp")  # fmt: skip
APART: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "one recipe has one of them": (
        ("mla", "gqa"), ("mlp", "experts"), ("relu2", "swiglu"), ("softmax", "sigmoid"), ("adamw", "muon"),
        ("cosine", "linear", "constant", "WSD"), ("float64", "float32", "bf16", "fp16"), ("own-axis", "borrowed"),
        ("sp", "tp-without-sp"), ("own-data", "windows"), ("fsdp", "ep-without-fsdp"), ("ep", "etp-without-ep"),
        ("fsdp", "tp-without-fsdp"),
    ),
    "a bias that chooses experts needs sigmoids": (("selection-bias", "softmax"),),
    "sparse attention needs latent attention": (("dsa", "gqa"),),
    "latent attention has no KV groups": (("uneven-kv", "mla"),),
    "FP8 needs activations in bfloat16": tuple(("fp8", each) for each in ("float64", "float32", "fp16")),
    "dense MLPs have no router and no experts to spread": tuple(("mlp", each) for each in _OF_EXPERTS),
}  # fmt: skip
"""Reason → features of which no two can be asked for together."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The combinations of some size: those that can be asked for, and those of them that no case asks for."""

    size: int
    possible: tuple[Group, ...]
    missing: tuple[Group, ...]

    @property
    def covered(self) -> int:
        return len(self.possible) - len(self.missing)

    def as_json(self) -> dict[str, object]:
        missing = [sorted(each) for each in self.missing]
        return {"size": self.size, "possible": len(self.possible), "covered": self.covered, "missing": missing}


def asked_together(contracts: Iterable[Contract]) -> set[Group]:
    """What each case needs, of all cases and rungs."""
    return {each.features(case) for each in contracts for case in each.asked}


def pairs(asked: Iterable[Group], among: Sequence[str] = tuple(FEATURES), size: int = 2) -> Pairs:
    """The combinations of some features, against what cases need. A feature that no case needs is left out."""
    cases = [each & set(among) for each in asked]
    known = [name for name in among if any(name in each for each in cases)]
    seen = {frozenset(each) for case in cases for each in itertools.combinations(sorted(case), size)}
    never = {
        frozenset(two) for groups in APART.values() for names in groups for two in itertools.combinations(names, 2)
    }
    possible = tuple(each for each in map(frozenset, itertools.combinations(known, size)) if not _apart(each, never))
    return Pairs(size=size, possible=possible, missing=tuple(each for each in possible if each not in seen))


def _apart(group: Group, never: set[Group]) -> bool:
    return any(frozenset(two) in never for two in itertools.combinations(group, 2))


def table(contracts: Iterable[Contract], *, whole: bool = True) -> str:
    """Both counts as text; `whole` lists what is missing, by feature."""
    asked = asked_together(contracts)
    two, three = pairs(asked), pairs(asked, AXES, 3)
    lines = [
        f"pairs of features: {two.covered} of {len(two.possible)} are asked for together",
        f"three axes of parallelism: {three.covered} of {len(three.possible)} are asked for together",
    ]
    if whole:
        for found, number in ((two, "two"), (three, "three")):
            lines += ["", f"no case asks for these {number} together:", *_grouped(found)]
    return "\n".join(lines)


def _grouped(found: Pairs) -> Iterator[str]:
    """What is missing in the order of the features: all but the last of a group, and the last of all that begin so."""
    order = list(FEATURES)
    groups = [sorted(each, key=order.index) for each in found.missing]
    ordered = sorted(groups, key=lambda each: [*map(order.index, each)])
    for head, alike in itertools.groupby(ordered, key=lambda each: each[:-1]):
        yield f"  {' with '.join(head)}: {', '.join(each[-1] for each in alike)}"
