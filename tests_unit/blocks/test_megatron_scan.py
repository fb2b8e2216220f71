"""The scan that stands in for mamba-ssm's under Megatron-Core, against those kernels themselves and the recurrence."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.instruments import fixtures, mamba_ssm, numerics
from contracts.instruments.oracles import mamba as oracle
from contracts.spec import FLOAT32, FLOAT64, Tolerance
from contracts.stacks.megatron.mamba_kernels import GatedNorm, chunk_scan, split_conv1d_scan

B, T, HEADS, WIDTH, GROUPS, STATE, HIDDEN = 2, 21, 4, 8, 2, 16, 16
INNER = HEADS * WIDTH
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 9 + [2] * 8, [0] * 13 + [1] + [2] * 7])


def normal(name: str, *shape: int) -> Tensor:
    return fixtures.normal(name, shape).float()


def scanned() -> dict[str, Tensor]:
    return {
        "x": normal("x", B, T, HEADS, WIDTH), "dt": normal("dt", B, T, HEADS), "A": -normal("A", HEADS).abs() - 0.3,
        "B": normal("B", B, T, GROUPS, STATE), "C": normal("C", B, T, GROUPS, STATE), "D": normal("D", HEADS),
        "dt_bias": normal("bias", HEADS) - 1,
    }  # fmt: skip


def mixed() -> dict[str, Tensor]:
    """Weights of a mixer by the names of mamba_ssm.modules.mamba2."""
    channels = INNER + 2 * GROUPS * STATE
    return {
        "dt_bias": normal("bias", HEADS) - 1, "A_log": normal("A", HEADS), "D": normal("D", HEADS),
        "in_proj.weight": normal("in", INNER + channels + HEADS, HIDDEN), "conv1d.weight": normal("w", channels, 1, 4),
        "conv1d.bias": normal("b", channels), "norm.weight": normal("n", INNER) + 1,
        "out_proj.weight": normal("out", HIDDEN, INNER),
    }  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> list[dict[str, Any]]:
    """What mamba-ssm makes of a scan over packed documents and of a whole mixer."""
    found = mamba_ssm.python()
    if mamba_ssm.probe(found).state == "absent" or found is None:
        pytest.skip(f"mamba-ssm is not installed: {mamba_ssm.REMEDY}")
    arguments = {"d_model": HIDDEN, "expand": 2, "d_state": STATE, "headdim": WIDTH, "ngroups": GROUPS,
                 "chunk_size": 16, "use_mem_eff_path": False}  # fmt: skip
    scan = {"kernel": "ssd", "chunk": 16, "inputs": scanned(), "seq_idx": DOCUMENTS.int(),
            "dy": normal("dy", B, T, HEADS, WIDTH)}  # fmt: skip
    block = {"kernel": "block", "module": "Mamba2", "arguments": arguments, "weights": mixed(),
             "u": normal("u", B, T, HIDDEN), "dy": normal("dy", B, T, HIDDEN)}  # fmt: skip
    return mamba_ssm.kernel_results(found, [scan, block])


def agree(what: str, got: Mapping[str, Tensor], want: Mapping[str, Tensor], tolerance: Tolerance = FLOAT32) -> None:
    words = numerics.differences(what, numerics.arrays(got), numerics.arrays(want), tolerance)
    assert not words, words


def own_scan(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    y, state = chunk_scan(
        inputs["x"], inputs["dt"], inputs["A"], inputs["B"], inputs["C"], D=inputs["D"], dt_bias=inputs["dt_bias"],
        dt_softplus=True, seq_idx=DOCUMENTS, return_final_states=True,
    )  # fmt: skip
    return y, state


@pytest.mark.kernels
def test_megatrons_scan_equals_the_kernels_scan_over_documents(kernels: list[dict[str, Any]]) -> None:
    leaves = {name: each.double().requires_grad_() for name, each in scanned().items()}
    y, state = own_scan(leaves)
    found = torch.autograd.grad((y * normal("dy", B, T, HEADS, WIDTH)).sum(), list(leaves.values()))
    agree("the kernel's", {name: kernels[0][name] for name in ("y", "state")},
          {"y": y.detach(), "state": state.detach()})  # fmt: skip
    agree("the kernel's gradient of", kernels[0]["gradients"], dict(zip(leaves, found, strict=True)))


@pytest.mark.kernels
def test_convolution_scan_gate_and_norm_equal_megatrons_mixer(kernels: list[dict[str, Any]]) -> None:
    leaves = {name: each.double().requires_grad_() for name, each in mixed().items()}
    leaves["u"] = normal("u", B, T, HIDDEN).double().requires_grad_()
    norm = GatedNorm(INNER, eps=1e-5, group_size=INNER // GROUPS, norm_before_gate=False)
    gated = split_conv1d_scan(
        leaves["u"] @ leaves["in_proj.weight"].T, leaves["conv1d.weight"][:, 0], leaves["conv1d.bias"],
        leaves["dt_bias"], -torch.exp(leaves["A_log"]), D=leaves["D"], headdim=WIDTH, ngroups=GROUPS,
    )  # fmt: skip
    normed = torch.func.functional_call(norm, {"weight": leaves["norm.weight"]}, (gated,))
    y = normed @ leaves["out_proj.weight"].T
    found = torch.autograd.grad((y * normal("dy", B, T, HIDDEN)).sum(), list(leaves.values()))
    agree("the kernels'", {"y": kernels[1]["y"]}, {"y": y.detach()})
    agree("the kernels' gradient of", kernels[1]["gradients"], dict(zip(leaves, found, strict=True)))


def test_megatrons_scan_equals_its_recurrence_over_documents() -> None:
    inputs = {name: each.double() for name, each in scanned().items()}
    y, state = own_scan(inputs)
    dt = F.softplus(inputs["dt"] + inputs["dt_bias"])
    for b in range(B):
        want, last = oracle.mamba2_core(
            inputs["x"][b], dt[b], inputs["A"], inputs["B"][b], inputs["C"][b], DOCUMENTS[b], None
        )
        agree(f"of row {b}", {"y": y[b], "state": state[b]},
              {"y": want + inputs["D"][:, None] * inputs["x"][b], "state": last}, FLOAT64)  # fmt: skip
