"""When two runs may be compared, and what a comparison reports (CMP)."""

import math
from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.recorded_runs import RECEIPT, on_host, with_component
from contracts.spec import Degrees
from contracts.spec.receipt import Backend, Component, Evidence, Part, Receipt

BRINGUP = "bringup: anything missing one of the three is a rumor"
MODAL = "modal: changed identity means the class changed, not a regression"

FASTER = replace(RECEIPT, tokens_per_second=81_920.0)  # five quarters of 65 536


def _lane(receipt: Receipt, **changes: str | None) -> Receipt:
    return replace(receipt, lane=replace(receipt.lane, **changes))  # type: ignore[arg-type]  # names of its fields


# → each part that differs, with its value in the base and in the candidate (None: not stated).
APART: dict[str, tuple[Receipt, Receipt, dict[Part, tuple[str | None, str | None]]]] = {
    "another-region": (
        RECEIPT, on_host(FASTER, "bench-1@europe-west4-a"), {"host lineage": ("us-west1-c", "europe-west4-a")}
    ),
    "another-box-of-one-region": (
        RECEIPT, on_host(FASTER, "bench-2@us-west1-c"), {"host lineage": ("bench-1", "bench-2")}
    ),
    "host-not-said": (RECEIPT, on_host(FASTER, None), {"host lineage": ("bench-1", None)}),
    "neither-says-its-host": (on_host(RECEIPT, None), on_host(FASTER, None), {"host lineage": (None, None)}),
    "both-say-h200": (on_host(RECEIPT, "h200"), on_host(FASTER, "h200"), {"host lineage": (None, None)}),
    "another-family": (RECEIPT, _lane(FASTER, family="nam52-dense"), {"preset family": ("nam56r", "nam52-dense")}),
    "family-not-said": (_lane(RECEIPT, family=None), FASTER, {"preset family": (None, "nam56r")}),
    "empty-family": (_lane(RECEIPT, family=""), _lane(FASTER, family=""), {"preset family": (None, None)}),
    "another-regime": (RECEIPT, _lane(FASTER, regime="megatron"), {"launch regime": ("fsdp2", "megatron")}),
    "another-mode": (RECEIPT, _lane(FASTER, mode="author_dp"), {"launch regime": ("nemo_native", "author_dp")}),
    "not-compiled": (RECEIPT, _lane(FASTER, compile="none"), {"launch regime": ("regional", "none")}),
    "all-three": (
        RECEIPT,
        _lane(on_host(FASTER, "bench-2@us-west1-c"), family="nam52r", regime="megatron"),
        {"host lineage": ("bench-1", "bench-2"), "preset family": ("nam56r", "nam52r"),
         "launch regime": ("fsdp2", "megatron")},
    ),
}  # fmt: skip


@contract("CMP-01", asks="compare", cases=APART, source=BRINGUP)
def runs_of_two_classes_are_not_comparable(
    stack: Evidence, base: Receipt, candidate: Receipt, parts: dict[Part, tuple[str | None, str | None]]
) -> None:
    """Two runs are comparable only if both state the same host lineage, preset family and launch regime. Otherwise they
    are "not comparable", every differing or missing part is named with both values, and no ratio is given.

    "The H200" was two boxes with different software histories, and "dense" was three models. Their numbers went into
    one column, and a week went into a regression that was a change of host.
    """
    found = stack.compare(base, candidate)
    assert found.standing == "not comparable", (
        f"the runs are called {found.standing}; they differ in {', '.join(parts)}"
    )
    three = {"host lineage", "preset family", "launch regime"}
    named = {each.part: each for each in found.differences if each.part in three}
    assert named.keys() == parts.keys(), f"the comparison names {sorted(named)}, expected {sorted(parts)}"
    for part, (left, right) in parts.items():
        for said, value, whose in ((named[part].base, left, "base"), (named[part].candidate, right, "candidate")):
            assert value is None or value in (said or ""), (
                f"{part} of the {whose} is {said!r}, expected {value!r} in it"
            )
    assert found.ratio is None, f"a ratio of {found.ratio} is given despite another {', '.join(parts)}"


COMPARABLE: dict[str, tuple[Receipt, Receipt, float | None]] = {
    "faster": (RECEIPT, FASTER, 1.25),
    "slower": (FASTER, RECEIPT, 0.8),
    "other-run-and-preset-of-the-family": (
        RECEIPT, _lane(replace(FASTER, run="head"), preset="nam56r_h200_fp8_v1"), 1.25
    ),
    "other-revision": (
        RECEIPT,
        replace(FASTER, provenance=replace(
            FASTER.provenance, source=replace(FASTER.provenance.source, revision="aa0", dirty=False, changed=())
        )),
        1.25,
    ),
    "one-figure-withheld": (
        RECEIPT, replace(RECEIPT, tokens_per_second=None, withheld="a gradient norm was not finite"), None
    ),
}  # fmt: skip


@contract("CMP-01a", asks="compare", cases=COMPARABLE, source=BRINGUP)
def runs_of_one_class_compare(stack: Evidence, base: Receipt, candidate: Receipt, ratio: float | None) -> None:
    """Runs of one class (the same host lineage, preset family and launch regime) are compared whatever their names and
    revisions are. The ratio is candidate over base, and there is none if a figure was withheld.

    The revision is what a comparison is about. If it were part of the class, no change could be judged.
    """
    found = stack.compare(base, candidate)
    differ = "; ".join(map(str, found.differences))
    assert found.standing == "same class", f"the runs are called {found.standing}: {differ}"
    if ratio is None or found.ratio is None:
        assert found.ratio == ratio, f"the ratio is {found.ratio}, expected {ratio}"
    else:
        assert math.isclose(found.ratio, ratio), f"the ratio is {found.ratio}, expected {ratio}"


BESIDES: dict[str, tuple[Receipt, tuple[str, ...]]] = {  # a faster candidate → what the notes beside its ratio say
    "twice-the-world": (replace(FASTER, lane=replace(FASTER.lane, world=16)), ("8", "16")),
    "another-layout": (replace(FASTER, lane=replace(FASTER.lane, degrees=Degrees(tp=2, sp=True, ep=4))), ("ep",)),
    "a-narrower-model": (
        replace(FASTER, lane=replace(FASTER.lane, overrides={"moe.expert_hidden": "448"})), ("moe.expert_hidden", "448")
    ),
    "another-preset": (_lane(FASTER, preset="nam56r_h200_fp8_v1"), ("nam56r_h200_fp8_v1",)),
}  # fmt: skip


@contract("CMP-01b", asks="compare", cases=BESIDES, source=BRINGUP)
def what_moves_a_ratio_is_said_beside_it(stack: Evidence, candidate: Receipt, words: tuple[str, ...]) -> None:
    """Inside a class, a difference in world, degrees, overrides or preset is listed next to the ratio.

    Twice the GPUs give twice the tokens. One nickname for several models put a narrower model at the top of the table.
    """
    besides = stack.compare(RECEIPT, candidate).besides
    for word in words:
        assert any(word in each for each in besides), (
            f"the notes next to the ratio are {list(besides)}, expected {word!r} in them"
        )


@contract("CMP-01c", asks="compare", cases={"alike": (RECEIPT, FASTER)}, source=BRINGUP)
def nothing_is_said_beside_a_ratio_of_like_runs(stack: Evidence, base: Receipt, candidate: Receipt) -> None:
    """If two runs differ only in their measured figures, nothing is listed next to their ratio.

    Nobody reads a warning that is always there.
    """
    besides = stack.compare(base, candidate).besides
    assert not besides, f"the ratio of equal runs has the notes {list(besides)}"


_ATTENTION, _EXPERTS = RECEIPT.backends
_UNPROVEN = Component(name="megatron-core", version="0.19.2", build=None)

CHANGED: dict[str, tuple[Receipt, Receipt, Part, str]] = {
    "other-kernel-same-request": (
        RECEIPT,
        replace(FASTER, backends=(Backend(part="attention", requested="flash4", actual="flash4"), _EXPERTS)),
        "backend identity", "flash4",
    ),
    "a-backend-less": (RECEIPT, replace(FASTER, backends=(_ATTENTION,)), "backend identity", "experts"),
    "torch-moved": (
        RECEIPT, with_component(FASTER, Component(name="torch", version="2.13.0+cu132", build="sha256:11")),
        "runtime provenance", "2.13.0",
    ),
    "same-version-other-build": (
        RECEIPT, with_component(FASTER, Component(name="megatron-core", version="0.19.2", build="sha256:33")),
        "runtime provenance", "megatron-core",
    ),
    "build-proved-by-neither": (
        with_component(RECEIPT, _UNPROVEN), with_component(FASTER, _UNPROVEN), "runtime provenance", "megatron-core"
    ),
    "other-image": (
        RECEIPT, replace(FASTER, provenance=replace(FASTER.provenance, image="sha256:88bb")),
        "runtime provenance", "sha256:88bb",
    ),
    "other-driver": (
        RECEIPT, replace(FASTER, provenance=replace(
            FASTER.provenance, machine=replace(FASTER.provenance.machine, driver="595.10")
        )),
        "runtime provenance", "595.10",
    ),
}  # fmt: skip


@contract("CMP-02", asks="compare", cases=CHANGED, source=MODAL)
def a_changed_runtime_is_a_changed_class(
    stack: Evidence, base: Receipt, candidate: Receipt, part: Part, word: str
) -> None:
    """If a backend that ran or a runtime build differs, or cannot be proved equal, the class has changed: that part is
    named, and neither a ratio nor a regression is reported.

    An image was rebuilt under the same benchmark name and the next run was 6 % slower. No commit was at fault, and two
    were reverted. A checkout without its history has a version string and no proof.
    """
    found = stack.compare(base, candidate)
    assert found.standing == "changed class", f"the runs are called {found.standing}; {part} changed ({word})"
    said = [str(each) for each in found.differences if each.part == part]
    assert any(word in each for each in said), f"{part} does not name {word}: {said}"
    assert found.ratio is None, f"a ratio of {found.ratio} is given despite a changed {part}"
