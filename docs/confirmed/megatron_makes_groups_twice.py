"""Megatron-Core makes one group for each purpose, whether or not a group of the same members is there.

Rank 0 of 64, pp 2, tp 2, ep 4: what `initialize_model_parallel` asks torch to create, by members.
Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import collections
import sys
import warnings

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

warnings.simplefilter("ignore")
from megatron.core import parallel_state

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
real, asked = dist.new_group, collections.Counter()


def new_group(ranks: list[int], *given: object, **named: object) -> object:
    asked[tuple(ranks)] += 1
    return real(ranks, *given, **named)


dist.new_group = new_group
parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=2, pipeline_model_parallel_size=2, expert_model_parallel_size=4,
    expert_tensor_parallel_size=1, create_gloo_process_groups=False,
)  # fmt: skip
again = sum(asked.values()) - len(asked)
members, most = max(asked.items(), key=lambda each: (len(each[0]) > 1, each[1]))
print(f"{sum(asked.values())} calls of new_group for {len(asked)} different groups, {again} of them anew")
print(f"{most} groups of the ranks {list(members)}")
sys.exit(again == 0)
