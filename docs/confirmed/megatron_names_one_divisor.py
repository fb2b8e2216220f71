"""Of two products that do not divide the world Megatron-Core's initialiser names only the first.

A world of 8: the dense product is tp 3 * pp 2 = 6, the expert product is etp 1 * ep 5 * pp 2 = 10.
Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import sys
import warnings

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

warnings.simplefilter("ignore")
from megatron.core import parallel_state


def said(tp: int) -> str:
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp, pipeline_model_parallel_size=2, expert_model_parallel_size=5,
            expert_tensor_parallel_size=1, create_gloo_process_groups=False,
        )  # fmt: skip
    except (RuntimeError, AssertionError) as error:
        return str(error)
    return "accepted"


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
both, mended = said(tp=3), said(tp=2)
print(f"tp 3, pp 2, ep 5: {both}")
print(f"tp 2, pp 2, ep 5, which is that one mended: {mended}")
sys.exit(not ("6" in both and "10" not in both and "10" in mended))
