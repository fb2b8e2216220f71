"""The real mamba-ssm: whether it is installed, which build it is, and the results of its kernels on a CPU.

It has its own environment, `.venv-kernels` (`make kernels`), and runs in a separate process: Triton's interpreter must
be switched on before the import, and parts of torch are replaced.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

ENVIRONMENT = ".venv-kernels"
REMEDY = "make it with `make kernels`"
TIMEOUT_S = 600.0  # the tests' requests take 60 s on a busy machine of two cores

_HERE = Path(__file__).parent
_CLEARED = ("NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "TRITON_", "MAMBA_", "PYTHON")
_IMPORTS = """
import importlib.util, sys
if importlib.util.find_spec("mamba_ssm") is None: sys.exit("absent")
try: import mamba_ssm.modules.mamba2, mamba_ssm.modules.mamba3
except BaseException as error: sys.exit(f"{type(error).__name__}: {error}")
"""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """Whether mamba-ssm is installed.

    Args:
        state: `absent`: there is nothing to judge. `broken`: installed, but it cannot be imported, which is a failure.
        words: why it is broken.
        build: proof of the build (instruments.packages); two builds of one version may compute different numbers.
    """

    state: Literal["absent", "broken", "importable"]
    words: str = ""
    version: str | None = None
    build: str | None = None


def python() -> Path | None:
    """The interpreter of that environment, in the current directory, its parents or the directory of this suite."""
    for directory in _directories():
        found = directory / ENVIRONMENT / "bin" / "python"
        if found.exists():
            return found
    return None


def probe(interpreter: Path | None) -> Installed:
    """Whether mamba-ssm is installed and can be imported, tested in a separate process."""
    if interpreter is None:
        return Installed(state="absent")
    tried = _run(interpreter, "-c", _IMPORTS)
    words = tried.stderr.strip().splitlines()[-1:] or [f"exit code {tried.returncode}"]
    if tried.returncode and words == ["absent"]:
        return Installed(state="absent")
    listed = json.loads(_run(interpreter, str(_HERE / "packages.py")).stdout)["components"]
    found: dict[str, str | None] = next((each for each in listed if each["name"] == "mamba-ssm"), {})
    version, build = found.get("version"), found.get("build")
    if tried.returncode:
        return Installed(state="broken", words=words[0], version=version, build=build)
    return Installed(state="importable", version=version, build=build)


def kernel_results(interpreter: Path, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kernels' result of each request (instruments.mamba_ssm_worker), forward and backward.

    Raises:
        RuntimeError: with the end of the worker's output, when it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.pt", Path(folder) / "answer.pt"
        torch.save(list(requests), request)
        done = _run(interpreter, "-O", str(_HERE / "mamba_ssm_worker.py"), str(request), str(answer))
        if done.returncode:
            raise RuntimeError(f"the kernels ended with {done.returncode}: {done.stderr[-2000:]}")
        found: list[dict[str, Any]] = torch.load(answer, weights_only=True)
    return found


def _run(interpreter: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLEARED)}
    command = [str(interpreter), "-P", "-s", "-W", "ignore", *words]
    return subprocess.run(command, env=kept, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def _directories() -> Iterator[Path]:
    here = Path.cwd()
    yield from (here, *here.parents, *_HERE.parents)
