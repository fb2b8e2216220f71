"""The M block of Megatron-Core: its norm and its Mamba-2 mixer, on one rank, over substituted kernels.

Output and gradients are of its training pass, which starts from an empty state and returns none. The state after
the last token comes from its inference, which keeps the state of a prompt: here the last document of each row.
"""

import inspect
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from contracts.instruments import numerics
from contracts.spec import BlockCall, BlockRun, Mode, NotOffered
from contracts.stacks.megatron.block_base import THEIRS, Block, gradient
from contracts.stacks.megatron.hybrid_model import mamba_spec
from contracts.stacks.megatron.mamba_kernels import reached
from contracts.stacks.megatron.shims import mcore

STATES = ("conv_x", "conv_b", "conv_c")


def declined(mode: Mode) -> None:
    """Decline a call that has no M block here.

    Raises:
        NotOffered: with the reason.
    """
    if mode != "nemo_native":
        raise NotOffered("Megatron-Core: M is Mamba-2, it has no Mamba-3", "stack")
    try:
        reached()
    except ModuleNotFoundError as error:
        raise NotOffered(
            f"Megatron-Core of this version imports its mixer only where there is {error.name}", "device"
        ) from None


class MambaBlock(Block):
    """A Mamba layer without its residual connection. All its parameters have counterparts among ours."""

    def build(self, config: Any) -> Any:
        groups = mcore("process_groups_config").ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"])
        build = mcore("transformer.spec_utils").build_module
        layer = build(mamba_spec(), config=config, layer_number=1, pg_collection=groups)
        if self.plan.dtype is torch.bfloat16:
            mcore("transformer.module").Float16Module(config, layer)  # all parameters cast, as in training
        return layer

    def tensors(self) -> dict[str, Tensor]:
        return {THEIRS + name: each for name, each in self.layer.named_parameters()}

    def run(self, call: BlockCall) -> BlockRun:
        x_BTD = numerics.tensor(call.x, strided=call.strided).to(call.device, copy=True).requires_grad_()
        if call.state:
            raise NotOffered("Megatron-Core: the training pass of M begins from an empty state", "stack")
        if x_BTD.dtype is torch.bfloat16 or not x_BTD.numel():
            raise NotOffered("Megatron-Core: M over substituted kernels, of tokens in float32 and float64", "device")
        documents_BT = None if call.documents is None else numerics.tensor(call.documents).to(call.device)
        y_BTD = self._trained(x_BTD, documents_BT)
        gradients = {}
        if call.dy is not None:
            dy_BTD = numerics.tensor(call.dy, strided=call.strided).to(call.device)
            (y_BTD * dy_BTD).sum().backward()  # type: ignore[no-untyped-call]
            gradients = self.ours({name: gradient(each) for name, each in self.tensors().items()})
            gradients["x"] = gradient(x_BTD)
        with torch.no_grad():
            state = self._state(x_BTD, documents_BT)
        return BlockRun(
            y=numerics.array(y_BTD), gradients=numerics.arrays(gradients), state=numerics.arrays(state),
            strided=not x_BTD.is_contiguous(),
        )  # fmt: skip

    def _trained(self, x_BTD: Tensor, documents_BT: Tensor | None) -> Tensor:
        """The training pass. Megatron sees packed rows as one sequence of consecutive documents."""
        if documents_BT is None:
            out: Tensor = self.layer.mixer(self.layer.norm(x_BTD.transpose(0, 1)))[0]
            return out.transpose(0, 1)
        if "packed_seq_params" not in inspect.signature(self.layer.mixer.forward).parameters:
            raise NotOffered("Megatron-Core: up to January 2026 its mixer gets no packed rows", "stack")
        rows, length = documents_BT.shape
        beyond = int(documents_BT.max()) + 1
        seq_idx = (documents_BT + beyond * torch.arange(rows, device=x_BTD.device)[:, None]).reshape(1, -1).int()
        packed = _packed(seq_idx)
        out = self.layer.mixer(self.layer.norm(x_BTD.reshape(rows * length, 1, -1)), packed_seq_params=packed)[0]
        return out.reshape(rows, length, -1)

    def _state(self, x_BTD: Tensor, documents_BT: Tensor | None) -> dict[str, Tensor]:
        """`ssm` and the last three inputs of the convolutions, row by row."""
        mamba = self.plan.recipe.mamba
        found = []
        for row, x_TD in enumerate(x_BTD):
            own = slice(None) if documents_BT is None else documents_BT[row] == documents_BT[row, -1]
            found.append(self._prompted(x_TD[own][:, None]))
        conv_Bcw, ssm_Bhpn = (torch.cat(each) for each in zip(*found, strict=True))
        grouped = mamba.groups * mamba.state
        parts = torch.split(conv_Bcw[..., 1:], [mamba.heads * mamba.head_dim, grouped, grouped], 1)
        return {"ssm": ssm_Bhpn, **dict(zip(STATES, parts, strict=True))}

    def _prompted(self, x_T1D: Tensor) -> tuple[Tensor, Tensor]:
        """The state that inference keeps of a prompt. The mixer has no public access to it except a full engine's
        context."""
        mixer = self.layer.mixer
        fill = getattr(mixer, "_ssm_prefill", None) or mixer.ssm_prefill  # the latter in January 2026, and since 0.20
        if "context" in inspect.signature(fill).parameters:
            words = "from 0.20 on only kernels of triton write the state of a prompt, which a CPU has not"
            raise NotOffered(f"Megatron-Core: {words}", "device")
        conv, ssm = (x_T1D.new_zeros(1, *shape) for shape in mixer.mamba_state_shapes_per_request())
        fill(mixer.in_proj(self.layer.norm(x_T1D))[0], conv_state=conv, ssm_state=ssm)
        return conv, ssm


def _packed(seq_idx_1N: Tensor) -> Any:
    """Consecutive documents in Megatron's form: up to 0.16 by their starts, later by document number."""
    kind = mcore("packed_seq_params").PackedSeqParams
    if any(each.name == "seq_idx" for each in fields(kind)):
        return kind(qkv_format="thd", seq_idx=seq_idx_1N)
    _, lengths = torch.unique_consecutive(seq_idx_1N[0], return_counts=True)
    return kind(qkv_format="thd", cu_seqlens_q=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int())
