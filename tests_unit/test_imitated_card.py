"""The imitated CUDA device: it raises where CUDA would, and shows what a stack leaves on the host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.13")

ROOT = Path(__file__).parents[1]
CASES = "BLK-01a[gqa],BLK-04a[plain],MOE-01c[softmax],BLK-01i[dense],PAR-05a[two@dense]"
A_MASK_STAYS = """
from contracts.stacks.reference.model.blocks import common
from contracts.stacks.reference.stack import Reference

kept = common.RMSNorm.forward
common.RMSNorm.forward = lambda self, x: kept(self, x) * __import__("torch").ones(x.shape[-1])


class Forgets(Reference):
    pass
"""


def run(*words: str, path: Path = ROOT, python: tuple[str, ...] = ("-m", "benchmarks.imitated_card")) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(path))), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *python, *words], cwd=path, env=env, capture_output=True, text=True,
                          check=False)  # fmt: skip
    return done.stdout + done.stderr


def test_tensors_on_the_device_compute_as_on_a_cpu_and_mixtures_raise() -> None:
    said = run("-c", """
import torch
from benchmarks import imitated_card
imitated_card.install()
host, layer = torch.randn(3, 4), torch.nn.Linear(4, 4)
want = torch.nn.functional.linear(host, layer.weight, layer.bias).square().sum()
want.backward()
wanted = layer.weight.grad.clone()
layer.zero_grad()
layer = layer.to("cuda")
assert layer.weight.device == torch.device("cuda", 0) and layer.weight.is_cuda and not host.is_cuda
layer(host.to("cuda")).square().sum().backward()
assert layer.weight.grad.is_cuda and torch.equal(layer.weight.grad.cpu(), wanted)
torch.optim.AdamW(layer.parameters(), lr=0.1).step()
assert not torch.equal(layer.weight.cpu(), wanted)
assert torch.zeros(2, device="cuda").add_(1).tolist() == [1, 1] and host.new_tensor(1).device.type == "cpu"
turned, turn = torch.randn(3, 2), torch.polar(torch.ones(3), torch.randn(3))
grads = [torch.autograd.grad(torch.view_as_real(torch.view_as_complex(x) * turn.to(x.device))[:, 0].sum(), x)[0].cpu()
         for x in (turned.clone().to(there).requires_grad_() for there in ("cpu", "cuda"))]
assert torch.equal(*grads), "what is conjugated in the backward pass"
row = layer.weight.detach()[0]
row.zero_()
assert layer.weight[0].abs().sum().item() == 0, "a view is of the same memory"
for wrong in (lambda: layer(host), lambda: host[torch.tensor([0], device="cuda")], lambda: row.numpy()):
    try:
        wrong()
    except (RuntimeError, TypeError) as error:
        print("raised", error)
""", python=())  # fmt: skip
    assert said.count("raised") == 3, said
    assert "cuda:0 and cpu" in said


def test_the_reference_leaves_no_tensor_of_these_cases_on_the_host(tmp_path: Path) -> None:
    said = run("check", "--device", "cuda", "--profile", CASES, path=tmp_path)
    assert "CONFORMANT" in said, said
    assert "with memory allocated there for 5 of 5 results" in said


def test_a_tensor_that_stays_on_the_host_breaks_the_question(tmp_path: Path) -> None:
    (tmp_path / "forgets.py").write_text(A_MASK_STAYS)
    said = run("check", "--stack", "forgets:Forgets", "--device", "cuda", "--profile", "BLK-01a[gqa]", path=tmp_path)
    assert "BROKEN" in said, said
    assert "has cuda:0 and cpu" in " ".join(said.split())
