"""Facts that ranks report about their run: place on the node, peak memory, kernels that ran, time of the slowest.

While a run goes well the ranks gather their facts, so each rank knows those of all. After a failure no rank can be
waited for, so each reports only its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from contracts.instruments import process_memory, provenance, ranks
from contracts.instruments.node import read_node
from contracts.spec import Facts, codec, receipt
from contracts.spec.receipt import Backend, RankMemory
from contracts.stacks.reference.answers.kernel_selection import KernelSelectionAnswers

if TYPE_CHECKING:  # torch is loaded after the provenance of the run is taken
    from contracts.stacks.reference.training.trainer import Trainer

Done = TypeVar("Done")
KERNELS = {"grouped": "torch-grouped", "loop": "native"}  # as the experts call what multiplies → as a receipt does


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """Facts of one rank, or gathered from all: `places` of one node, `memory` by rank."""

    places: tuple[receipt.Place, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    backends: tuple[Backend, ...] = ()


class RankReporter:
    """Collects the facts of this rank and gathers those of the others. `place` is this rank's place in the world."""

    def __init__(self, place: ranks.Place) -> None:
        self.place = place
        self.ran: set[str] = set()
        self.widths: set[tuple[int, ...]] = set()

    @property
    def mark(self) -> str:
        """The suffix of this rank's receipt file; empty for rank 0."""
        return f"-rank{self.place.rank:05d}" if self.place.rank else ""

    # a step
    def timed_step(self, step: Callable[[], Done]) -> tuple[Done, float]:
        """Run a step. Returns its result and the seconds of the slowest rank, for which the others wait here."""
        before = time.perf_counter()
        done = step()
        return done, self.slowest(time.perf_counter() - before)

    def slowest(self, seconds: float) -> float:
        if self.place.world == 1:
            return seconds
        torch, dist = ranks.torch_distributed()
        most = torch.tensor([seconds], dtype=torch.float64, device=ranks.device())
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return float(most.item())

    # this rank
    def watch_experts(self, trainer: Trainer) -> None:
        """Record which kernel multiplies the experts' matrices at each call, and their widths on this rank."""
        from contracts.stacks.reference.model.blocks import Experts
        from contracts.stacks.reference.model.blocks.common import local

        for module in trainer.model.modules():
            if isinstance(module, Experts):
                self.widths.add(tuple(local(module.w1).shape[1:]))
                setattr(module, "backend", self._noted(module.backend))  # noqa: B010  # nn.Module types its attributes

    def _noted(self, choose: Callable[..., str]) -> Callable[..., str]:
        def chosen(*given: Any) -> str:
            chose = choose(*given)
            self.ran.add(KERNELS[chose])
            return chose

        return chosen

    def local_facts(self, trainer: Trainer) -> RankFacts:
        return RankFacts(
            places=(self.node_place(trainer.execution.device),),
            memory=(self.peak_memory(trainer.execution.device),),
            backends=(*self.collectives(trainer.execution.device), *self.kernels(trainer)),
        )

    def node_place(self, device: str) -> receipt.Place:
        """Place on the node: as preflight reports it for a rank on a device, by number for one on a CPU."""
        torch, _ = ranks.torch_distributed()
        rank = self.place.local_rank
        if device == "cpu":
            return receipt.Place(local_rank=rank)
        return replace(provenance.places(rank + 1, read_node().topology)[rank], device=torch.cuda.current_device())

    def peak_memory(self, device: str) -> RankMemory:
        """Peak memory. A CPU has no counting allocator: both numbers are then the peak resident size."""
        torch, _ = ranks.torch_distributed()
        if device == "cuda":
            allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        else:
            allocated = reserved = process_memory.peak()
        return RankMemory(rank=self.place.rank, allocated=allocated, reserved=reserved)

    def collectives(self, device: str) -> Iterable[Backend]:
        if self.place.world > 1:
            actual = ranks.backend_of(device)
            reason = None if actual == "nccl" else f"this rank trains on {device}, with {actual}"
            yield Backend(part="collectives", requested="nccl", actual=actual, reason=reason)

    def kernels(self, trainer: Trainer) -> Iterable[Backend]:
        """Every site of the recipe; for the experts, the kernels that were observed."""
        torch, _ = ranks.torch_distributed()
        device: Literal["cpu", "cuda"] = "cpu" if trainer.execution.device == "cpu" else "cuda"
        capability = "sm_{}{}".format(*torch.cuda.get_device_capability()) if device == "cuda" else None
        facts = Facts(device=device, capability=capability)
        for seam in KernelSelectionAnswers().seams(trainer.recipe, trainer.execution.mode, {}, facts):
            row = Backend(part=seam.site, requested=seam.requested, actual=seam.actual, reason=seam.reason)
            if seam.site != "experts" or self.ran in (set(), {row.actual}):
                yield row
                continue
            ran = ", ".join(sorted(self.ran))
            yield replace(
                row, actual=ran, reason=row.reason or f"{ran} took the experts' matrices, {sorted(self.widths)}"
            )

    # all ranks
    def gather(self, own: RankFacts) -> RankFacts:
        """Facts of all ranks; of the places only those on this rank's node. A collective: every rank calls it."""
        if self.place.world == 1:
            return own
        said = ranks.gathered([self.place.node, codec.encode(own)])
        every = [(node, codec.decode(RankFacts, told)) for node, told in said]
        places = [place for node, told in every for place in told.places if node == self.place.node]
        return RankFacts(
            places=tuple(sorted(places, key=lambda place: place.local_rank)),
            memory=tuple(row for _, told in every for row in told.memory),
            backends=merge_backends([told.backends for _, told in every]),
        )


def merge_backends(every: list[tuple[Backend, ...]]) -> tuple[Backend, ...]:
    """The backends of all ranks, by part. If ranks differ, the row says which had what."""
    said: dict[str, dict[int, Backend]] = {}
    for rank, rows in enumerate(every):
        for row in rows:
            said.setdefault(row.part, {})[rank] = row
    return tuple(_one(part, rows) for part, rows in said.items())


def _one(part: str, rows: dict[int, Backend]) -> Backend:
    first = next(iter(rows.values()))
    if all(row == first for row in rows.values()):
        return first
    reasons = _by_rank({rank: row.reason for rank, row in rows.items() if row.reason})
    return Backend(
        part=part,
        requested=_by_rank({rank: row.requested for rank, row in rows.items()}),
        actual=_by_rank({rank: row.actual for rank, row in rows.items()}),
        reason=reasons or None,
    )


def _by_rank(words: dict[int, str]) -> str:
    """`a` where all say a; else `a on rank 0, 2; b on rank 1`."""
    whose: dict[str, list[str]] = {}
    for rank, word in words.items():
        whose.setdefault(word, []).append(str(rank))
    if len(whose) == 1:
        return next(iter(whose))
    return "; ".join(f"{word} on rank {', '.join(its)}" for word, its in whose.items())
