"""Without mamba-ssm's kernels a scan adds dt and its bias in bfloat16; the kernels add them in float32.

Run with an interpreter that has transformers 5.23.0. Exit code 0: the fault is there.
"""
import sys

import torch
from transformers.models.nemotron_h.modeling_nemotron_h import mamba2_chunk_scan

empty = torch.zeros(1, 50, 1, 4, dtype=torch.bfloat16)
dt = torch.full((1, 50, 1), 0.01, dtype=torch.bfloat16)
bias, state = torch.tensor([-4.6]), torch.ones(1, 1, 4, 4)


def last(dt_B: torch.Tensor) -> float:
    """What is left of a state of ones after 50 tokens that add nothing."""
    given = {"dt_bias": bias, "dt_softplus": True, "initial_states": state, "return_final_states": True}
    _, left = mamba2_chunk_scan(empty, dt_B, torch.tensor([-2.0]), empty, empty, 16, **given)
    return float(left.flatten()[0])


found, exact = last(dt), last(dt.float())
print(f"a state of 1 after 50 empty tokens: {found:.5f}, with dt in float32 {exact:.5f}")
sys.exit(not abs(found - exact) > 1e-3 * exact)
