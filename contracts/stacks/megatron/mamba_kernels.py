"""CPU replacements for the mamba-ssm kernels that Megatron's mixer calls, labelled as substituted.

The scan is the quadratic form of arXiv 2405.21060 section 6: token t gets token s times C_t · B_s times the decay from
s to t, for all pairs at once and without a state. The signatures equal mamba-ssm 2's, as far as they are used.

    b rows · l tokens · h heads · p head_dim · g groups · n state · c channels · w taps
"""

import contextlib
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.stacks.megatron.shims import Shim, local_norm, older

LABEL = (
    "; under M the kernels of mamba-ssm, scan and gated norm, are substituted by torch's operations, and 0.16.1 has "
    "empty modules in place of operations of inference in Triton"
)


def split_conv1d_scan(
    zxbcdt_blk: Tensor, conv1d_weight_cw: Tensor, conv1d_bias_c: Tensor, dt_bias_h: Tensor, A_h: Tensor, *,
    D: Tensor, headdim: int, ngroups: int, seq_idx: Tensor | None = None, activation: str = "silu",
    chunk_size: int = 0, norm_before_gate: bool = False,
) -> Tensor:  # fmt: skip
    """`mamba_split_conv1d_scan_combined` without its norm: (b, l, h · p), gated by silu of z."""
    if activation != "silu" or norm_before_gate:
        raise NotImplementedError(f"activation {activation}, norm before the gate: {norm_before_gate}")
    heads = len(A_h)
    inner = heads * headdim
    grouped = (len(conv1d_weight_cw) - inner) // 2
    z, xbc, dt = torch.split(zxbcdt_blk, [inner, inner + 2 * grouped, heads], -1)
    convolved = F.silu(_convolved(xbc, conv1d_weight_cw, conv1d_bias_c, seq_idx))
    x, b, c = torch.split(convolved, [inner, grouped, grouped], -1)
    x_blhp = x.reshape(*x.shape[:-1], heads, headdim)
    b_blgn, c_blgn = (each.reshape(*each.shape[:-1], ngroups, -1) for each in (b, c))
    y_blhp = chunk_scan(x_blhp, dt, A_h, b_blgn, c_blgn, D=D, dt_bias=dt_bias_h, dt_softplus=True, seq_idx=seq_idx)
    gated: Tensor = y_blhp.flatten(-2) * F.silu(z)
    return gated


def chunk_scan(
    x_blhp: Tensor, dt_blh: Tensor, A_h: Tensor, B_blgn: Tensor, C_blgn: Tensor, chunk_size: int = 0, *,
    D: Tensor, dt_bias: Tensor, dt_softplus: bool, z: Tensor | None = None, initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None, return_final_states: bool = False, cu_seqlens: Tensor | None = None,
    return_varlen_states: bool = False,
) -> Any:  # fmt: skip
    """`mamba_chunk_scan_combined` from an empty state: (b, l, h, p), and the last state (b, h, p, n) if asked for."""
    if z is not None or initial_states is not None or not dt_softplus or cu_seqlens is not None or return_varlen_states:
        raise NotImplementedError("a gate, an initial state, a step without softplus or states of several requests")
    given, wide = x_blhp.dtype, torch.promote_types(x_blhp.dtype, torch.float32)  # as the kernel adds up
    x_blhp, dt_blh, B_blgn, C_blgn = (each.to(wide) for each in (x_blhp, dt_blh, B_blgn, C_blgn))
    share = x_blhp.shape[2] // B_blgn.shape[2]
    b_blhn, c_blhn = (each.repeat_interleave(share, 2) for each in (B_blgn, C_blgn))
    dt_bhl = F.softplus(dt_blh + dt_bias).movedim(1, -1)
    left_bhts = _left(dt_bhl * A_h[:, None], seq_idx) * dt_bhl[..., None, :]
    seen_bhts = torch.einsum("bthn,bshn->bhts", c_blhn, b_blhn) * left_bhts
    y_blhp = torch.einsum("bhts,bshp->bthp", seen_bhts, x_blhp) + D[:, None] * x_blhp
    y_blhp = y_blhp.to(given)
    if not return_final_states:
        return y_blhp
    return y_blhp, torch.einsum("bhs,bshn,bshp->bhpn", left_bhts[..., -1, :], b_blhn, x_blhp)


def _left(fading_bhl: Tensor, seq_idx: Tensor | None) -> Tensor:
    """(b, h, t, s): the decay from token s to token t; zero for a later token or another document.

    The exponents are sums over s < r <= t. Differences of sums from the start would lose digits.
    """
    length = fading_bhl.shape[-1]
    between_rs = torch.ones(length, length, dtype=torch.bool, device=fading_bhl.device).tril(-1)
    sums_bhts = torch.where(between_rs, fading_bhl[..., :, None], 0.0).cumsum(-2)
    seen_ts = torch.ones_like(between_rs).tril()
    if seq_idx is not None:
        seen_ts = seen_ts & (seq_idx[:, None, :, None] == seq_idx[:, None, None, :])
    return sums_bhts.masked_fill(~seen_ts, -torch.inf).exp()


def _convolved(u_blc: Tensor, weight_cw: Tensor, bias_c: Tensor, seq_idx: Tensor | None) -> Tensor:
    """The convolution. Its last tap is the token itself; taps do not cross the start of a row or a document."""
    found, length = bias_c.expand_as(u_blc), u_blc.shape[1]
    for back, weight_c in enumerate(weight_cw.flip(1).T):
        earlier = F.pad(u_blc, (0, 0, back, 0))[:, :length]
        if seq_idx is not None:
            same_bl = F.pad(seq_idx, (back, 0), value=-1)[:, :length] == seq_idx
            earlier = earlier * same_bl[..., None]
        found = found + weight_c * earlier
    return found


class GatedNorm(nn.Module):
    """`RMSNormGated`: an RMSNorm of each group, of y · silu(z) if z is given."""

    def __init__(self, hidden: int, *, eps: float, group_size: int, norm_before_gate: bool, **made: Any) -> None:
        super().__init__()
        if norm_before_gate:
            raise NotImplementedError("a norm before the gate")
        self.weight = nn.Parameter(torch.ones(hidden, **made))
        self.eps, self.group_size = eps, group_size

    def forward(self, y: Tensor, z: Tensor | None = None) -> Tensor:
        gated = y if z is None else y * F.silu(z)
        grouped = gated.float().reshape(*gated.shape[:-1], -1, self.group_size)
        normed = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self.eps)
        found: Tensor = normed.flatten(-2).to(y.dtype) * self.weight
        return found


_MIXER = "megatron.core.ssm.mamba_mixer"
_SLICES = "megatron.core.inference.contexts.attention_context.triton"


@functools.cache
def reached() -> None:
    """Import Megatron's mixer. In 0.16.1 the module also imports Triton operations for inference.

    If those cannot be imported, empty modules replace them during the import; no question calls them. The substitutes
    of mamba-ssm are also there during the import: without them 0.16.1 leaves its names unset, and nothing could be
    replaced. Main up to March 2026 leaves them unset beside a triton that can be imported; they are set to nothing.
    """
    try:
        mixer = importlib.import_module(_MIXER)
        for name in ("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined"):
            vars(mixer).setdefault(name, None)
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        with _beside(_substitutes() | _slices()):
            importlib.import_module(_MIXER)


@functools.cache
def _extended() -> Any:
    """Megatron's subclass of that norm, which knows how it is sharded and saved.

    Its module derives the class from mamba-ssm's norm at import. So a private copy of the module is imported while a
    substitute has that name.
    """
    spec = importlib.util.find_spec(_MIXER)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    with _beside(_substitutes() | _slices()):
        spec.loader.exec_module(copy)
    return copy.ExtendedRMSNorm


def _substitutes() -> dict[str, types.ModuleType]:
    """Substitute modules, by mamba-ssm's names."""
    names = ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton")
    norm, scan = (types.ModuleType(f"{names[-1]}.{name}") for name in ("layernorm_gated", "ssd_combined"))
    vars(norm)["RMSNorm"] = GatedNorm
    vars(scan).update(mamba_chunk_scan_combined=chunk_scan, mamba_split_conv1d_scan_combined=split_conv1d_scan)
    return {name: types.ModuleType(name) for name in names} | {each.__name__: each for each in (norm, scan)}


def _slices() -> dict[str, types.ModuleType]:
    """Empty modules for the inference operations that 0.16.1's mixer imports."""
    slices = types.ModuleType(f"{_SLICES}.tensor_ops")
    vars(slices).update(dict.fromkeys(("tensor_get_slice_after", "tensor_masked_update", "tensor_merge")))
    return {_SLICES: types.ModuleType(_SLICES), slices.__name__: slices}


@contextlib.contextmanager
def _beside(given: Mapping[str, types.ModuleType]) -> Iterator[None]:
    """Inside, these modules have these names; at the end the former modules are restored."""
    before = {name: sys.modules[name] for name in given if name in sys.modules}
    sys.modules.update(given)
    try:
        yield
    finally:
        for name in given:
            del sys.modules[name]
        sys.modules.update(before)


def extended_norm(*sizes: int, **made: Any) -> nn.Module:
    """An instance of that class, for the place where Megatron's mixer creates its norm."""
    found: nn.Module = _extended()(*sizes, **made)
    return found


_KERNEL = "a kernel of mamba-ssm, which is written in Triton for GPUs: substituted"
KERNELS: tuple[Shim, ...] = (
    Shim(at=f"{_MIXER}:HAVE_MAMBA_SSM", put=True, why="mamba-ssm, whose kernels are substituted"),
    Shim(at=f"{_MIXER}:mamba_split_conv1d_scan_combined", put=split_conv1d_scan, why=_KERNEL),
    Shim(at=f"{_MIXER}:mamba_chunk_scan_combined", put=chunk_scan, why=_KERNEL),
    Shim(at=f"{_MIXER}:ExtendedRMSNorm", put=extended_norm, why=_KERNEL),
    Shim(
        at=f"{_MIXER}:_check_mamba_sequence_packing_support",
        put=lambda **_: (True, None),
        later=True,
        why="the versions of mamba-ssm and causal-conv1d: the substituted scan knows documents",
    ),
)
"""The shims for M blocks, in addition to those of every question."""


def kernels(letters: str) -> tuple[Shim, ...]:
    """The additional shims for a model with these letters."""
    last_norm = Shim(
        at=f"megatron.core.{hybrid_block()}:TENorm",
        put=lambda *, config, hidden_size, eps: local_norm(None, config, hidden_size, eps),
        why="the norm of Transformer Engine, which its hybrid model names for its last norm: torch's instead",
    )
    return (*KERNELS, last_norm) if "M" in letters else ()


def hybrid_block() -> str:
    """The module of the layers of Megatron's hybrid model."""
    return "ssm.mamba_block" if older() else "models.hybrid.hybrid_block"
