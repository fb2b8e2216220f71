"""Rank maps that are not compared with the hosts: order, devices, NICs and masks."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.machine import Finding, Need, NodeCapture, RankPlace
from contracts.stacks.reference.stack import Reference


@mutant(of="PREF-04", case="nodes-interleaved", says="the map disagrees with its hosts about 3, 11 and was accepted")
class CountsRanksAHost(Reference):
    """Checks that each host has eight ranks but not which ones: TP groups then cross the network."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        hosts = [node.host for node in nodes]
        stood = sorted(
            ranks, key=lambda place: (hosts.index(place.host) if place.host in hosts else -1, place.local_rank)
        )
        return super().rank_map(nodes, tuple(replace(place, rank=at) for at, place in enumerate(stood)), need)


@mutant(of="PREF-04", case="the-last-two-exchanged", says="15 is not named")
class LeavesTheLastRankOut(Reference):
    """The loop over ranks ends one before the last, whose place nobody compares."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        last = f"rank {max(place.rank for place in ranks)}"
        return tuple(each for each in super().rank_map(nodes, ranks, need) if each.value != last)


@mutant(of="PREF-04", case="two-devices-of-a-node-exchanged", says="about 9, 10 and was accepted")
class TakesTheDeviceForTheLocalRank(Reference):
    """Assumes that each rank is on the device of its local number, and never asks."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        return tuple(each for each in super().rank_map(nodes, ranks, need) if "on GPU" not in each.problem)


@mutant(of="PREF-04", case="everybody-on-device-0", says="about 1, 12, 15 and was accepted", bugs=("PG-16",))
class BelievesTheMaskedView(Reference):
    """Takes a worker's view, in which its only device is 0, for the host's map."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        if any(place.device for place in ranks):
            return super().rank_map(nodes, ranks, need)
        return ()


@mutant(of="PREF-04", case="a-rank-that-did-not-come", says="about 13 and was accepted")
class JudgesTheRanksThatCame(Reference):
    """Takes the world size from the ranks that answered: a rank that hangs at its start is not missed."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        return tuple(each for each in super().rank_map(nodes, ranks, need) if "did not come" not in each.problem)


@mutant(of="PREF-04", case="told-in-any-order", says="a map that agrees with its hosts was refused")
class WantsTheListSorted(Reference):
    """Over-correction: takes the order in which ranks happened to report for the communicator's order."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        return super().rank_map(nodes, tuple(replace(place, rank=at) for at, place in enumerate(ranks)), need)


@mutant(of="PREF-04a", case="one-rank-across-the-socket", says="about 6, mlx5_2, mlx5_7 and was accepted")
class KeepsNoNic(Reference):
    """Records ranks and devices but no NICs: a slow network was searched for inside the node."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        return tuple(self.rank_order(nodes, ranks, need))


@mutant(of="PREF-04a", case="the-first-nodes-map-for-both", says="about 8, 12, 15 and was accepted")
class TakesOneNodeForAll(Reference):
    """Captures only the first node, because all nodes were ordered together."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        same = tuple(replace(node, topology=nodes[0].topology) for node in nodes)
        return super().rank_map(same, ranks, need)


@mutant(of="PREF-04a", case="nobody-knows", says="about 7 and was accepted")
class TakesSilenceForAgreement(Reference):
    """Skips a rank that does not report its NIC."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        return tuple(each for each in super().rank_map(nodes, ranks, need) if "an unknown NIC" not in each.problem)


@mutant(of="PREF-04a", case="two-that-are-equally-near", says="a map that agrees with its hosts was refused")
class PairsOneNicWithOneGpu(Reference):
    """Over-correction: accepts only the first of several nearest NICs."""

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        found = list(super().rank_map(nodes, ranks, need))
        for place in ranks:
            fabric = self.fabric_of(next(node for node in nodes if node.host == place.host))
            if isinstance(fabric, tuple) or fabric.nearest_nics(f"GPU{place.device}")[:1] != (place.nic,):
                found.append(Finding(promise="PREF-04", field="nic", value=f"{place.rank}", problem="?", remedy="pin"))
        return tuple(found)


@mutant(
    of="PREF-04b", case="each-worker-owns-device-0", says="hides or reorders devices and was accepted", bugs=("PG-16",)
)
class AsksNvidiaSmiAlone(Reference):
    """Judges only what nvidia-smi shows, which ignores the variable."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return super().preflight(replace(capture, environment={}), need)


@mutant(of="PREF-04b", case="two-exchanged", says="hides or reorders devices and was accepted")
class CountsTheVisibleDevices(Reference):
    """Counts eight visible devices and ignores their order."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        visible = capture.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        whole = {} if len(visible) == need.gpus else capture.environment
        return super().preflight(replace(capture, environment=whole), need)


@mutant(of="PREF-04b", case="all-in-order", says="shows the host's own map and was refused")
class ForbidsTheVariable(Reference):
    """Over-correction: refuses every node under a scheduler that sets the whole list in its order."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        masked = dict.fromkeys(capture.environment, "masked")
        return super().preflight(replace(capture, environment=masked), need)


@mutant(of="PREF-04b", case="all-by-uuid", says="shows the host's own map and was refused")
class ReadsNumbersAlone(Reference):
    """Compares the text with 0,1,…, and refuses a device plugin that lists the same devices by UUID."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        plain = {name: value.replace("GPU-", "gpu ") for name, value in capture.environment.items()}
        return super().preflight(replace(capture, environment=plain), need)
