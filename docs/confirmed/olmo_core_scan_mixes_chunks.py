"""A scan over more than one chunk: later tokens change earlier outputs, and the outputs depend on the size of a chunk.
python docs/confirmed/olmo_core_scan_mixes_chunks.py      # OLMo-core 3.0.0, a CPU
"""
import sys

import torch
from olmo_core.config import DType
from olmo_core.nn.attention import NemotronMamba2Config

torch.manual_seed(0)
mixer = NemotronMamba2Config(
    ssm_state_size=8, mamba_num_heads=4, mamba_head_dim=8, n_groups=2, chunk_size=4, dtype=DType.float32
).build(16, layer_idx=0, n_layers=1)
x = torch.randn(1, 16, 16)
other = x.clone()
other[:, 12:] = torch.randn(1, 4, 16)  # the last of four chunks
with torch.no_grad():
    whole, changed = mixer(x), mixer(other)
    mixer.chunk_size = 16
    one = mixer(x)
early = float((whole - changed)[:, :12].abs().max() / whole.abs().max())
chunks = float((whole - one).abs().max() / one.abs().max())
print(f"other tokens from 12 on change what stands before them by {early:.1e}")
print(f"chunks of 4 and one of 16 differ by {chunks:.1e}")
sys.exit(not (early > 1e-4 and chunks > 1e-4))
