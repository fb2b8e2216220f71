"""mamba-ssm's Triton kernel in place of the scan of M (Mamba-2).

B sequences · T tokens · h heads · p head_dim · n state
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contracts.stacks.reference.model.blocks import Mamba2, Packing

Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Packing, Tensor | None], tuple[Tensor, Tensor]]


def scan(mixer: Mamba2) -> Scan:
    """`Mamba2.scan` by `mamba_chunk_scan_combined`, which has names and shapes of this kind since mamba-ssm 2.2.

    Time steps come with their bias and softplus applied; B and C come a head each, so its groups are our heads.
    """
    kernel = _kernel()

    def apply(
        x_BThp: Tensor, dt_BTh: Tensor, b_BThn: Tensor, c_BThn: Tensor, packing: Packing, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        documents_BT = None if packing.boundless else _from_zero(packing.documents_BT)
        y_BThp, last_Bhpn = kernel(
            x_BThp, dt_BTh, mixer.decay_rate(), b_BThn, c_BThn, chunk_size=mixer.chunk, initial_states=state,
            seq_idx=documents_BT, return_final_states=True,
        )  # fmt: skip
        return y_BThp, last_Bhpn

    return apply


def _from_zero(documents_BT: Tensor) -> Tensor:
    """The documents of each row counted from 0: the kernel gives its initial state to document 0."""
    return (documents_BT - documents_BT[:, :1]).to(torch.int32).contiguous()


def _kernel() -> Callable[..., Any]:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    found: Callable[..., Any] = mamba_chunk_scan_combined
    return found
