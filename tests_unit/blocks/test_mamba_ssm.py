"""mamba-ssm's own kernels against the oracles and the reference: Mamba-2 and Mamba-3, forward and every gradient.

Nobody here wrote them, so they judge the oracles as much as the oracles judge them. They run in float32 on a CPU
(instruments.mamba_ssm); one process answers all requests. The worst distance that was measured is 8e-7.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.instruments import fixtures, mamba_ssm, numerics
from contracts.instruments.oracles import mamba as oracle
from contracts.law._support.recipes import M_LAYER, SMALL
from contracts.spec import FLOAT32, BlockCall, Mode, Recipe
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.running import write

B, T, HEADS, WIDTH, GROUPS, STATE, CHUNK, CUT = 2, 21, 4, 8, 2, 16, 16, 13

RECIPE = replace(SMALL, name="kernels", hidden=16)
"""The inner width, 32, is twice the hidden one: Mamba3 of mamba-ssm knows no other way to say it."""


@dataclass(frozen=True, kw_only=True)
class Session:
    requests: Mapping[str, dict[str, Any]]
    answers: Mapping[str, dict[str, Any]]


def normal(name: str, *shape: int, scale: float = 1.0) -> Tensor:
    return fixtures.normal(name, shape, scale=scale).float()


def scan_request() -> dict[str, Any]:
    inputs = {
        "x": normal("x", B, T, HEADS, WIDTH), "dt": normal("dt", B, T, HEADS), "A": -normal("A", HEADS).abs() - 0.3,
        "B": normal("B", B, T, GROUPS, STATE), "C": normal("C", B, T, GROUPS, STATE), "D": normal("D", HEADS),
        "dt_bias": normal("bias", HEADS) - 1, "initial_states": normal("s", B, HEADS, WIDTH, STATE),
    }  # fmt: skip
    return {"kernel": "ssd", "chunk": CHUNK, "inputs": inputs, "dy": normal("dy", B, T, HEADS, WIDTH)}


def siso_request() -> dict[str, Any]:
    step = normal("DT", B, HEADS, T).abs() * 0.3 + 0.01
    inputs = {
        "Q": normal("Q", B, T, GROUPS, STATE), "K": normal("K", B, T, GROUPS, STATE),
        "V": normal("V", B, T, HEADS, WIDTH), "ADT": -normal("ADT", B, HEADS, T).abs() * step, "DT": step,
        "Trap": normal("Trap", B, HEADS, T), "Q_bias": normal("Qb", HEADS, STATE), "K_bias": normal("Kb", HEADS, STATE),
        "Angles": normal("Angles", B, T, HEADS, STATE // 4), "D": normal("D", HEADS),
        "Z": normal("Z", B, T, HEADS, WIDTH),
    }  # fmt: skip
    states = {"angle": normal("angle", B, HEADS, STATE // 4).abs(), "ssm": normal("ssm", B, HEADS, WIDTH, STATE),
              "k": normal("k", B, HEADS, STATE), "v": normal("v", B, HEADS, WIDTH)}  # fmt: skip
    dy = normal("dy", B, T, HEADS, WIDTH)
    return {"kernel": "siso", "chunk": CHUNK, "inputs": inputs, "states": states, "dy": dy}


def another_end(request: dict[str, Any]) -> dict[str, Any]:
    """The same with other tokens from CUT on, only forward."""
    name = {"ssd": "x", "siso": "V"}[request["kernel"]]
    other = request["inputs"][name].clone()
    other[:, CUT:] += 1
    forward = {name: each for name, each in request.items() if name != "dy"}
    return forward | {"inputs": request["inputs"] | {name: other}}


def block_weights(mode: Mode) -> dict[str, Tensor]:
    weights = fixtures.weights(Reference().block_weights(RECIPE, M_LAYER, mode))
    return {name: each.float() for name, each in weights.items()}


MAMBA2 = ("wz", "wx", "wb", "wc", "wdt")
MAMBA3 = (*MAMBA2, "wa", "wtrap", "wangle")


def as_mamba2(w: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a block by the names of mamba_ssm.modules.mamba2."""
    taps = torch.cat([w[f"mixer.conv_{name}.weight"] for name in "xbc"])
    return {
        "in_proj.weight": torch.cat([w[f"mixer.{name}.weight"] for name in MAMBA2]), "conv1d.weight": taps[:, None],
        "conv1d.bias": torch.cat([w[f"mixer.conv_{name}.bias"] for name in "xbc"]), "A_log": w["mixer.A_log"],
        "D": w["mixer.D"], "dt_bias": w["mixer.dt_bias"], "norm.weight": w["mixer.out_norm.weight"],
        "out_proj.weight": w["mixer.wo.weight"],
    }  # fmt: skip


def as_mamba3(w: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a block by the names of mamba_ssm.modules.mamba3."""
    return {
        "in_proj.weight": torch.cat([w[f"mixer.{name}.weight"] for name in MAMBA3]), "D": w["mixer.D"],
        "dt_bias": w["mixer.dt_bias"], "B_bias": w["mixer.b_bias"][:, None], "C_bias": w["mixer.c_bias"][:, None],
        "B_norm.weight": w["mixer.b_norm.weight"], "C_norm.weight": w["mixer.c_norm.weight"],
        "out_proj.weight": w["mixer.wo.weight"],
    }  # fmt: skip


def block_request(module: str, weights: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, Any]:
    mamba = RECIPE.mamba
    arguments = {"d_model": RECIPE.hidden, "expand": 2, "d_state": mamba.state, "headdim": mamba.head_dim,
                 "ngroups": mamba.groups, "chunk_size": CHUNK}  # fmt: skip
    if module == "Mamba2":
        arguments["use_mem_eff_path"] = False  # that path needs causal-conv1d
    u = oracle.rms_norm(normal("x", B, T, RECIPE.hidden), RECIPE.norm_eps) * weights["norm.weight"]
    dy = normal("dy", B, T, RECIPE.hidden)
    return {"kernel": "block", "module": module, "arguments": arguments, "weights": theirs, "u": u, "dy": dy}


@pytest.fixture(scope="module")
def interpreter() -> Path:
    """The environment's Python, or a skip where nobody made it; an installation that is broken is a failure."""
    found = mamba_ssm.python()
    installed = mamba_ssm.probe(found)
    if installed.state == "absent" or found is None:
        pytest.skip(f"mamba-ssm is not installed: {mamba_ssm.REMEDY}")
    assert installed.state == "importable", f"mamba-ssm {installed.version} is broken: {installed.words}"
    return found


@pytest.fixture(scope="module")
def session(interpreter: Path) -> Session:
    two, three = block_weights("nemo_native"), block_weights("author_dp")
    requests = {
        "ssd": scan_request(), "ssd, another end": another_end(scan_request()),
        "siso": siso_request(), "siso, another end": another_end(siso_request()),
        "Mamba2": block_request("Mamba2", two, as_mamba2(two)),
        "Mamba3": block_request("Mamba3", three, as_mamba3(three)),
    }  # fmt: skip
    answers = mamba_ssm.kernel_results(interpreter, list(requests.values()))
    return Session(requests=requests, answers=dict(zip(requests, answers, strict=True)))


def leaves_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: each.detach().double().requires_grad_() for name, each in tensors.items()}


def agree(what: str, got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> None:
    words = numerics.differences(what, numerics.arrays(got), numerics.arrays(want), FLOAT32)
    assert not words, words


pytestmark = pytest.mark.kernels


def test_mamba_ssms_scan_of_mamba2_equals_the_oracle(session: Session) -> None:
    request, answer = session.requests["ssd"], session.answers["ssd"]
    own = leaves_of(request["inputs"])
    dt = F.softplus(own["dt"] + own["dt_bias"])
    whole = torch.zeros(T, dtype=torch.int64)
    rows = [
        oracle.mamba2_core(own["x"][b], dt[b], own["A"], own["B"][b], own["C"][b], whole, own["initial_states"][b])
        for b in range(B)
    ]
    y = torch.stack([row[0] for row in rows]) + own["D"][:, None] * own["x"]
    found = torch.autograd.grad((y * request["dy"]).sum(), list(own.values()))
    agree("the kernel's", {"y": answer["y"], "state": answer["state"]},
          {"y": y.detach(), "state": torch.stack([row[1] for row in rows]).detach()})  # fmt: skip
    agree("the kernel's gradient of", answer["gradients"], dict(zip(own, found, strict=True)))


def siso_leaves(session: Session) -> dict[str, Tensor]:
    request = session.requests["siso"]
    return leaves_of(request["inputs"] | {f"states.{name}": each for name, each in request["states"].items()})


def mamba3_by_the_oracle(own: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    rows = []
    for b in range(B):
        dt_Th = own["DT"][b].T
        heads = torch.arange(HEADS) // (HEADS // GROUPS)
        inputs = oracle.Mamba3Inputs(
            q_Thn=own["Q"][b][:, heads] + own["Q_bias"], k_Thn=own["K"][b][:, heads] + own["K_bias"],
            v_Thp=own["V"][b], dt_Th=dt_Th, log_decay_Th=own["ADT"][b].T, end_Th=torch.sigmoid(own["Trap"][b].T),
            turn_ThS=torch.pi * torch.tanh(own["Angles"][b]) * dt_Th[..., None],
        )  # fmt: skip
        given = {name: own[f"states.{name}"][b] for name in ("angle", "ssm", "k", "v")}
        rows.append(oracle.mamba3_core(inputs, torch.zeros(T, dtype=torch.int64), given))
    y = torch.stack([row[0] for row in rows]) + own["D"][:, None] * own["V"]
    return y * F.silu(own["Z"]), {name: torch.stack([row[1][name] for row in rows]) for name in rows[0][1]}


def test_mamba_ssms_scan_of_mamba3_equals_the_oracle(session: Session) -> None:
    request, answer = session.requests["siso"], session.answers["siso"]
    own = siso_leaves(session)
    y, states = mamba3_by_the_oracle(own)
    found = torch.autograd.grad((y * request["dy"]).sum(), list(own.values()))
    agree("the kernel's", {"y": answer["y"]} | on_a_circle(answer["states"]), {"y": y.detach()} | on_a_circle(states))
    agree("the kernel's gradient of", answer["gradients"], dict(zip(own, found, strict=True)))


def on_a_circle(states: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """0 and 2π are one angle."""
    held = {name: each.detach() for name, each in states.items()}
    angle = held.pop("angle").double()
    return held | {"cos": angle.cos(), "sin": angle.sin()}


@pytest.mark.parametrize("kernel", ["ssd", "siso"])
def test_a_kernels_output_does_not_depend_on_later_tokens(session: Session, kernel: str) -> None:
    one, two = (session.answers[name]["y"] for name in (kernel, f"{kernel}, another end"))
    assert torch.equal(one[:, :CUT], two[:, :CUT])
    assert not torch.equal(one[:, CUT:], two[:, CUT:])


@pytest.mark.parametrize(("module", "mode"), [("Mamba2", "nemo_native"), ("Mamba3", "author_dp")])
def test_mamba_ssms_module_equals_the_block_of_the_reference(session: Session, module: str, mode: Mode) -> None:
    answer, request, weights = session.answers[module], session.requests[module], block_weights(mode)
    run = Reference().run_block(
        BlockCall(
            recipe=RECIPE, layer=M_LAYER, mode=mode, weights=fixtures.as_arrays(weights, torch.float64),
            x=numerics.array(normal("x", B, T, RECIPE.hidden).double()), dy=numerics.array(request["dy"].double()),
        )
    )  # fmt: skip
    theirs = (as_mamba2 if module == "Mamba2" else as_mamba3)(numerics.tensors(run.gradients))
    agree("the module's", {"y": answer["y"]}, {"y": numerics.tensor(run.y)})
    agree("the module's gradient of", {name: each for name, each in answer["gradients"].items() if name != "u"}, theirs)


def behaviour(session: Session) -> dict[str, str]:
    """What the version does not show: builds of one version differ in their maths."""
    answer, request = session.answers["Mamba3"], session.requests["Mamba3"]
    parts = torch.split(request["u"] @ request["weights"]["in_proj.weight"].T, sizes_of(RECIPE), dim=-1)
    a_BTh, trap_BTh = parts[5], parts[6]
    decay_BTh = -(answer["passed"]["ADT"] / answer["passed"]["DT"]).transpose(1, 2)
    heavy = torch.where(a_BTh >= 0, 1 + a_BTh, 1 / (1 + a_BTh.abs()))
    decays = {"softplus": F.softplus(a_BTh).clamp(min=1e-4), "heavy tail": heavy.clamp(min=1e-4)}
    passed = answer["passed"]["Trap"].transpose(1, 2)
    own = siso_leaves(session)
    order = [i for pair in zip(range(STATE // 4), range(STATE // 4, STATE // 2), strict=True) for i in pair]
    order += range(STATE // 2, STATE)
    halves = {name: each[..., order] if each.shape[-1] == STATE else each for name, each in own.items()}
    pairings = {"2i with 2i + 1": own, "i with i + S": halves}
    ys = {name: mamba3_by_the_oracle(each)[0] for name, each in pairings.items()}
    return {
        "A": nearest(decay_BTh, decays),
        "trap": nearest(passed, {"before its sigmoid": trap_BTh, "after it": torch.sigmoid(trap_BTh)}),
        "pairs": nearest(session.answers["siso"]["y"], ys),
    }


def sizes_of(recipe: Recipe) -> list[int]:
    mamba = recipe.mamba
    inner, grouped = mamba.heads * mamba.head_dim, mamba.groups * mamba.state
    return [inner, inner, grouped, grouped, mamba.heads, mamba.heads, mamba.heads, mamba.state // 4]


def nearest(got: Tensor, candidates: Mapping[str, Tensor]) -> str:
    """The candidate that it equals within 1e-4; the others are 1e-2 away at least, so that only one can."""
    off = {name: float(((got - each).norm() / each.norm()).detach()) for name, each in candidates.items()}
    close = [name for name, distance in off.items() if distance < 1e-4]
    assert all(distance > 1e-2 for name, distance in off.items() if name not in close), f"cannot be told apart: {off}"
    return close[0] if close else f"none of {off}"


def test_the_installed_build_behaves_as_the_blocks_are_defined(session: Session) -> None:
    assert behaviour(session) == {"A": "softplus", "trap": "before its sigmoid", "pairs": "2i with 2i + 1"}


def test_a_mamba_ssm_build_is_identified_by_a_digest_of_its_files(interpreter: Path) -> None:
    installed = mamba_ssm.probe(interpreter)
    assert installed.version == "2.3.2.post1"
    assert (installed.build or "").startswith(("sha256:", "git:"))


def test_an_environment_without_mamba_ssm_is_reported_as_absent() -> None:
    assert mamba_ssm.probe(Path(sys.executable)).state == "absent"
    assert mamba_ssm.probe(None).state == "absent"


def test_a_mamba_ssm_that_cannot_be_imported_is_reported_as_broken_and_not_as_absent(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    said = subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                          check=True, capture_output=True, text=True)  # fmt: skip
    write(Path(said.stdout.strip()) / "mamba_ssm", {"__init__.py": "import triton_that_nobody_has\n"})
    found = mamba_ssm.probe(python)
    assert (found.state, found.words) == (
        "broken", "ModuleNotFoundError: No module named 'triton_that_nobody_has'",
    )  # fmt: skip
