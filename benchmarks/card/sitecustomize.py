"""Python imports this at its start where PYTHONPATH names this folder: a machine without a card, or one that has one.

`RANKPROOF_CARD` is what NVML says: 0 or 1 cards. With 0 nothing else is replaced, and a fork whose parent has asked
CUDA itself for a device ends at once (a build of torch for CUDA is needed, which keeps account of it). With 1 torch
sees a card of capability (9, 0) that computes nothing. Code that touches CUDA, among it autograd and the compiler,
takes it from every fork that comes after, as on a real card: touching it there is an error.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

CARDS = int(os.environ["RANKPROOF_CARD"])
LOST = 70  # the exit code of a fork that could not use CUDA
NAME = "NVIDIA H200 (imitated)"


class _Card:
    """The card, and which process has touched CUDA."""

    toucher = 0

    def touch(self, *_: Any, **__: Any) -> None:
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            raise RuntimeError("No CUDA GPUs are available (benchmarks/card)")
        if self.toucher not in (0, os.getpid()):
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess (a card that benchmarks/card imitates)")
        self.toucher = os.getpid()

    def answer(self, value: Any) -> Any:
        """A function that touches CUDA and returns a value."""

        def answering(*_: Any, **__: Any) -> Any:
            self.touch()
            return value

        return answering

    def before(self, work: Any) -> Any:
        """The function, which touches CUDA first where this process can; where not, that is no error yet."""

        def touching(*given: Any, **named: Any) -> Any:
            if os.environ.get("CUDA_VISIBLE_DEVICES") != "":
                self.toucher = self.toucher or os.getpid()
            return work(*given, **named)

        return touching

    def put_into(self, torch: Any) -> None:
        """Each function is another: the compiler has a rule for each of torch's."""
        state = torch.zeros(16, dtype=torch.uint8)
        facts = SimpleNamespace(name=NAME, major=9, minor=0, total_memory=141 << 30, multi_processor_count=132)
        answers = {
            "get_device_name": NAME, "get_device_capability": (9, 0), "get_device_properties": facts,
            "get_rng_state": state, "get_rng_state_all": [state], "set_rng_state": None, "init": None,
            "_lazy_init": None, "synchronize": None, "current_stream": None, "empty_cache": None, "current_device": 0,
            "is_current_stream_capturing": False,
            "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0, "max_memory_reserved": 0,
        }  # fmt: skip
        for name, value in answers.items():
            setattr(torch.cuda, name, self.answer(value))
        torch.accelerator.is_available = lambda: False  # the compiler wants a stream of it, which a driver makes
        torch.cuda.is_initialized = lambda: self.toucher == os.getpid()
        torch.autograd._engine_run_backward = self.before(torch.autograd._engine_run_backward)
        torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward


class _Import(importlib.abc.MetaPathFinder):
    """Imports torch as Python does, and makes it see the cards."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        found = importlib.machinery.PathFinder.find_spec(name, path) if name == "torch" else None
        if found is None or found.loader is None:
            return None
        run = found.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            module.cuda._raw_device_count_nvml = lambda: CARDS
            if CARDS:
                _Card().put_into(module)

        found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


def _judge_a_fork() -> None:
    if "torch" in sys.modules and sys.modules["torch"].cuda._is_in_bad_fork():
        os.write(2, b"this process was forked from one that had asked CUDA for a device\n")
        os._exit(LOST)


sys.meta_path.insert(0, _Import())
if CARDS:
    sys.modules["triton"] = None  # type: ignore[assignment]  # the compiler would look for the driver's library
else:
    os.register_at_fork(after_in_child=_judge_a_fork)
