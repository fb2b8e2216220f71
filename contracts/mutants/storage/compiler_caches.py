"""Stacks whose compiled steps leave files outside the run's scratch."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.contract import mutant
from contracts.instruments.ranks import here
from contracts.spec.blocks import BlockCall
from contracts.spec.compiling import Outcome
from contracts.spec.installation import StorageMap
from contracts.stacks.reference.stack import Reference


@mutant(of="STOR-03c", case="two-ranks", says="files in tmp, such as", bugs=("PRV-16",))
class SendsTheCachesAlone(Reference):
    """Sets only the two cache variables, which do not move inductor's precompiled headers."""

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        return {name: value for name, value in super().cache_env(storage, run).items() if value.startswith("/")}


@mutant(of="STOR-03c", case="two-ranks", says="rank 1 left")
class TellsTheFirstRankAlone(Reference):
    """Only the launcher's own process gets the environment; the other ranks start with the shell's."""

    def compile_under(self, call: BlockCall, environment: Mapping[str, str], folder: str) -> Outcome:
        kept = {name: value for name, value in environment.items() if here().rank == 0 or "CACHE" not in name}
        return super().compile_under(call, kept, folder)


@mutant(of="STOR-03c", case="two-ranks", says="and nothing is in the scratch folder of nam56r-0417")
class RunsWhatItCalledCompiled(Reference):
    """Falls back to the eager block silently, and so writes no files."""

    def compile_under(self, call: BlockCall, environment: Mapping[str, str], folder: str) -> Outcome:
        return Outcome(worked=True, words="", apart=0.0)
