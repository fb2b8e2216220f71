"""The arithmetic of the mesh: bijections, partitions, refusals, and what hostile degrees do to it."""

import random
from itertools import combinations
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.law._support.brute_force import DRAWS, borrowed, drawn, flaw_of_grid, flaw_of_partition, is_legal
from contracts.spec.codec import decode, encode
from contracts.spec.errors import Refused
from contracts.spec.topology import (
    Degrees,
    Kind,
    Layout,
    Mesh,
    gradient_reduction,
    grids,
    group_calls,
    topology,
)

LAYOUTS: tuple[Layout, ...] = ("own-axis", "borrowed")
KINDS: tuple[Kind, ...] = ("dense", "expert")
SETTINGS = settings(max_examples=150)


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """One to four axes of sizes 1 to 6: mostly non-square."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    return Mesh(axes=tuple("abcd"[: len(sizes)]), sizes=tuple(sizes))


@st.composite
def legal(draw: st.DrawFn) -> tuple[Degrees, int, Layout]:
    """Degrees with a world of at most some thousand ranks that they tile."""
    layout = draw(st.sampled_from(LAYOUTS))
    pp, tp, ep = draw(st.integers(1, 4)), draw(st.sampled_from((1, 2, 3, 4))), draw(st.integers(1, 6))
    cp = draw(st.integers(1, 3)) if layout == "borrowed" else 1
    etp = draw(st.sampled_from((0, 1, tp) if layout == "own-axis" else (0, 1, 2, tp)))
    replicas = draw(st.integers(1, 3))
    world = pp * tp * ep * replicas * (cp * (etp or tp) if layout == "borrowed" else 1)
    return Degrees(pp=pp, tp=tp, cp=cp, ep=ep, etp=etp), world, layout


@SETTINGS
@given(meshes())
def test_coordinates_are_a_bijection(mesh: Mesh) -> None:
    places = [mesh.coordinates(rank) for rank in range(mesh.world)]
    assert [mesh.rank(place) for place in places] == list(range(mesh.world))
    assert len({tuple(place.items()) for place in places}) == mesh.world


@SETTINGS
@given(meshes())
def test_the_last_axis_varies_fastest_and_the_first_slowest(mesh: Mesh) -> None:
    places = [tuple(mesh.coordinates(rank).values()) for rank in range(mesh.world)]
    assert places == sorted(places)


@SETTINGS
@given(meshes(), st.data())
def test_groups_over_any_axes_partition_the_world_in_ascending_order(mesh: Mesh, data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.sampled_from(mesh.axes)))
    groups = mesh.groups(*axes)
    assert flaw_of_partition(groups, mesh.world) is None
    assert all(list(members) == sorted(members) for members in groups)
    assert list(groups) == sorted(groups)
    kept = [axis for axis in mesh.axes if axis not in axes]
    for members in groups:
        assert len({tuple(mesh.coordinates(rank)[axis] for axis in kept) for rank in members}) == 1


@SETTINGS
@given(meshes())
def test_the_axes_of_a_mesh_are_a_grid(mesh: Mesh) -> None:
    assert flaw_of_grid({axis: mesh.groups(axis) for axis in mesh.axes}, mesh.axes, mesh.world) is None


@pytest.mark.parametrize("rank", [-1, 8, 10**30])
def test_a_rank_outside_the_mesh_has_no_coordinates(rank: int) -> None:
    with pytest.raises(Refused, match=r"must lie in 0 … 7"):
        Mesh(axes=("dp", "tp"), sizes=(2, 4)).coordinates(rank)


@pytest.mark.parametrize("place", [-1, 4])
def test_coordinates_outside_the_mesh_have_no_rank(place: int) -> None:
    with pytest.raises(Refused, match=r"tp = .*must lie in 0 … 3"):
        Mesh(axes=("dp", "tp"), sizes=(2, 4)).rank({"dp": 1, "tp": place})


@SETTINGS
@given(legal())
def test_every_axis_of_a_legal_topology_partitions_the_world(case: tuple[Degrees, int, Layout]) -> None:
    degrees, world, layout = case
    answer = topology(degrees, world, layout)
    for axis, groups in answer.groups.items():
        assert flaw_of_partition(groups, world) is None, axis
        assert {len(members) for members in groups} == {answer.sizes[axis]}
    expert = ("pp", "edp", "ep", "etp")
    dense = ("pp", "dp", "ep", "tp") if layout == "own-axis" else ("pp", "dp", "cp", "tp")
    for axes in (dense, expert):
        assert flaw_of_grid(answer.groups, axes, world) is None
        assert prod(answer.sizes[axis] for axis in axes) == world


@SETTINGS
@given(legal())
def test_every_group_is_created_once_and_serves_its_own_axes(case: tuple[Degrees, int, Layout]) -> None:
    answer = topology(*case)
    calls = group_calls(answer)
    assert len({call.members for call in calls}) == len(calls)
    assert {call.members for call in calls} == {members for groups in answer.groups.values() for members in groups}
    assert all(call.members in answer.groups[axis] for call in calls for axis in call.axes)


@SETTINGS
@given(legal())
def test_sums_of_a_kind_partition_the_world_and_share_one_divisor(case: tuple[Degrees, int, Layout]) -> None:
    degrees, world, layout = case
    for kind in KINDS:
        sums = [gradient_reduction(degrees, world, layout, rank, kind) for rank in range(min(world, 96))]
        assert all(rank in found.ranks for rank, found in enumerate(sums))
        assert {found.divisor for found in sums} == {topology(degrees, world, layout).dp * degrees.cp}
        for one, other in combinations({found.ranks for found in sums}, 2):
            assert not set(one) & set(other)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_topology_is_accepted_exactly_when_its_axes_tile_the_world(layout: Layout) -> None:
    refusals = {case: _refusal(*case, layout) for case in drawn(layout)}
    for (degrees, world), words in refusals.items():
        assert (words is None) == is_legal(degrees, world, layout), f"{degrees} on {world} ranks"
        assert words is None or str(world) in words
    accepted = sum(words is None for words in refusals.values())
    assert DRAWS // 3 < accepted < 2 * DRAWS // 3, "the table has both kinds in number"


def _refusal(degrees: Degrees, world: int, layout: Layout) -> str | None:
    try:
        grids(degrees, world, layout)
    except Refused as refused:
        return str(refused)
    return None


def test_the_brute_force_is_right_about_a_mesh_written_out_by_hand() -> None:
    assert borrowed(Degrees(pp=2, cp=2, ep=2, etp=1, tp=1), 8) == {
        "tp": {frozenset({rank}) for rank in range(8)},
        "cp": {frozenset(pair) for pair in ((0, 1), (2, 3), (4, 5), (6, 7))},
        "dp": {frozenset(pair) for pair in ((0, 2), (1, 3), (4, 6), (5, 7))},
        "pp": {frozenset(pair) for pair in ((0, 4), (1, 5), (2, 6), (3, 7))},
        "dp_cp": {frozenset(range(4)), frozenset(range(4, 8))},
        "etp": {frozenset({rank}) for rank in range(8)},
        "ep": {frozenset(pair) for pair in ((0, 1), (2, 3), (4, 5), (6, 7))},
        "edp": {frozenset(pair) for pair in ((0, 2), (1, 3), (4, 6), (5, 7))},
    }


@pytest.mark.parametrize(
    ("groups", "flaw"),
    [
        (((0, 1), (2, 3)), None),
        (((0, 1), (2,)), "rank 3 is in no group"),
        (((0, 1), (1, 2), (3,)), "rank 1 is in two groups"),
        (((0, 1, 2), (3,)), "groups have [1, 3] members"),
        (((0, 1), (2, 4)), "rank 4 is no rank of a world of 4"),
    ],
)
def test_a_partition_is_distinguished_from_what_is_none(groups: tuple[tuple[int, ...], ...], flaw: str | None) -> None:
    assert flaw_of_partition(groups, 4) == flaw


def test_axes_that_partition_and_are_no_grid_are_told_apart() -> None:
    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    assert flaw_of_grid({"a": rows, "b": columns}, ("a", "b"), 4) is None
    assert flaw_of_grid({"a": rows, "b": rows}, ("a", "b"), 4) == "a a and a b group share ranks 0 and 1"
    singles = tuple((rank,) for rank in range(4))
    assert flaw_of_grid({"a": rows, "b": singles}, ("a", "b"), 4) == (
        "a groups have 2 members, but the other axes leave 4 places on it"
    )


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ({"pp": 0}, ("pp",)),
        ({"tp": -2, "ep": 0}, ("tp", "ep")),
        ({"etp": -1}, ("etp",)),
        ({"sp": True}, ("sp",)),
        ({"pp": 0, "tp": 0, "cp": 0, "ep": 0, "etp": -1, "sp": True}, ("pp", "tp", "cp", "ep", "etp", "sp")),
    ],
)
def test_malformed_degrees_are_refused_all_at_once(asked: dict[str, int], fields: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as caught:
        Degrees(**asked)  # type: ignore[arg-type]
    assert caught.value.fields == fields


def test_ten_thousand_hostile_degrees_raise_nothing_but_refusals() -> None:
    dice = random.Random(20260407)
    odd = (-(10**30), -8, -1, 0, 1, 2, 3, 5, 8, 13, 64, 1024, 65537, 2**63, 10**30)
    refused = accepted = 0
    for _ in range(10_000):
        names = {name: dice.choice(odd) for name in ("pp", "tp", "cp", "ep", "etp") if dice.random() < 0.4}
        world, layout = dice.choice((*odd, 512, 4096)), dice.choice(LAYOUTS)
        try:
            both = grids(Degrees(**names, sp=dice.random() < 0.2), world, layout)
        except Refused:
            refused += 1
        else:
            assert both.dense.world == both.expert.world == world
            accepted += 1
    assert accepted > 500
    assert refused > 5000


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@SETTINGS
@given(st.dictionaries(st.sampled_from(("pp", "tp", "cp", "ep", "etp", "sp", "dp")), _JSON) | _JSON)
def test_degrees_of_any_json_are_degrees_or_refused(data: object) -> None:
    try:
        degrees = decode(Degrees, data)
    except Refused:
        return
    assert decode(Degrees, encode(degrees)) == degrees
