"""The map from ranks to devices and NICs: the communicator and the hosts describe the same machine.

Two nodes of eight GPUs, cabled differently: on n0 mlx5_0 is beside GPU0, on n1 it is mlx5_3.
"""

import re
from dataclasses import replace

from contracts.bringup.law.preflight._captures import (
    H200,
    OTHER_CABLING,
    WITHOUT_NICS,
    names,
    ranks_of,
    said,
    with_cells,
)
from contracts.contract import contract
from contracts.spec.machine import Machine, Need, NodeCapture, RankPlace

EIGHT = Need()
BOTH = (H200, OTHER_CABLING)
PLACED = ranks_of(*BOTH)


def _but(*changed: RankPlace) -> tuple[RankPlace, ...]:
    """The correct map, with other places for some ranks."""
    other = {place.rank: place for place in changed}
    return tuple(other.get(place.rank, place) for place in PLACED)


# nodes, ranks, words that the findings must hold; none when the map is right
ORDERS: dict[str, tuple[tuple[NodeCapture, ...], tuple[RankPlace, ...], tuple[str, ...]]] = {
    "node-by-node": (BOTH, PLACED, ()),
    "told-in-any-order": (BOTH, PLACED[::-1], ()),
    "nodes-interleaved": (BOTH, _but(replace(PLACED[11], rank=3), replace(PLACED[3], rank=11)), ("3", "11")),
    "two-devices-of-a-node-exchanged": (
        BOTH, _but(replace(PLACED[9], device=2, nic="mlx5_1"), replace(PLACED[10], device=1, nic="mlx5_2")),
        ("9", "10"),
    ),
    "the-last-two-exchanged": (BOTH, _but(replace(PLACED[15], rank=14), replace(PLACED[14], rank=15)), ("14", "15")),
    "everybody-on-device-0": (
        BOTH, tuple(replace(place, device=0, nic="mlx5_0" if place.host == "n0" else "mlx5_3") for place in PLACED),
        ("1", "12", "15"),
    ),
    "a-node-that-nobody-captured": (BOTH, _but(replace(PLACED[14], host="n7")), ("14", "n7")),
    "a-rank-that-did-not-come": (BOTH, tuple(place for place in PLACED if place.rank != 13), ("13",)),
    "a-rank-that-came-twice": (BOTH, (*PLACED, PLACED[5]), ("5",)),
}  # fmt: skip


@contract("PREF-04", asks="rank_map", cases=ORDERS, source="playbook")
def the_communicator_has_the_order_of_the_hosts(
    stack: Machine, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], words: tuple[str, ...]
) -> None:
    """Ranks are ordered node by node, every rank appears once, and each rank uses the device that its host's map lists
    for its local rank.

    A clean NV18 preflight does not show how the communicator orders devices. In another order its rings cross the
    network where the map shows NVLink, and engineers search a healthy node for a fault that it does not have.
    """
    _judge_ranks(stack, nodes, ranks, words)


AFFINITIES: dict[str, tuple[tuple[NodeCapture, ...], tuple[RankPlace, ...], tuple[str, ...]]] = {
    # rank 8 sends through mlx5_3, because its node is cabled that way
    "each-by-its-own-map": (BOTH, PLACED, ()),
    "the-first-nodes-map-for-both": (
        BOTH, tuple(replace(place, nic=PLACED[place.rank % 8].nic) for place in PLACED), ("8", "12", "15"),
    ),
    "one-rank-across-the-socket": (BOTH, _but(replace(PLACED[6], nic="mlx5_2")), ("6", "mlx5_2", "mlx5_7")),
    "a-neighbours-nic": (BOTH, _but(replace(PLACED[13], nic="mlx5_6")), ("13", "mlx5_6", "mlx5_5")),
    "the-bond-of-the-front-end": (BOTH, _but(replace(PLACED[2], nic="mlx5_bond_0")), ("2", "mlx5_bond_0")),
    "a-nic-that-is-not-there": (BOTH, _but(replace(PLACED[10], nic="mlx5_11")), ("10", "mlx5_11")),
    "nobody-knows": (BOTH, _but(replace(PLACED[7], nic=None)), ("7",)),
    "no-nic-in-the-map": ((replace(WITHOUT_NICS, host="n0"), OTHER_CABLING), PLACED, ("0", "7")),
    # no NIC is nearer to GPU5 than NODE here, so either NIC of the socket is right
    "two-that-are-equally-near": (
        (H200, with_cells(OTHER_CABLING, GPU5_NIC5="NODE")), _but(replace(PLACED[13], nic="mlx5_8")), (),
    ),
}  # fmt: skip


@contract("PREF-04a", asks="rank_map", cases=AFFINITIES, source="playbook")
def each_rank_sends_through_a_nearest_nic(
    stack: Machine, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], words: tuple[str, ...]
) -> None:
    """Each rank sends through one of the NICs that its own host's map puts nearest to its GPU.

    A multi-node slowdown was taken for an NVLink fault, because the receipt did not record which NIC a rank used. Nodes
    of one order can differ in cabling: a table from the first node is wrong for the second.
    """
    _judge_ranks(stack, nodes, ranks, words)


def _judge_ranks(
    stack: Machine, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], words: tuple[str, ...]
) -> None:
    findings = stack.rank_map(nodes, ranks, EIGHT)
    text = said(findings)
    if not words:
        assert not findings, f"a map that agrees with its hosts was refused: {text}"
        return
    assert findings, f"the map disagrees with its hosts about {', '.join(words)} and was accepted"
    for word in words:
        assert names(text, word), f"{word} is not named: {text}"


UUIDS = tuple(re.findall(r"UUID: (GPU-[0-9a-f-]+)", H200.devices or ""))

# CUDA_VISIBLE_DEVICES in the launch environment, whether devices keep the host's order
VISIBLE = {
    "unset": (None, True),
    "all-in-order": ("0,1,2,3,4,5,6,7", True),
    "all-by-uuid": (",".join(UUIDS), True),
    "two-uuids-exchanged": (",".join((*UUIDS[:6], UUIDS[7], UUIDS[6])), False),
    "each-worker-owns-device-0": ("5", False),
    "reversed": ("7,6,5,4,3,2,1,0", False),
    "two-exchanged": ("0,1,2,4,3,5,6,7", False),
    "none": ("", False),
}


@contract("PREF-04b", asks="preflight", cases=VISIBLE, source="playbook")
def the_devices_are_not_masked_or_renumbered(stack: Machine, visible: str | None, fit: bool) -> None:
    """A node is refused when CUDA_VISIBLE_DEVICES hides or reorders devices. A list of all devices in their order is
    accepted.

    `nvidia-smi` ignores the variable but a process does not, so the map that passed the preflight is not the
    communicator's map.
    """
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    findings = stack.preflight(replace(H200, environment=environment), EIGHT)
    if fit:
        assert not findings, (
            f"CUDA_VISIBLE_DEVICES={visible} shows the host's own map and was refused: {said(findings)}"
        )
    else:
        text = said(findings)
        assert text, f"CUDA_VISIBLE_DEVICES={visible!r} hides or reorders devices and was accepted"
        assert "CUDA_VISIBLE_DEVICES" in text, f"CUDA_VISIBLE_DEVICES is not named: {text}"
