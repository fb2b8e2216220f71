"""What the reference compiles, as a value (spec/compiling.py)."""

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from typing import cast

from contracts.spec import (
    AllowedBreak,
    Arrays,
    Backend,
    BlockCall,
    CompiledPasses,
    CompiledRuns,
    Element,
    Execution,
    Operation,
    Outcome,
    Recipe,
    Tokens,
    Wrap,
    codec,
)
from contracts.spec.interpreter import python
from contracts.stacks.line_process import Failed
from contracts.stacks.reference.answers import forked_interpreter
from contracts.stacks.reference.answers.base import BuiltOfParts
from contracts.stacks.reference.answers.forked_interpreter import Asked, Done

COLD_S = 300.0  # inductor was seen to take 40 s for a block on two busy cores

COLD = "contracts.stacks.reference.answers.cold_compile"
"""What a fresh interpreter runs."""


class CompilingAnswers(BuiltOfParts):
    """The answers of `Reference` on this subject."""

    def run_compiled(self, calls: tuple[BlockCall, ...], backend: Backend) -> CompiledRuns:
        from contracts.instruments.graphs import counting
        from contracts.stacks.reference.answers import blocks as branch
        from contracts.stacks.reference.model.compile import compiled

        held = branch.build_block(calls[0], self.parts())
        runs, graphs = [], []
        with counting(backend) as counter:
            forward = compiled(held, lambda *given: branch.forward_block(held, *given), counter)
            for call in calls:
                runs.append(branch.run_call(held, forward, call, self.parts()))
                graphs.append(counter.seen())
        return CompiledRuns(runs=tuple(runs), graphs=tuple(graphs))

    def pass_compiled(
        self, recipe: Recipe, execution: Execution, weights: Arrays, batches: tuple[Tokens, ...]
    ) -> CompiledPasses:
        from contracts.instruments.graphs import counting
        from contracts.stacks.reference.answers.model import forward_pass
        from contracts.stacks.reference.model.build import build_model
        from contracts.stacks.reference.model.compile import compile_regions

        model = build_model(recipe, replace(execution, compile="none"), self.parts(), weights)
        passes, graphs = [], []
        with counting(execution.backend) as counter:
            compile_regions(model, execution.compile, counter)
            for batch in batches:
                passes.append(forward_pass(model, execution, batch, backward=True))
                graphs.append(counter.seen())
        return CompiledPasses(passes=tuple(passes), graphs=tuple(graphs))

    def allowed_breaks(self, recipe: Recipe, execution: Execution) -> tuple[AllowedBreak, ...]:
        from contracts.stacks.reference.model.compile import ALLOWED, BETWEEN_RANKS

        apart = execution.degrees.ep_active and recipe.moe is not None
        return (*ALLOWED, *BETWEEN_RANKS) if apart else ALLOWED

    def compile_cold(self, call: BlockCall, backend: Backend) -> Outcome:
        cold = (COLD, type(self).__module__, type(self).__qualname__, backend)
        return _in_a_fresh_interpreter(cold, codec.dumps(call))

    def compile_here(self, call: BlockCall, backend: Backend) -> Outcome:
        """What the fresh interpreter asks."""
        from contracts.stacks.reference.answers.cold_compile import compile_outcome

        return compile_outcome(self.parts(), call, backend)

    def compile_under(self, call: BlockCall, environment: Mapping[str, str], folder: str) -> Outcome:
        cold = (COLD, type(self).__module__, type(self).__qualname__, "inductor")
        return _in_an_interpreter(cold, codec.dumps(call), environment, folder)

    def probe_compiler(self, operation: Operation, dtype: Element, sabotaged: bool) -> Outcome:
        words = (
            "contracts.instruments.inductor_indexing",
            operation,
            dtype,
            "sabotaged" if sabotaged else "as installed",
        )
        return _in_a_fresh_interpreter(words, "")

    def pads_rows(self, device: str, compiled: bool) -> bool:
        """Never: rows are sorted by expert and lie without gaps, in eager and in every graph."""
        return False

    def wrapping(self, recipe: Recipe, execution: Execution) -> tuple[Wrap, ...]:
        trainer = self.trainer_of(execution)(recipe, execution, self.parts())
        trainer.close()
        return cast("tuple[Wrap, ...]", getattr(trainer, "wrapped", ()))


@functools.cache
def _libraries() -> str:
    """The folder in which inductor keeps what the C++ compiler made of a source, by the hash of source and command: a
    folder for each version of torch and of the compiler, which that hash leaves out."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    said = subprocess.run((found, "--version"), capture_output=True, check=False).stdout if found else b""
    version = hashlib.sha256(metadata.version("torch").encode() + said).hexdigest()[:12]
    ours = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
    return f"{ours}/rankproof-{version}"


def _in_a_fresh_interpreter(words: tuple[str, ...], said: str) -> Outcome:
    """The answer of a module of ours that is run by itself: no graph is known to inductor from another run, and each
    is lowered and written out as source anew."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": _libraries()}
    asked = Asked(words=words, said=said, environment=environment, folder=None)
    try:
        return _outcome(forked_interpreter.run(asked, seconds=COLD_S))
    except Failed as error:
        return Outcome(worked=False, words=f"the interpreter {error}")


def _in_an_interpreter(words: tuple[str, ...], said: str, environment: Mapping[str, str], folder: str) -> Outcome:
    command = python("-W", "ignore", "-m", *words)
    try:
        done = subprocess.run(
            command,
            input=said,
            capture_output=True,
            text=True,
            timeout=COLD_S,
            check=False,
            env=environment,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        return Outcome(worked=False, words=f"no end within {COLD_S:g} s")
    return _outcome(done)


def _outcome(done: Done | subprocess.CompletedProcess[str]) -> Outcome:
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Outcome(worked=False, words=last)
    return codec.loads(Outcome, done.stdout.strip().splitlines()[-1])
