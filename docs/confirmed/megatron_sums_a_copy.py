"""Megatron-Core up to 0.18 returns a rank's own tensor as the sum over TP ranks if it does not lie row by row. PR 5338.

`all_reduce(input_.contiguous())` sums a copy. Exit code 0: it is so.
"""
import sys, tempfile

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region


def reduced(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/at", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(2, create_gloo_process_groups=False)
    x = torch.full((2, 3), rank + 1.0)
    sums = [reduce_from_tensor_model_parallel_region(each)[0, 0].item() for each in (x.clone(), x.T.contiguous().T)]
    torch.save(sums, f"{folder}/{rank}")


with tempfile.TemporaryDirectory() as at:
    torch.multiprocessing.start_processes(reduced, (at,), 2, start_method="fork")
    (rows, turned), (_, other) = (torch.load(f"{at}/{rank}") for rank in (0, 1))
print(f"ranks give 1 and 2: row by row the sum is {rows:g}; first axis fastest it is {turned:g} and {other:g}")
sys.exit(not (rows == 3 and (turned, other) == (1, 2)))
