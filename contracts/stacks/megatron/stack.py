"""The installed Megatron-Core as a stack under test: in its own environment, several versions side by side.

Megatron needs a Python, a torch and a dozen packages that must not change the suite's. So each version has a virtual
environment `.venv-megatron-VERSION` (`make megatron` builds them). Launch questions go over `rankproof/1` to a worker,
one per version and process. It imports Megatron once, which takes some 4 s, and answers from forks in milliseconds.
Questions about numbers are answered in process, by a suite that runs in that environment:
`.venv-megatron-VERSION/bin/rankproof`.
"""

import functools
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts.spec import Abilities, NotOffered, Unreachable, install_by, questions
from contracts.stacks.kit.answering import JUDGE, answering, version_of
from contracts.stacks.kit.versions import FallingBack, labels
from contracts.stacks.launched import Launched
from contracts.stacks.megatron.abilities import CONVENTIONS, ELSEWHERE, OF_AN_OPTIMIZER, VERSIONS, of_version
from contracts.stacks.without_cuda import unforked

MODULE = "megatron.core"
TIMEOUT_S = 120.0  # the first question imports Megatron, and a world of 65 536 ranks takes half a minute

# The environment's own packages come first and this suite last, so the suite cannot replace any of them.
_BOOTSTRAP = (
    "import sys; sys.path[:] = [path for path in sys.path if path]; sys.path.append(sys.argv.pop(1)); "
    "from contracts.stacks.megatron.worker import main; main(sys.argv[1:])"
)
_SUITE = Path(__file__).parents[3]
_CLEARED = ("NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "NVTE_", "WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_", "PYTHON")


class Megatron:
    """An installed Megatron-Core.

    Offers `topology`, `group_calls` and `gradient_reduction` in the borrowed layout and, from 0.17 on, `read_argv`
    and `read_pattern`. If it is installed in this interpreter, it also offers blocks, training and live groups.
    `labels` says for each question what was replaced to run it on a CPU.

    Args:
        version: the version; None for that of this interpreter, or else the newest installed one.
        distributed_optimizer: whether it trains with its distributed optimizer, overlapped. Asked so, it is named
            `megatron-distributed-optimizer` and offers what an optimizer has a part in.
        pythons: version → Python executable of its environment. None: look for `.venv-megatron-VERSION` in the current
            directory, its parents and the directory of this suite.

    Raises:
        Unreachable: when there is no such environment (with the command that creates it), or it has another version.
    """

    conventions: Mapping[str, str] = CONVENTIONS
    computes_on = frozenset({"cpu", "cuda"})

    def __init__(
        self,
        version: str | None = None,
        *,
        pythons: Mapping[str, str | os.PathLike[str]] | None = None,
        distributed_optimizer: bool = False,
    ) -> None:
        found = {name: Path(path) for name, path in pythons.items()} if pythons is not None else installed()
        own = of_this_interpreter() if pythons is None else ""
        if own:
            found[own] = Path(sys.executable)
        chosen = version or own or (max(found, key=_order) if found else VERSIONS[-1])
        if chosen not in found:
            other = "" if chosen in VERSIONS else f" MEGATRON={chosen}"
            command = install_by(f"make megatron{other}", f"pip install megatron-core=={chosen}")
            raise Unreachable(f"Megatron-Core {chosen} is not installed: make it with `{command}`")
        self._worker = _worker(found[chosen], chosen == own)
        if self._worker.version != chosen:
            raise Unreachable(f"{found[chosen]} has Megatron-Core {self._worker.version}, not {chosen}")
        self._python = found[chosen]
        self.name, self.version = self._worker.name, self._worker.version
        self.offers, self.layouts, self.labels = self._worker.offers, self._worker.layouts, self._worker.labels
        self.repeats = self.offers  # each answer comes from a fork of one process, which no question changes
        self.answering = self._worker.answering
        self._numbers: Any = None
        self.abilities: Abilities | None = None
        if chosen == own:
            module = importlib.import_module("contracts.stacks.megatron.numeric_answers")
            answers = module.NumericAnswers(distributed_optimizer=distributed_optimizer)
            versions = VERSIONS[-1:] if distributed_optimizer else VERSIONS
            tried = self.version in versions
            self.answering += answering(MODULE, own, JUDGE)
            self._numbers = answers if tried else FallingBack(answers, f"megatron {self.version}", versions)
            self.offers |= answers.offers
            muon = importlib.util.find_spec("emerging_optimizers") is not None
            can = of_version(self.version, distributed_optimizer=distributed_optimizer, muon=muon)
            self.abilities = can if tried else replace(can, claims=False)
            self.repeats -= answers.offers
            self.labels = {**self.labels, **labels(answers.labels, self.version, versions)}
        self._of_the_optimizer = distributed_optimizer
        if distributed_optimizer:
            self.name += "-distributed-optimizer"
            self.offers &= OF_AN_OPTIMIZER
            self.repeats &= OF_AN_OPTIMIZER
            self.labels = {each: words for each, words in self.labels.items() if each in self.offers}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in questions():
            raise AttributeError(f"{type(self).__name__} has no {name!r}, and it is no question")
        if self._of_the_optimizer and name not in OF_AN_OPTIMIZER:
            raise NotOffered(f"{self.name}: {ELSEWHERE}", "stack")
        of_numbers = self._numbers is not None and name in self._numbers.offers
        asked: Callable[..., Any] = getattr(self._numbers if of_numbers else self._worker, name)
        return unforked(self, name, asked) if of_numbers else asked

    def flags(self) -> list[dict[str, Any]]:
        """Every flag of the live argument parser: names, dest, type, default, choices, nargs."""
        command, own = [*_command(self._python), "flags"], self._python == Path(sys.executable)
        try:
            done = subprocess.run(
                command, env=environment(own=own), capture_output=True, text=True, check=True, timeout=TIMEOUT_S
            )
        except subprocess.CalledProcessError as error:
            raise Unreachable(f"megatron {self.version} has no argument parser: {error.stderr[-600:]}") from None
        listed: list[dict[str, Any]] = json.loads(done.stdout)
        return listed


def of_this_interpreter() -> str:
    """The version of Megatron-Core that this interpreter imports; empty if there is none."""
    return version_of("megatron-core", MODULE) or ""


def installed() -> dict[str, Path]:
    """Version → Python executable of every environment found, the nearest directory first."""
    found: dict[str, Path] = {}
    for directory in _directories():
        for environment in sorted(directory.glob(".venv-megatron-*")):
            python = environment / "bin" / "python"
            if python.exists():
                found.setdefault(environment.name.removeprefix(".venv-megatron-"), python)
    return found


def _directories() -> Iterator[Path]:
    here = Path.cwd()
    yield from (here, *here.parents, _SUITE)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _command(python: Path) -> tuple[str, ...]:
    return (str(python), "-P", "-s", "-W", "ignore", "-c", _BOOTSTRAP, str(_SUITE))


def environment(*, own: bool = False) -> dict[str, str]:
    """The environment of a worker, without variables that affect Python, torch or Megatron: only a launch sets them.

    Args:
        own: whether it is this interpreter's. Then it imports from where this process does, so that one Megatron
            answers everything.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLEARED)}
    if own and "PYTHONPATH" in os.environ:
        kept["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return kept | {"PYTHONHASHSEED": "0"}  # Megatron prints sets in its errors


@functools.cache
def _worker(python: Path, own: bool) -> Launched:
    return Launched(_command(python), env=environment(own=own), inherit=False, persistent=True, timeout_s=TIMEOUT_S)
