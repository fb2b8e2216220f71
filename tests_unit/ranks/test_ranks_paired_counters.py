"""Counters by which torch pairs ranks: the test that leaves them uneven is red, and no other."""

import json
import subprocess
from pathlib import Path

import pytest

from contracts.ranks import paired_counters
from contracts.ranks.in_flight import View, leftovers
from contracts.spec.interpreter import python
from tests_unit.ranks.running import needs_torch, torchrun

FILE = """
from torch.distributed import distributed_c10d as c10d

def right():
    group = dist.new_group([0, 1])
    assert summed(1, group) == 2
    dist.destroy_process_group(group)

def test_begins():
    right()

def test_group_of_one_rank():
    if RANK == 1:
        dist.new_group([1])

def test_after_the_group():
    right()

def test_groups_that_members_alone_make():
    if RANK == 1:
        dist.new_group([1], use_local_synchronization=True)

def test_after_members_alone():
    right()

def test_mesh_of_one_rank():
    if RANK == 0:
        dist.new_group([0])
        dist.new_group([0])

def test_after_the_mesh():
    dist.init_device_mesh("cpu", (2,))
    right()

def test_coalescing_that_is_left_open():
    if RANK == 0:
        c10d._world.pg_coalesce_state.setdefault(dist.group.WORLD, []).append("held")

def test_after_the_coalescing():
    right()

def test_sharded_tensor_of_one_rank():
    from torch.distributed._shard.sharded_tensor import api
    if RANK == 1:
        api._sharded_tensor_current_id += 1

def test_after_the_sharded_tensor():
    from torch.distributed._shard.sharded_tensor import api
    ids = [None, None]
    dist.all_gather_object(ids, api._sharded_tensor_current_id)
    assert ids[0] == ids[1]

def test_rpc_that_one_rank_starts():
    import torch.distributed.rpc
    if RANK == 0:
        torch.distributed.rpc._init_counter += 1

def test_gathering_of_one_rank():
    import torch.distributed.rpc.api
    if RANK == 0:
        torch.distributed.rpc.api._all_gather_sequence_id["0,1"] = 1

def test_symmetric_memory_of_one_rank():
    import torch.distributed._symmetric_memory as memory
    if RANK == 1:
        memory._group_name_to_store["0"] = None

def test_after_all_of_it():
    import torch.distributed._symmetric_memory, torch.distributed.rpc
    seen = [None, None]
    mine = (torch.distributed.rpc._init_counter, torch.distributed.rpc.api._all_gather_sequence_id,
            torch.distributed._symmetric_memory._group_name_to_store)
    dist.all_gather_object(seen, str(mine))
    assert seen[0] == seen[1]
    right()

@pytest.mark.dist(world=1)
def test_of_a_smaller_world():
    if RANK == 0:
        dist.new_group([0])

def test_after_the_smaller_world():
    right()
"""
LEFT = {
    "test_group_of_one_rank": "rank 1 counts 1 × process group made (new_group is for every rank, members or not), "
    "rank 0 0",
    "test_mesh_of_one_rank": "rank 0 counts 2 × process group made",
    "test_coalescing_that_is_left_open": "rank 0 counts 1 × collective held back by an open coalescing manager, rank 1",
    "test_sharded_tensor_of_one_rank": "rank 1 counts 1 × sharded tensor made, rank 0 0",
    "test_rpc_that_one_rank_starts": "rank 0 counts 1 × start of RPC, rank 1 0",
    "test_gathering_of_one_rank": "rank 0 counts 1 × gathering by RPC, rank 1 0",
    "test_symmetric_memory_of_one_rank": "rank 1 counts 1 × group with symmetric memory, rank 0 0",
}


@pytest.mark.torchrun
@needs_torch()[1]
def test_a_counter_that_advanced_on_one_rank_only_fails_the_test_that_did_it(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    run = torchrun(tmp_path, {"test_left.py": FILE}, "--dist-grace=0.5", "-v", ranks=2)
    outcomes = {name: run.outcome(name) for name in run.outcomes}
    assert len(outcomes) == 17, run.output[-4000:]
    for name, words in LEFT.items():
        with subtests.test(name):
            assert outcomes.pop(name) == "failed", run.output[-3000:]
            assert words in run.words(name)
    assert set(outcomes.values()) == {"passed"}, outcomes


NOT_PAIRED = {
    "_orig_param_uid_counter": "numbers FSDP's parameters in this process for its own hooks",
    "_breakpoint_cache": "of a debugger",
    "_events_loggers": "of torchrun's agent",
    "_metrics_map": "of torchrun's agent",
    "_sharded_tensor_map": "the tensors of `_sharded_tensor_current_id`",
    "_all_gather_sequence_id_to_states": "the states of `_all_gather_sequence_id`",
    "_group_name_to_workspace_tensor": "memory of the groups of `_group_name_to_store`",
    "_backend_streams": "streams of this device",
    "_symm_mem_pools": "memory of this device",
    "_planner_cache": "plans that each rank computes alike",
    "_pg_map": "live groups, of which each rank has its own",
    "_pg_names": "live groups; their number is in the names of groups that only members make, which may be unequal",
    "_pg_group_ranks": "live groups",
    "_pg_backend_config": "live groups",
    "_tags_to_pg": "live groups",
    "_pg_to_tag": "live groups",
    "_group_count": "an alias of the past, which no code reads",
}
PAIRED = {"_sharded_tensor_current_id", "_init_counter", "_all_gather_sequence_id", "_group_name_to_store"}
LOOKS = """
import itertools, json, sys
from importlib import import_module
for name in ("_shard.sharded_tensor", "_symmetric_memory", "checkpoint", "device_mesh", "fsdp", "pipelining", "rpc",
             "rpc.api", "tensor"):
    import_module(f"torch.distributed.{name}")

def counts(value):
    if isinstance(value, dict):
        return all(type(each) is int for each in value.values())
    return type(value) is int or isinstance(value, itertools.count)

print(json.dumps([
    name for module, state in sys.modules.items() if module.startswith("torch.distributed") and state is not None
    for name, value in vars(state).items()
    if name.startswith("_") and not name.startswith("__") and not name.isupper() and counts(value)
]))
"""


@needs_torch()[1]
def test_every_counter_of_torch_distributed_is_compared_or_excluded_by_name() -> None:
    done = subprocess.run(python("-W", "ignore", "-c", LOOKS), capture_output=True, text=True, check=True)
    found = {*json.loads(done.stdout.splitlines()[-1])}
    assert found <= PAIRED | NOT_PAIRED.keys()
    assert found >= PAIRED
    read = {name for each in paired_counters.COUNTERS for name in each.read.__code__.co_names}
    assert {*PAIRED, "group_count", "pg_coalesce_state"} <= read


def test_the_rank_that_created_more_groups_than_the_others_is_named() -> None:
    assert leftovers([View(paired={"group": 2})] * 3) == []
    (found,) = leftovers([View(paired={"group": 2}), View(paired={"group": 3}), View()])
    assert (found.rank, found.words) == (1, "rank 1 counts 3 × group, rank 2 0")
    assert leftovers([View(paired={"group": -1}), View(paired={"group": -1})]) == []
