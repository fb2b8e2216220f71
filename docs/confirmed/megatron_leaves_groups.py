"""`destroy_model_parallel` leaves its process groups alive, and `initialize_model_parallel` makes the same ones twice.

https://github.com/NVIDIA/Megatron-LM/issues/6897. One process, gloo.
Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import collections
import sys
import warnings

import torch.distributed as dist

warnings.simplefilter("ignore")
from megatron.core import parallel_state


def held() -> int:
    return len(dist.distributed_c10d._world.pg_map)


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
real, asked = dist.new_group, collections.Counter()
dist.new_group = lambda *given, **named: (asked.update([tuple(named["ranks"])]), real(*given, **named))[1]
counts = [held()]
for _ in range(3):
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    parallel_state.destroy_model_parallel()
    counts.append(held())
dist.new_group = real
print(f"groups held before, and after each of three initialisations that were destroyed: {counts}")
print(f"groups asked for in the three, by members: {dict(asked)}")
dist.destroy_process_group()
sys.exit(counts[-1] == counts[0])
