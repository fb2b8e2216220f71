"""Its rotary embedding multiplies positions and frequencies in float32: far tokens turn by rounded angles.
python docs/confirmed/olmo_core_angles_in_float32.py      # OLMo-core 3.0.0, a CPU
"""
import sys

import torch
from olmo_core.nn.rope import RoPEConfig

SIZE, THETA, FAR = 8, 10, 4096
rope = RoPEConfig(theta=THETA).build(SIZE)
q_BTHd = torch.zeros(1, FAR, 1, SIZE)
q_BTHd[..., : SIZE // 2] = 1.0  # turned by the angle, the first half is its cosine
turned, _ = rope(q_BTHd, q_BTHd, head_first=False)
rates = THETA ** (-torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE)
want = ((FAR - 1) * rates).cos()
off = (turned[0, -1, 0, : SIZE // 2].double() - want).abs().max().item()
print(f"at position {FAR - 1} a cosine is off by {off:.1e}; rounded once it would be 6e-8")
sys.exit(off < 1e-6)
