"""Stacks that inherit what they should refuse, refuse what they should inherit, or record it wrongly."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import refuse
from contracts.spec.launch import Lane, Launch
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.stack import Reference


def _blind_to(lane: Lane, *names: str) -> Lane:
    """The lane as a launcher sees it that never looks at some inherited variables."""
    return replace(lane, inherited={name: value for name, value in lane.inherited.items() if name not in names})


@mutant(of="ENV-03b", case="alias-against-the-lane", says="was accepted, expected a refusal", bugs=("ARG-16",))
class IgnoresTheAlias(Reference):
    """Never looks at PYTORCH_CUDA_ALLOC_CONF, so both names reach the process and nobody knows which one won."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(recipe, _blind_to(lane, "PYTORCH_CUDA_ALLOC_CONF"))


@mutant(of="ENV-05a", case="automatic", says="a legal input was refused")
class RefusesTheDiagnosis(Reference):
    """Over-correction: also refuses 0 and 2, so a transport can no longer be diagnosed."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        if (value := lane.inherited.get("NCCL_MNNVL_ENABLE")) is not None:
            raise refuse("NCCL_MNNVL_ENABLE", value, "is not in the baseline", "unset it")
        return super().launch(recipe, lane)


@mutant(of="ENV-05a", case="disabled", says="is recorded as None, exported as '0'", bugs=("PRV-01",))
class ForgetsTheDiagnosis(Reference):
    """Passes the value on without recording it, so a slow run is compared with the baseline."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, recorded={n: v for n, v in launch.recorded.items() if n != "NCCL_MNNVL_ENABLE"})


@mutant(of="ENV-05b", case="fsdp2-one-node", says="was accepted, expected a refusal", bugs=("ARG-17",))
class AcceptsTheForcedFabric(Reference):
    """Records an inherited 1 like any other value and starts a run whose initialisation may fail."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(recipe, _blind_to(lane, "NCCL_MNNVL_ENABLE"))


@mutant(of="ENV-06b", case="half-of-the-node", says="reaches the ranks of eight GPUs as '0,1,2,3'", bugs=("PG-16",))
class InheritsTheMask(Reference):
    """Does not look at an inherited CUDA_VISIBLE_DEVICES: four of the eight ranks find no device."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(recipe, _blind_to(lane, "CUDA_VISIBLE_DEVICES"))


@mutant(of="ENV-06b", case="cut-off-behind-a-hole", says="reaches the ranks of eight GPUs as '0,1,2,-1,4,5,6,7'")
class CountsTheEntries(Reference):
    """Counts commas: eight entries, eight devices. CUDA stops reading at the -1 and shows three."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        entries = lane.inherited.get("CUDA_VISIBLE_DEVICES", "").split(",")
        return super().launch(recipe, _blind_to(lane, "CUDA_VISIBLE_DEVICES") if len(entries) == lane.gpus else lane)


@mutant(of="ENV-07", case="drawn-1", says="reaches the ranks and is recorded as None", bugs=("PRV-01",))
class RecordsNcclOnly(Reference):
    """The receipt records NCCL's variables and omits those of torch and the allocator."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, recorded={n: v for n, v in launch.recorded.items() if n.startswith("NCCL_")})


@mutant(of="ENV-07", case="drawn-2", says="'' reaches the ranks and is recorded as None", bugs=("PRV-01",))
class RecordsWhatIsNotEmpty(Reference):
    """Tests the value for truth, so an empty CUDA_LAUNCH_BLOCKING, which switches nothing off, is not recorded."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, recorded={name: value for name, value in launch.recorded.items() if value})


@mutant(of="ENV-07", case="drawn-3", says="is recorded with its value, but is not a runtime variable")
class RecordsTheWholeShell(Reference):
    """Over-correction: the receipt stores the whole environment, including tokens."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return replace(super().launch(recipe, lane), recorded=dict(lane.inherited))
