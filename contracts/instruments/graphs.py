"""Counts what torch.compile made of a function: graphs, operations, breaks and their places, recompilations.

A backend of our own counts each graph and passes it to the real backend. No torch has a public interface for breaks and
recompilations; `graph_breaks` and `_attempt` read private ones, and name the versions that have them.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from contracts.spec import Break, Graphs


@dataclass
class Counter:
    """A backend for `torch.compile` that counts what passes through it."""

    backend: str
    graphs: int = 0
    recompiles: int = 0
    operations: int = 0
    targets: set[str] = field(default_factory=set)

    def __call__(self, graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        calls = [node for node in graph.graph.nodes if node.op.startswith("call_")]
        self.graphs += 1
        self.recompiles += _attempt() > 0
        self.operations += len(calls)
        self.targets |= {_target(node.target) for node in calls}
        compiled: Callable[..., Any] = torch._dynamo.lookup_backend(self.backend)(graph, inputs)
        return compiled

    def seen(self) -> Graphs:
        return Graphs(
            graphs=self.graphs, recompiles=self.recompiles, operations=self.operations, breaks=graph_breaks(),
            targets=frozenset(self.targets),
        )  # fmt: skip


@contextmanager
def counting(backend: str) -> Iterator[Counter]:
    """Compile under a counter, with a reset compiler, and reset it again at the end.

    A recompilation beyond the limit is an error here; torch would silently fall back to eager.
    """
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    reset_compiler()
    try:
        with dynamo.patch(fail_on_recompile_limit_hit=True), inductor.patch(fx_graph_cache=False):
            yield Counter(backend)
    finally:
        reset_compiler()


def reset_compiler() -> None:
    """Reset this process's compiler, as if it had compiled nothing."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()


def compiled_count() -> int:
    """Number of graphs that this process has compiled since it began or since the last `reset_compiler`.

    `torch._dynamo.utils.counters["stats"]["unique_graphs"]`, private, torch 2.1 to 2.13.
    """
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def graph_breaks() -> tuple[Break, ...]:
    """Reasons of graph breaks since the last reset, with the functions that they name.

    `torch._dynamo.utils.counters["graph_break"]`, private, torch 2.1 to 2.13: reason → how often.
    """
    from torch._dynamo.utils import counters

    found = []
    for reason, count in sorted(counters["graph_break"].items()):
        named = re.search(r"<function (\S+) at|function `?([\w.]+)`?|method (\S+) of", reason)
        site = next((name for name in named.groups() if name), "") if named else ""
        found.append(Break(site=site, reason=" ".join(reason.split())[:300], count=int(count)))
    return tuple(found)


def _attempt() -> int:
    """How often the current frame was compiled before.

    `torch._guards.CompileContext`, private, torch 2.1 to 2.13: the id of a compilation is frame and attempt.
    """
    from torch._guards import CompileContext

    compiling = CompileContext.current_compile_id()
    return 0 if compiling is None else int(compiling.frame_compile_id or 0)


def _target(target: object) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
