"""Rank maps that are not compared with the hosts: order, devices, NICs and masks."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec.machine import Finding
from contracts.stacks.reference.stack import Reference


@broken(
    Reference, "rank_map", "PREF-04[nodes-interleaved]: the map disagrees with its hosts about 3, 11 and was accepted"
)
def counts_ranks_a_host(rank_map, self, nodes, ranks, need):
    """Checks that each host has eight ranks but not which ones: TP groups then cross the network."""
    hosts = [node.host for node in nodes]
    stood = sorted(ranks, key=lambda place: (hosts.index(place.host) if place.host in hosts else -1, place.local_rank))
    return rank_map(self, nodes, tuple(replace(place, rank=at) for at, place in enumerate(stood)), need)


@broken(Reference, "rank_map", "PREF-04[the-last-two-exchanged]: 15 is not named")
def leaves_the_last_rank_out(rank_map, self, nodes, ranks, need):
    """The loop over ranks ends one before the last, whose place nobody compares."""
    last = f"rank {max(place.rank for place in ranks)}"
    return tuple(each for each in rank_map(self, nodes, ranks, need) if each.value != last)


@broken(Reference, "rank_map", "PREF-04[two-devices-of-a-node-exchanged]: about 9, 10 and was accepted")
def takes_the_device_for_the_local_rank(rank_map, self, nodes, ranks, need):
    """Assumes that each rank is on the device of its local number, and never asks."""
    return tuple(each for each in rank_map(self, nodes, ranks, need) if "on GPU" not in each.problem)


@broken(Reference, "rank_map", "PREF-04[everybody-on-device-0]: about 1, 12, 15 and was accepted", bugs=("PG-16",))
def believes_the_masked_view(rank_map, self, nodes, ranks, need):
    """Takes a worker's view, in which its only device is 0, for the host's map."""
    return rank_map(self, nodes, ranks, need) if any(place.device for place in ranks) else ()


@broken(Reference, "rank_map", "PREF-04[a-rank-that-did-not-come]: about 13 and was accepted")
def judges_the_ranks_that_came(rank_map, self, nodes, ranks, need):
    """Takes the world size from the ranks that answered: a rank that hangs at its start is not missed."""
    return tuple(each for each in rank_map(self, nodes, ranks, need) if "did not come" not in each.problem)


@broken(Reference, "rank_map", "PREF-04[told-in-any-order]: a map that agrees with its hosts was refused")
def wants_the_list_sorted(rank_map, self, nodes, ranks, need):
    """Over-correction: takes the order in which ranks happened to report for the communicator's order."""
    return rank_map(self, nodes, tuple(replace(place, rank=at) for at, place in enumerate(ranks)), need)


@broken(Reference, "rank_map", "PREF-04a[one-rank-across-the-socket]: about 6, mlx5_2, mlx5_7 and was accepted")
def keeps_no_nic(rank_map, self, nodes, ranks, need):
    """Records ranks and devices but no NICs: a slow network was searched for inside the node."""
    return tuple(self.rank_order(nodes, ranks, need))


@broken(Reference, "rank_map", "PREF-04a[the-first-nodes-map-for-both]: about 8, 12, 15 and was accepted")
def takes_one_node_for_all(rank_map, self, nodes, ranks, need):
    """Captures only the first node, because all nodes were ordered together."""
    same = tuple(replace(node, topology=nodes[0].topology) for node in nodes)
    return rank_map(self, same, ranks, need)


@broken(Reference, "rank_map", "PREF-04a[nobody-knows]: about 7 and was accepted")
def takes_silence_for_agreement(rank_map, self, nodes, ranks, need):
    """Skips a rank that does not report its NIC."""
    return tuple(each for each in rank_map(self, nodes, ranks, need) if "an unknown NIC" not in each.problem)


@broken(Reference, "rank_map", "PREF-04a[two-that-are-equally-near]: a map that agrees with its hosts was refused")
def pairs_one_nic_with_one_gpu(rank_map, self, nodes, ranks, need):
    """Over-correction: accepts only the first of several nearest NICs."""
    found = list(rank_map(self, nodes, ranks, need))
    for place in ranks:
        fabric = self.fabric_of(next(node for node in nodes if node.host == place.host))
        if isinstance(fabric, tuple) or fabric.nearest_nics(f"GPU{place.device}")[:1] != (place.nic,):
            found.append(Finding(promise="PREF-04", field="nic", value=f"{place.rank}", problem="?", remedy="pin"))
    return tuple(found)


@broken(
    Reference,
    "preflight",
    "PREF-04b[each-worker-owns-device-0]: hides or reorders devices and was accepted",
    bugs=("PG-16",),
)
def asks_nvidia_smi_alone(preflight, self, capture, need):
    """Judges only what nvidia-smi shows, which ignores the variable."""
    return preflight(self, replace(capture, environment={}), need)


@broken(Reference, "preflight", "PREF-04b[two-exchanged]: hides or reorders devices and was accepted")
def counts_the_visible_devices(preflight, self, capture, need):
    """Counts eight visible devices and ignores their order."""
    visible = capture.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    whole = {} if len(visible) == need.gpus else capture.environment
    return preflight(self, replace(capture, environment=whole), need)


@broken(Reference, "preflight", "PREF-04b[all-in-order]: shows the host's own map and was refused")
def forbids_the_variable(preflight, self, capture, need):
    """Over-correction: refuses every node under a scheduler that sets the whole list in its order."""
    masked = dict.fromkeys(capture.environment, "masked")
    return preflight(self, replace(capture, environment=masked), need)


@broken(Reference, "preflight", "PREF-04b[all-by-uuid]: shows the host's own map and was refused")
def reads_numbers_alone(preflight, self, capture, need):
    """Compares the text with 0,1,…, and refuses a device plugin that lists the same devices by UUID."""
    plain = {name: value.replace("GPU-", "gpu ") for name, value in capture.environment.items()}
    return preflight(self, replace(capture, environment=plain), need)
