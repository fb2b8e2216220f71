"""Megatron-Core computes the angles of rope in float32: at position p an angle is off by up to p * 2**-24.

Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import sys
import warnings

import torch

warnings.simplefilter("ignore")
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

torch.cuda.current_device = lambda: "cpu"
off = {}
for length, base in ((1027, 10), (65_536, 500_000)):
    rope = RotaryEmbedding(8, 1.0, rotary_base=base, use_cpu_initialization=True)
    got = rope.get_freqs_non_repeated(length).double()[-1]
    want = (length - 1) / float(base) ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    off[length] = (got.cos() - want.cos()).abs().max().item()
    print(f"{length} tokens, base {base}: the last cosines are off by {off[length]:.1e}; float32 holds them to 6e-8")
sys.exit(not all(each > 2e-6 for each in off.values()))
