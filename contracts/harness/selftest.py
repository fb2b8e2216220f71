"""The self-test: every contract must hold on the reference and catch each of its mutants, in the declared words.

The kill matrix shows that a green gate means something. The baseline, on the reference, is judged first and must not be
empty: a mutant proves nothing where the contract does not hold to begin with.
"""

import functools
import multiprocessing
import os
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from contracts.contract import LAW, Contract, Law, Mutant, Tier
from contracts.court import fitness
from contracts.court.judge import judge, try_mutant
from contracts.harness import parties
from contracts.harness.families import read_checks, read_mutants
from contracts.harness.garbage_collection import collect_seldom
from contracts.harness.loss_curves import AGREES
from contracts.spec import Party
from contracts.spec.records import Kill, Result, Word

Telling = Callable[[Result | Kill], object]
"""Hears of each judgement as it is made."""


def _nobody(_: Result | Kill) -> None:
    """Where nobody waits for them."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """What the self-test found: the baseline, the fate of each mutant, and the contracts without a mutant."""

    baseline: tuple[Result, ...]
    kills: tuple[Kill, ...]
    unguarded: tuple[str, ...]

    @property
    def failing(self) -> tuple[Result, ...]:
        """Results of contracts that do not hold on the reference, or could not be run on it."""
        return tuple(result for result in self.baseline if result.outcome not in ("holds", "not offered"))

    @property
    def unfit(self) -> Mapping[str, str]:
        """Id → reason, of the contracts that may not judge."""
        return fitness.unfit(self.baseline, self.kills, self.unguarded)

    @property
    def word(self) -> Word:
        fates = {kill.fate for kill in self.kills}
        outcomes = {result.outcome for result in self.failing}
        if not self.kills or not self.baseline:
            return "nothing ran"
        if "violated" in outcomes or self.unguarded or {"survived", "wrong words"} & fates:
            return "violated"
        if "broken" in outcomes or "crashed" in fates:
            return "broken"
        return "incomplete" if "not run" in outcomes or "void" in fates else "conformant"

    @property
    def trained(self) -> tuple[Kill, ...]:
        """The kills for which a training step was compared, so that a loss curve exists."""
        return tuple(kill for kill in self.kills if kill.fate == "killed" and kill.loss)

    @property
    def unseen(self) -> int:
        """How many of those a loss curve does not show."""
        return sum(kill.loss == AGREES for kill in self.trained)

    @property
    def bugs(self) -> tuple[str, ...]:
        """The catalogued bugs that a killed mutant embodies."""
        return tuple(sorted({bug for kill in self.kills if kill.fate == "killed" for bug in kill.bugs}))


def judgements(law: Law) -> int:
    """How many judgements a self-test of these contracts is, leaner rungs included."""
    return sum(len(each.asked) for each in law.contracts.values()) + sum(1 for _ in law.tried())


def shared(law: Law, named: tuple[str, ...], jobs: int, tell: Telling = _nobody) -> Matrix:
    """The same as `run`, with several processes. Each takes the next contract that is left, slow ones first, so that no
    slow one remains for a single process at the end.

    The processes are spawned: a fork would lose the threads that torch has started in this one.
    """
    # one thread each: on tensors as small as these a second one only waits
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    part = functools.partial(_of_one_contract, named)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=collect_seldom) as pool:
        order = sorted(law.contracts, key=lambda id: not law.contracts[id].slow)
        asked = {pool.submit(part, id): id for id in order}
        judged: dict[str, Matrix] = {}
        for done in as_completed(asked):
            judged[asked[done]] = done.result()
            for result in done.result().baseline:
                tell(result)
            for kill in done.result().kills:
                tell(kill)
    parts = [judged[id] for id in law.contracts]
    return Matrix(
        baseline=tuple(result for each in parts for result in each.baseline),
        kills=tuple(kill for each in parts for kill in each.kills),
        unguarded=tuple(id for each in parts for id in each.unguarded),
    )


def _of_one_contract(named: tuple[str, ...], id: str) -> Matrix:
    """What a process of `shared` does with a contract."""
    read_checks(id)
    return run(part_of(LAW, [id], LAW.contracts[id].tier), _assistants(named))


@functools.cache
def _assistants(named: tuple[str, ...]) -> tuple[Party, ...]:
    return tuple(party for _, party in parties.assistants(parties.load("reference"), named, quick=False))


def run(law: Law, assistants: Iterable[Party] | None = None, tell: Telling = _nobody) -> Matrix:
    """Judge the baseline and every mutant of a part of the law."""
    subject = parties.load("reference")
    helping = tuple(assistants) if assistants is not None else _assistants(())
    baseline: list[Result] = []
    kills: list[Kill] = []
    for contract in law.contracts.values():
        for case in contract.asked:
            baseline.append(judge(contract, case, subject, helping))
            tell(baseline[-1])
    for mutant in law.tried():
        kills.append(try_mutant(mutant, _contract(law, mutant.of), helping))
        tell(kills[-1])
    unguarded = law.unguarded()
    return Matrix(baseline=tuple(baseline), kills=tuple(kills), unguarded=unguarded)


def sample(law: Law, helping: Iterable[Party], seed: int, tell: Telling = _nobody) -> Matrix:
    """A drawn mutant of each family, and the case that it is of on the reference: a proof made elsewhere, tried here.

    A mutant that cannot be asked here gives way to the next one of its family, and so does one whose case nobody here
    can answer on the reference. Slow contracts are not drawn.
    """
    draw, subject, helping = random.Random(seed), parties.load("reference"), tuple(helping)
    baseline: list[Result] = []
    kills: list[Kill] = []
    for mutants in by_family(law).values():
        for mutant in draw.sample(mutants, len(mutants)):
            contract = law.contracts[mutant.of]
            result = judge(contract, mutant.case, subject, helping)
            if result.outcome == "not run":
                continue
            kill = try_mutant(mutant, contract, helping)
            if kill.fate == "void":
                continue
            baseline.append(result)
            kills.append(kill)
            tell(kill)
            break
    return Matrix(baseline=tuple(baseline), kills=tuple(kills), unguarded=())


def by_family(law: Law) -> dict[str, list[Mutant]]:
    """Family → the mutants that `sample` may draw."""
    law = part_of(law, law.contracts)
    found: dict[str, list[Mutant]] = {}
    for mutant in law.mutants:
        contract = _contract(law, mutant.of)
        if not contract.slow:
            found.setdefault(contract.family, []).append(mutant)
    return found


def part_of(law: Law, ids: Collection[str], tier: Tier = "unit") -> Law:
    """Some of the contracts of one tier, with their mutants. `trials` judges those of dist."""
    part = Law()
    part.contracts = {id: entry for id, entry in law.contracts.items() if id in ids and entry.tier == tier}
    read_mutants(part.contracts)
    part.mutants = [mutant for mutant in law.mutants if mutant.of in part.contracts]
    return part


def _contract(law: Law, id: str) -> Contract:
    if id not in law.contracts:
        raise AssertionError(f"a mutant is declared of {id}, which is no contract")
    return law.contracts[id]
