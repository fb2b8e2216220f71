"""The oracle of the mesh, and what the mesh refuses; TOPO judges what it accepts."""

import random

import pytest

from contracts.law._support.brute_force import DRAWS, borrowed, drawn, flaw_of_grid, flaw_of_partition, is_legal
from contracts.spec import (
    Degrees,
    Layout,
    Mesh,
    Refused,
    grids,
)

LAYOUTS: tuple[Layout, ...] = ("own-axis", "borrowed")


@pytest.mark.parametrize("sizes", [(1,), (6,), (2, 4), (3, 1, 5), (4, 3, 2, 5)])
def test_coordinates_are_a_bijection(sizes: tuple[int, ...]) -> None:
    mesh = Mesh(axes=tuple("abcd"[: len(sizes)]), sizes=sizes)
    places = [mesh.coordinates(rank) for rank in range(mesh.world)]
    assert [mesh.rank(place) for place in places] == list(range(mesh.world))
    assert len({tuple(place.items()) for place in places}) == mesh.world


@pytest.mark.parametrize("rank", [-1, 8, 10**30])
def test_a_rank_outside_the_mesh_has_no_coordinates(rank: int) -> None:
    with pytest.raises(Refused, match=r"must lie in 0 … 7"):
        Mesh(axes=("dp", "tp"), sizes=(2, 4)).coordinates(rank)


@pytest.mark.parametrize("place", [-1, 4])
def test_coordinates_outside_the_mesh_have_no_rank(place: int) -> None:
    with pytest.raises(Refused, match=r"tp = .*must lie in 0 … 3"):
        Mesh(axes=("dp", "tp"), sizes=(2, 4)).rank({"dp": 1, "tp": place})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_third_to_two_thirds_of_the_random_degrees_are_legal(layout: Layout) -> None:
    assert DRAWS // 3 < sum(is_legal(degrees, world, layout) for degrees, world in drawn(layout)) < 2 * DRAWS // 3


def test_the_brute_force_enumeration_equals_a_mesh_written_out_by_hand() -> None:
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
def test_a_partition_is_distinguished_from_groups_that_are_none(
    groups: tuple[tuple[int, ...], ...], flaw: str | None
) -> None:
    assert flaw_of_partition(groups, 4) == flaw


def test_axes_that_partition_the_world_but_form_no_grid_are_found() -> None:
    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    assert flaw_of_grid({"a": rows, "b": columns}, ("a", "b"), 4) is None
    assert flaw_of_grid({"a": rows, "b": rows}, ("a", "b"), 4) == "a a and a b group share ranks 0 and 1"
    assert flaw_of_grid({"a": rows, "b": tuple((rank,) for rank in range(4))}, ("a", "b"), 4) == (
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
