"""Dry runs over torch's fake backend, as adapters make them: what is recorded, what is not, and who is refused."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from contracts.instruments import numerics, traffic
from contracts.law.traffic.dry_run import FLOAT32
from contracts.spec import Execution, Refused
from contracts.stacks.kit import dry_runs, worlds

EIGHT = tuple(range(8))


def test_a_dry_run_records_the_collectives_of_one_rank_of_eight_with_their_groups() -> None:
    with worlds.pretended(8, 5), traffic.recorded() as issued:
        dist.all_reduce(torch.ones(3))
        pair = dist.new_group([4, 5])
        dist.send(torch.ones(2, 2), 4, group=pair)
        dist.all_to_all_single(torch.empty(4), torch.ones(4), [1, 3], [2, 2], group=pair)
    found = dry_runs.rehearsal(issued, {}, ())
    assert found.groups == (EIGHT, (4, 5))
    told = [(each.op, each.group, each.shapes, each.peer) for each in found.issued]
    assert told == [("all_reduce", 0, ((3,),), None), ("send", 1, ((2, 2),), 4), ("all_to_all", 1, ((4,),), None)]
    assert (found.issued[0].reduce, found.issued[2].sent, found.issued[2].received) == ("sum", (2, 2), (1, 3))


def test_collectives_that_an_adapter_needs_for_its_answer_are_not_recorded() -> None:
    with worlds.pretended(2, 0), traffic.recorded() as issued:
        with traffic.unrecorded():
            dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(2))
    assert [each.shapes for each in issued] == [((2,),)]


def test_a_dry_run_counts_the_bytes_of_a_ranks_shards_only() -> None:
    with worlds.pretended(4, 1):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
        weight = distribute_tensor(torch.ones(8, 3), mesh, [Shard(0)]).requires_grad_()
        weight.grad = torch.zeros_like(weight)
        state = {"exp_avg": torch.zeros_like(weight), "step": torch.tensor(1.0)}
        found = dry_runs.holding(weight, weight, [state])
    assert (found.weight, found.gradient, found.state, found.cut) == (24, 24, 24, ("shard",))


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_that_is_not_in_the_world_is_refused(rank: int) -> None:
    with pytest.raises(Refused, match=rf"rank = {rank}: must lie in 0 … 3"):
        dry_runs.refuse_rank(Execution(world=4), rank)


def test_a_dry_runs_batch_has_full_rows_and_labels_that_count() -> None:
    batch = dry_runs.rows_of(FLOAT32)
    tokens_BT, labels_BT = numerics.tensor(batch.tokens), numerics.tensor(batch.labels)
    assert tokens_BT.shape == (FLOAT32.batch.total, FLOAT32.seq_length)
    assert bool((labels_BT >= 0).all())


class Answers:
    """A stack that says which rank it was asked for."""

    def __init__(self, *, word: str) -> None:
        self.word = word

    def rehearse(self, recipe: object, execution: Execution, rank: int, routing: str) -> object:
        if self.word == "fail":
            raise ValueError("it has no step")
        seen = SimpleNamespace(op=self.word, members=(rank,), shapes=((execution.world,),), dtypes=("float32",),
                               reduce=routing, sent=(), received=(), root=None)  # fmt: skip
        return dry_runs.rehearsal([seen], {}, ())


def test_in_a_running_world_a_dry_run_happens_in_a_process_of_its_own() -> None:
    found = dry_runs.elsewhere((__name__, "Answers", {"word": "said"}), FLOAT32, Execution(world=4), 3, "balanced")
    assert found.groups == ((3,),)
    assert (found.issued[0].op, found.issued[0].shapes, found.issued[0].reduce) == ("said", ((4,),), "balanced")


def test_if_the_process_of_a_dry_run_fails_the_end_of_its_output_is_reported() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in a process of its own failed: .*it has no step"):
        dry_runs.elsewhere((__name__, "Answers", {"word": "fail"}), FLOAT32, Execution(world=4), 3, "balanced")
