"""Stacks that give their ranks the wrong environment: exported by habit, or left to the shell."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import refuse
from contracts.spec.launch import Lane, Launch
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.stack import Reference

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
BATCHED_P2P = "NANOCHAT_FORCE_BATCHED_PP_INIT_P2P"


def _setting(launch: Launch, **variables: str) -> Launch:
    unset = tuple(name for name in launch.unset if name not in variables)
    return replace(launch, env={**launch.env, **variables}, unset=unset)


def _without(launch: Launch, *names: str) -> Launch:
    """Neither set nor unset: whatever the shell says reaches the ranks."""
    env = {name: value for name, value in launch.env.items() if name not in names}
    return replace(launch, env=env, unset=tuple(name for name in launch.unset if name not in names))


@mutant(of="ENV-01", case="fsdp2-tp2-ep2", says="reaches the ranks as '1', expected it unset", bugs=("ARG-15",))
class ExportsOneQueueEverywhere(Reference):
    """The launcher exports CUDA_DEVICE_MAX_CONNECTIONS=1 for every lane, as Megatron recipes do: FSDP2's all-gathers
    are queued behind the compute that they should overlap.
    """

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _setting(super().launch(recipe, lane), CUDA_DEVICE_MAX_CONNECTIONS="1")


@mutant(of="ENV-01", case="fsdp2-inherits-1", says="reaches the ranks as '1', expected it unset", bugs=("ARG-15",))
class UnsetMeansNotMentioned(Reference):
    """Neither sets nor removes the variable in FSDP2 lanes, so the shell's 1 reaches the ranks."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if CONNECTIONS in launch.env else _without(launch, CONNECTIONS)


@mutant(of="ENV-01", case="megatron-tp2", says="is unset, expected '1'", bugs=("ARG-15",))
class UnsetsItForMegatronToo(Reference):
    """Over-correction: unsets the variable everywhere, but Megatron's tensor parallelism needs one queue and refuses to
    start.
    """

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = _without(super().launch(recipe, lane), CONNECTIONS)
        return replace(launch, unset=(*launch.unset, CONNECTIONS))


@mutant(of="ENV-01", case="megatron-tp1-cp2", says="is unset, expected '1'", bugs=("ARG-15",))
class AsksTensorParallelismAlone(Reference):
    """Looks only at TP, though context parallelism overlaps in the same way."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if launch.degrees.tp > 1 else _without(launch, CONNECTIONS)


@mutant(of="ENV-01", case="fsdp2-forced-inherits-1", says="reaches the ranks as '1', expected '8'")
class ForcedMeansInherited(Reference):
    """Where the platform requires a value, keeps the inherited one: the diagnostic 1 becomes the baseline."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return _without(launch, CONNECTIONS) if lane.force_max_connections else launch


@mutant(of="ENV-01", case="fsdp2-tp2-ep2", says="reaches the ranks as '8', expected it unset")
class ForcesEightUnasked(Reference):
    """Treats CUDA's default as the baseline and writes 8 into lanes whose platform requires nothing."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(recipe, replace(lane, force_max_connections=True))


@mutant(of="ENV-01a", case="megatron-author-tp1", says="depends on the shell", bugs=("ARG-15",))
class KeepsTheShellsQueuesAtTp1(Reference):
    """No rule requires a value at TP 1, so the launcher keeps whatever it inherits."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if CONNECTIONS in launch.env or lane.regime == "fsdp2" else _without(launch, CONNECTIONS)


@mutant(
    of="ENV-02", case="fsdp2-tp2-ep2", says="TORCH_NCCL_HIGH_PRIORITY reaches the ranks as '0' when '0' is exported"
)
class DefaultsYieldToTheShell(Reference):
    """Applies its baseline with `setdefault`: an old export in the operator's shell silently wins."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _without(super().launch(recipe, lane), *lane.inherited)


@mutant(of="ENV-02", case="megatron-two-nodes", says="reaches the ranks as None, expected '1'", bugs=("ARG-19",))
class SetsItOnTheFirstNode(Reference):
    """Exports the variable only in the launching shell, so the ranks of other nodes start without it."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if lane.nodes == 1 else _without(launch, "TORCH_NCCL_HIGH_PRIORITY")


@mutant(of="ENV-03", case="fsdp2-author", says="PYTORCH_ALLOC_CONF reaches the ranks as None", bugs=("ARG-16",))
class SetsTheAliasOnly(Reference):
    """Writes only the old name, and the next PYTORCH_ALLOC_CONF in a shell contradicts it."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        value = launch.env["PYTORCH_ALLOC_CONF"]
        return _setting(_without(launch, "PYTORCH_ALLOC_CONF"), PYTORCH_CUDA_ALLOC_CONF=value)


@mutant(of="ENV-03", case="alias-says-the-same", says="a legal input was refused")
class RefusesEveryAlias(Reference):
    """Over-correction: refuses the alias even where it equals the lane's value."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        if (alias := lane.inherited.get("PYTORCH_CUDA_ALLOC_CONF")) is not None:
            raise refuse("PYTORCH_CUDA_ALLOC_CONF", alias, "is an old name", "unset it")
        return super().launch(recipe, lane)


@mutant(of="ENV-04", case="megatron-native", says="reaches the ranks as None, expected '7200'", bugs=("ARG-18",))
class LeavesTheDefaultHeartbeat(Reference):
    """Sets no heartbeat timeout where nothing is compiled, though Triton and Inductor still build kernels there."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if lane.compile != "none" else _without(launch, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")


@mutant(of="ENV-04", case="fsdp2-compiled-two-nodes", says="'600' when '600' is exported", bugs=("ARG-18", "CMP-04"))
class KeepsTheShellsHeartbeat(Reference):
    """Keeps an inherited timeout of 600 s: the watchdog kills the rank whose compile cache is cold."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
        return _without(launch, name) if name in lane.inherited else launch


@mutant(of="ENV-05", case="megatron-two-nodes", says="reaches the ranks as '1', expected it absent", bugs=("ARG-17",))
class ForcesTheFabric(Reference):
    """Sets NCCL_MNNVL_ENABLE=1 because an old recipe says that nodes with NVLink between them need it."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if lane.nodes == 1 else _setting(launch, NCCL_MNNVL_ENABLE="1")


@mutant(of="ENV-06", case="fsdp2-tp2-ep2", says="CUDA_VISIBLE_DEVICES reaches the ranks as '0'", bugs=("PG-16",))
class GivesEachRankItsSlice(Reference):
    """An actor launcher gives every worker one device, which the worker sees as cuda:0."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _setting(super().launch(recipe, lane), CUDA_VISIBLE_DEVICES="0")


@mutant(of="ENV-06", case="all-eight-in-order", says="a legal input was refused")
class RefusesEveryDeviceList(Reference):
    """Over-correction: refuses every lane under a scheduler that exports the full device list."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        if (value := lane.inherited.get("CUDA_VISIBLE_DEVICES")) is not None:
            raise refuse("CUDA_VISIBLE_DEVICES", value, "is set", "unset it")
        return super().launch(recipe, lane)


@mutant(of="ENV-08", case="fsdp2-pp2-tp2", says="reaches the ranks as None, expected '1' at pp 2", bugs=("PPS-01",))
class LeavesTheGateToTheOperator(Reference):
    """The variable is in a runbook, not in the launch: neighbouring stages shake hands over raw isend and irecv."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _without(super().launch(recipe, lane), BATCHED_P2P)


@mutant(of="ENV-08", case="megatron-pp4", says="reaches the ranks as None, expected '1' at pp 4")
class KnowsTwoStages(Reference):
    """Tests for `pp == 2`, because it was written during the two-stage bring-up."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if launch.degrees.pp == 2 else _without(launch, BATCHED_P2P)


@mutant(of="ENV-08", case="megatron-pp1", says="reaches the ranks as '1', expected None at pp 1")
class OpensTheGateEverywhere(Reference):
    """Over-correction: sets the variable in every lane, so a receipt no longer shows which lane has a pipeline."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _setting(super().launch(recipe, lane), NANOCHAT_FORCE_BATCHED_PP_INIT_P2P="1")


@mutant(of="ENV-08", case="fsdp2-pp1-inherits-it", says="reaches the ranks as '1', expected None at pp 1")
class InheritsTheGate(Reference):
    """Sets the variable where it belongs, and lets an inherited one through where it does not."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if launch.degrees.pp > 1 else _without(launch, BATCHED_P2P)
