"""Stacks that inherit what they should refuse, refuse what they should inherit, or record it wrongly."""

from dataclasses import replace

from contracts.instruments.ranks import here
from contracts.law._bugs.broken import broken
from contracts.spec import refuse
from contracts.stacks.reference.stack import Reference


def _blind_to(lane, *names):
    """The lane as a launcher sees it that never looks at some inherited variables."""
    return replace(lane, inherited={name: value for name, value in lane.inherited.items() if name not in names})


@broken(Reference, "launch", "ENV-03b[alias-against-the-lane]: was accepted, expected a refusal", bugs=("ARG-16",))
def ignores_the_alias(launch, self, recipe, lane):
    """Never looks at PYTORCH_CUDA_ALLOC_CONF, so both names reach the process and nobody knows which one won."""
    return launch(self, recipe, _blind_to(lane, "PYTORCH_CUDA_ALLOC_CONF"))


@broken(Reference, "launch", "ENV-05a[automatic]: a legal input was refused")
def refuses_the_diagnosis(launch, self, recipe, lane):
    """Over-correction: also refuses 0 and 2, so a transport can no longer be diagnosed."""
    if (value := lane.inherited.get("NCCL_MNNVL_ENABLE")) is not None:
        raise refuse("NCCL_MNNVL_ENABLE", value, "is not in the baseline", "unset it")
    return launch(self, recipe, lane)


@broken(Reference, "launch", "ENV-05a[disabled]: is recorded as None, exported as '0'", bugs=("PRV-01",))
def forgets_the_diagnosis(former, self, recipe, lane):
    """Passes the value on without recording it, so a slow run is compared with the baseline."""
    launch = former(self, recipe, lane)
    return replace(launch, recorded={n: v for n, v in launch.recorded.items() if n != "NCCL_MNNVL_ENABLE"})


@broken(Reference, "launch", "ENV-05b[fsdp2-one-node]: was accepted, expected a refusal", bugs=("ARG-17",))
def accepts_the_forced_fabric(launch, self, recipe, lane):
    """Records an inherited 1 like any other value and starts a run whose initialisation may fail."""
    return launch(self, recipe, _blind_to(lane, "NCCL_MNNVL_ENABLE"))


@broken(Reference, "launch", "ENV-06b[half-of-the-node]: reaches the ranks of eight GPUs as '0,1,2,3'", bugs=("PG-16",))
def inherits_the_mask(launch, self, recipe, lane):
    """Does not look at an inherited CUDA_VISIBLE_DEVICES: four of the eight ranks find no device."""
    return launch(self, recipe, _blind_to(lane, "CUDA_VISIBLE_DEVICES"))


@broken(Reference, "launch", "ENV-06b[cut-off-behind-a-hole]: reaches the ranks of eight GPUs as '0,1,2,-1,4,5,6,7'")
def counts_the_entries(launch, self, recipe, lane):
    """Counts commas: eight entries, eight devices. CUDA stops reading at the -1 and shows three."""
    entries = lane.inherited.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return launch(self, recipe, _blind_to(lane, "CUDA_VISIBLE_DEVICES") if len(entries) == lane.gpus else lane)


@broken(Reference, "launch", "ENV-06c[two-nodes]: a legal input was refused")
def compares_the_mask_with_the_world(launch, self, recipe, lane):
    """Wants as many devices in CUDA_VISIBLE_DEVICES as the run has ranks on all nodes."""
    shown = lane.inherited.get("CUDA_VISIBLE_DEVICES", "").count(",") + 1
    if "CUDA_VISIBLE_DEVICES" in lane.inherited and shown < lane.world:
        raise refuse("CUDA_VISIBLE_DEVICES", shown, f"is less than the world ({lane.world})", "unset it")
    return launch(self, recipe, lane)


@broken(Reference, "launch", "ENV-06c[one-node]: reaches the ranks as ''")
def clears_every_mask(former, self, recipe, lane):
    """Sets an inherited mask to nothing: no rank finds a device."""
    launch = former(self, recipe, lane)
    return replace(launch, env={**launch.env, "CUDA_VISIBLE_DEVICES": ""})


@broken(Reference, "launch", "ENV-07[drawn-1]: reaches the ranks and is recorded as None", bugs=("PRV-01",))
def records_nccl_only(former, self, recipe, lane):
    """The receipt records NCCL's variables and omits those of torch and the allocator."""
    launch = former(self, recipe, lane)
    return replace(launch, recorded={n: v for n, v in launch.recorded.items() if n.startswith("NCCL_")})


@broken(Reference, "launch", "ENV-07[drawn-2]: '' reaches the ranks and is recorded as None", bugs=("PRV-01",))
def records_what_is_not_empty(former, self, recipe, lane):
    """Tests the value for truth, so an empty CUDA_LAUNCH_BLOCKING, which switches nothing off, is not recorded."""
    launch = former(self, recipe, lane)
    return replace(launch, recorded={name: value for name, value in launch.recorded.items() if value})


@broken(Reference, "launch", "ENV-07[drawn-3]: is recorded with its value, but is not a runtime variable")
def records_the_whole_shell(launch, self, recipe, lane):
    """Over-correction: the receipt stores the whole environment, including tokens."""
    return replace(launch(self, recipe, lane), recorded=dict(lane.inherited))


@broken(
    Reference,
    "devices",
    "ENV-06a[on-2]: rank 1 has CUDA_VISIBLE_DEVICES='1', rank 0 of its node '0'",
    "ENV-06a[on-4]: rank 1 has CUDA_VISIBLE_DEVICES='1', rank 0 of its node '0'",
    bugs=("PG-16",),
)
def gives_each_process_its_own_device(devices, self):
    """Sets CUDA_VISIBLE_DEVICES=$LOCAL_RANK, so that every process has its GPU as "cuda:0"."""
    seen = devices(self)
    mine = here().local_rank
    return replace(seen, visible=str(mine), names=seen.names[mine : mine + 1], uses=0)


@broken(Reference, "devices", "ENV-06a[on-4]: rank 1 uses device 0, its local rank is 1")
def takes_the_first_device(devices, self):
    """Uses `torch.device("cuda")` without an index, on a node where every rank sees all devices."""
    return replace(devices(self), uses=0)


@broken(Reference, "devices", "ENV-06a[on-4]: rank 2 sees ['GPU-c', 'GPU-a'], rank 0 of its node ['GPU-a', 'GPU-c']")
def numbers_the_fastest_first(devices, self):
    """One rank enumerates the same cards in another order (CUDA_DEVICE_ORDER=FASTEST_FIRST only on that rank)."""
    names = ("GPU-a", "GPU-c")
    order = names[::-1] if here().rank == 2 else names
    return replace(devices(self), names=order)
