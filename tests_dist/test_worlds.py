"""Worlds of fewer ranks than there are, and what ranks exchange."""

from typing import Any

import pytest

from contracts.instruments.ranks import gathered, held_groups, here, torch_distributed


def _total(value: int) -> int:
    torch, dist = torch_distributed()
    sum_1: Any = torch.tensor([value])
    dist.all_reduce(sum_1)
    return int(sum_1.item())


@pytest.mark.dist(world=2)
def test_the_first_two_ranks_can_have_a_world_of_their_own() -> None:
    _, dist = torch_distributed()
    assert (dist.get_world_size(), dist.get_rank()) == (2, here().rank)
    assert held_groups() == ((0, 1),)
    assert _total(2 ** here().rank) == 3


@pytest.mark.dist
def test_after_a_smaller_world_all_ranks_are_in_the_full_world_again() -> None:
    _, dist = torch_distributed()
    assert dist.get_world_size() == here().world
    assert _total(2 ** here().rank) == 2 ** here().world - 1


@pytest.mark.dist
def test_every_rank_gets_the_values_of_all_ranks_in_order() -> None:
    said = gathered({"rank": here().rank, "long": "ä" * here().rank})
    assert said == tuple({"rank": rank, "long": "ä" * rank} for rank in range(here().world))


@pytest.mark.dist
def test_a_group_is_listed_on_its_members_only() -> None:
    _, dist = torch_distributed()
    everybody = tuple(range(here().world))
    group = dist.new_group([1, 0])
    assert held_groups() == (everybody, (0, 1)) if here().rank < 2 else held_groups() == (everybody,)
    dist.barrier()  # the one that is connected first must not hang up while the other still connects
    if here().rank < 2:
        dist.destroy_process_group(group)
    assert held_groups() == (everybody,)


@pytest.mark.dist
def test_a_world_of_one_leaves_the_running_world_as_it_was() -> None:
    from contracts.stacks.kit import worlds

    torch, dist = torch_distributed()
    before, alone = held_groups(), torch.ones(1)
    if here().rank != 1:  # a rank may need it that others do without
        with worlds.of_one():
            assert (dist.get_world_size(), dist.get_rank()) == (1, 0)
            dist.all_reduce(alone, group=dist.new_group([0]))
            dist.all_reduce(alone)
    assert int(alone.item()) == 1
    assert held_groups() == before
    assert _total(2 ** here().rank) == 2 ** here().world - 1
    group = dist.new_group(range(here().world))
    dist.barrier(group)
    dist.destroy_process_group(group)
