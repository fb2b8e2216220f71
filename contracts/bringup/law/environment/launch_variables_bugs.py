"""Stacks that give their ranks the wrong environment: exported by habit, or left to the shell."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import refuse
from contracts.stacks.reference.stack import Reference

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
BATCHED_P2P = "NANOCHAT_FORCE_BATCHED_PP_INIT_P2P"


def _setting(launch, **variables):
    unset = tuple(name for name in launch.unset if name not in variables)
    return replace(launch, env={**launch.env, **variables}, unset=unset)


def _without(launch, *names):
    """Neither set nor unset: whatever the shell says reaches the ranks."""
    env = {name: value for name, value in launch.env.items() if name not in names}
    return replace(launch, env=env, unset=tuple(name for name in launch.unset if name not in names))


@broken(Reference, "launch", "ENV-01[fsdp2-tp2-ep2]: reaches the ranks as '1', expected it unset", bugs=("ARG-15",))
def exports_one_queue_everywhere(launch, self, recipe, lane):
    """The launcher exports CUDA_DEVICE_MAX_CONNECTIONS=1 for every lane, as Megatron recipes do: FSDP2's all-gathers
    are queued after the compute that they should overlap.
    """
    return _setting(launch(self, recipe, lane), CUDA_DEVICE_MAX_CONNECTIONS="1")


@broken(Reference, "launch", "ENV-01[fsdp2-inherits-1]: reaches the ranks as '1', expected it unset", bugs=("ARG-15",))
def unset_means_not_mentioned(former, self, recipe, lane):
    """Neither sets nor removes the variable in FSDP2 lanes, so the shell's 1 reaches the ranks."""
    launch = former(self, recipe, lane)
    return launch if CONNECTIONS in launch.env else _without(launch, CONNECTIONS)


@broken(Reference, "launch", "ENV-01[megatron-tp2]: is unset, expected '1'", bugs=("ARG-15",))
def unsets_it_for_megatron_too(former, self, recipe, lane):
    """Over-correction: unsets the variable everywhere, but Megatron's tensor parallelism needs one queue and refuses to
    start.
    """
    launch = _without(former(self, recipe, lane), CONNECTIONS)
    return replace(launch, unset=(*launch.unset, CONNECTIONS))


@broken(Reference, "launch", "ENV-01[megatron-tp1-cp2]: is unset, expected '1'", bugs=("ARG-15",))
def asks_tensor_parallelism_alone(former, self, recipe, lane):
    """Looks only at TP, though context parallelism overlaps in the same way."""
    launch = former(self, recipe, lane)
    return launch if launch.degrees.tp > 1 else _without(launch, CONNECTIONS)


@broken(Reference, "launch", "ENV-01[fsdp2-forced-inherits-1]: reaches the ranks as '1', expected '8'")
def forced_means_inherited(former, self, recipe, lane):
    """Keeps the inherited value although the platform requires one: the diagnostic 1 becomes the baseline."""
    launch = former(self, recipe, lane)
    return _without(launch, CONNECTIONS) if lane.force_max_connections else launch


@broken(Reference, "launch", "ENV-01[fsdp2-tp2-ep2]: reaches the ranks as '8', expected it unset")
def forces_eight_unasked(launch, self, recipe, lane):
    """Treats CUDA's default as the baseline and writes 8 into lanes whose platform requires nothing."""
    return launch(self, recipe, replace(lane, force_max_connections=True))


@broken(Reference, "launch", "ENV-01a[megatron-author-tp1]: depends on the shell", bugs=("ARG-15",))
def keeps_the_shells_queues_at_tp1(former, self, recipe, lane):
    """No rule requires a value at TP 1, so the launcher keeps whatever it inherits."""
    launch = former(self, recipe, lane)
    return launch if CONNECTIONS in launch.env or lane.regime == "fsdp2" else _without(launch, CONNECTIONS)


@broken(
    Reference, "launch", "ENV-02[fsdp2-tp2-ep2]: TORCH_NCCL_HIGH_PRIORITY reaches the ranks as '0' when '0' is exported"
)
def defaults_yield_to_the_shell(launch, self, recipe, lane):
    """Applies its baseline with `setdefault`: an old export in the operator's shell silently wins."""
    return _without(launch(self, recipe, lane), *lane.inherited)


@broken(Reference, "launch", "ENV-02[megatron-two-nodes]: reaches the ranks as None, expected '1'", bugs=("ARG-19",))
def sets_it_on_the_first_node(former, self, recipe, lane):
    """Exports the variable only in the launching shell, so the ranks of other nodes start without it."""
    launch = former(self, recipe, lane)
    return launch if lane.nodes == 1 else _without(launch, "TORCH_NCCL_HIGH_PRIORITY")


@broken(Reference, "launch", "ENV-03[fsdp2-author]: PYTORCH_ALLOC_CONF reaches the ranks as None", bugs=("ARG-16",))
def sets_the_alias_only(former, self, recipe, lane):
    """Writes only the old name, and the next PYTORCH_ALLOC_CONF in a shell contradicts it."""
    launch = former(self, recipe, lane)
    value = launch.env["PYTORCH_ALLOC_CONF"]
    return _setting(_without(launch, "PYTORCH_ALLOC_CONF"), PYTORCH_CUDA_ALLOC_CONF=value)


@broken(Reference, "launch", "ENV-03[alias-says-the-same]: a legal input was refused")
def refuses_every_alias(launch, self, recipe, lane):
    """Over-correction: refuses the alias even where it equals the lane's value."""
    if (alias := lane.inherited.get("PYTORCH_CUDA_ALLOC_CONF")) is not None:
        raise refuse("PYTORCH_CUDA_ALLOC_CONF", alias, "is an old name", "unset it")
    return launch(self, recipe, lane)


@broken(Reference, "launch", "ENV-04[megatron-native]: reaches the ranks as None, expected '7200'", bugs=("ARG-18",))
def leaves_the_default_heartbeat(former, self, recipe, lane):
    """Sets no heartbeat timeout where nothing is compiled, though Triton and Inductor still build kernels there."""
    launch = former(self, recipe, lane)
    return launch if lane.compile != "none" else _without(launch, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")


@broken(
    Reference, "launch", "ENV-04[fsdp2-compiled-two-nodes]: '600' when '600' is exported", bugs=("ARG-18", "CMP-04")
)
def keeps_the_shells_heartbeat(former, self, recipe, lane):
    """Keeps an inherited timeout of 600 s: the watchdog kills the rank whose compile cache is cold."""
    launch = former(self, recipe, lane)
    name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    return _without(launch, name) if name in lane.inherited else launch


@broken(
    Reference, "launch", "ENV-05[megatron-two-nodes]: reaches the ranks as '1', expected it absent", bugs=("ARG-17",)
)
def forces_the_fabric(former, self, recipe, lane):
    """Sets NCCL_MNNVL_ENABLE=1 because an old recipe says that nodes with NVLink between them need it."""
    launch = former(self, recipe, lane)
    return launch if lane.nodes == 1 else _setting(launch, NCCL_MNNVL_ENABLE="1")


@broken(Reference, "launch", "ENV-06[fsdp2-tp2-ep2]: CUDA_VISIBLE_DEVICES reaches the ranks as '0'", bugs=("PG-16",))
def gives_each_rank_its_slice(launch, self, recipe, lane):
    """An actor launcher gives every worker one device, which the worker sees as cuda:0."""
    return _setting(launch(self, recipe, lane), CUDA_VISIBLE_DEVICES="0")


@broken(Reference, "launch", "ENV-06[all-eight-in-order]: a legal input was refused")
def refuses_every_device_list(launch, self, recipe, lane):
    """Over-correction: refuses every lane under a scheduler that exports the full device list."""
    if (value := lane.inherited.get("CUDA_VISIBLE_DEVICES")) is not None:
        raise refuse("CUDA_VISIBLE_DEVICES", value, "is set", "unset it")
    return launch(self, recipe, lane)


@broken(Reference, "launch", "ENV-08[fsdp2-pp2-tp2]: reaches the ranks as None, expected '1' at pp 2", bugs=("PPS-01",))
def leaves_the_gate_to_the_operator(launch, self, recipe, lane):
    """The variable is in a runbook, not in the launch: neighbouring stages shake hands over raw isend and irecv."""
    return _without(launch(self, recipe, lane), BATCHED_P2P)


@broken(Reference, "launch", "ENV-08[megatron-pp4]: reaches the ranks as None, expected '1' at pp 4")
def knows_two_stages(former, self, recipe, lane):
    """Tests for `pp == 2`, because it was written during the two-stage bring-up."""
    launch = former(self, recipe, lane)
    return launch if launch.degrees.pp == 2 else _without(launch, BATCHED_P2P)


@broken(Reference, "launch", "ENV-08[megatron-pp1]: reaches the ranks as '1', expected None at pp 1")
def opens_the_gate_everywhere(launch, self, recipe, lane):
    """Over-correction: sets the variable in every lane, so a receipt no longer shows which lane has a pipeline."""
    return _setting(launch(self, recipe, lane), NANOCHAT_FORCE_BATCHED_PP_INIT_P2P="1")


@broken(Reference, "launch", "ENV-08[fsdp2-pp1-inherits-it]: reaches the ranks as '1', expected None at pp 1")
def inherits_the_gate(former, self, recipe, lane):
    """Sets the variable where it belongs, and lets an inherited one through where it does not."""
    launch = former(self, recipe, lane)
    return launch if launch.degrees.pp > 1 else _without(launch, BATCHED_P2P)
