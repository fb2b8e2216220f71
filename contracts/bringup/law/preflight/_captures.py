"""Captured output of nodes for the preflight contracts: whole captures of healthy nodes, and functions that break them.

The files under `captures/` follow what drivers 450 to 570 print. `h200-8` has nine NICs: one near each GPU, and
mlx5_bond_0 near none. `h200-8-other-cabling` is the same node with the NICs plugged in another order.
"""

import re
from dataclasses import replace
from pathlib import Path

from contracts.spec.machine import Finding, NodeCapture, RankPlace

_HERE = Path(__file__).parent / "captures"


def capture(name: str) -> str:
    """A captured text, with every tab and escape that the tool printed."""
    return (_HERE / name).read_bytes().decode("utf-8")


H200 = NodeCapture(
    host="n0",
    topology=capture("h200-8.txt"),
    devices=capture("h200-8.devices.txt"),
    memory="".join(f"{gpu}, 143771\n" for gpu in range(8)),
    numa_balancing="0\n",
)
OTHER_CABLING = replace(H200, host="n1", topology=capture("h200-8-other-cabling.txt"))
WITHOUT_NICS = replace(H200, topology=capture("h200-8-without-nics.txt"))
FOUR = replace(H200, topology=capture("h200-4-blanks.txt"), devices="".join(
    f"{line}\n" for line in (H200.devices or "").splitlines()[:4]
))  # fmt: skip
A100 = replace(H200, topology=capture("a100-8-old-driver.txt"), devices=capture("a100-8.devices.txt"))
PCIE = replace(H200, topology=capture("pcie-8.txt"))


def with_cells(node: NodeCapture, **cells: str) -> NodeCapture:
    """The node with links changed, in both directions: `with_cells(H200, GPU3_GPU5="SYS")`."""
    lines = [line.split("\t") for line in (node.topology or "").split("\n")]
    columns = [re.sub(r"\x1b\[[0-9;]*m", "", name) for name in lines[0]]
    for pair, link in cells.items():
        one, other = pair.split("_")
        for row, column in ((one, other), (other, one)):
            line = next(line for line in lines if line[0] == row)
            line[columns.index(column)] = link
    return replace(node, topology="\n".join("\t".join(line) for line in lines))


def without_gpu(node: NodeCapture, gpu: str) -> NodeCapture:
    """The node without the row and the column of a GPU; the other names stay, and so does the list of devices."""
    lines = [line.split("\t") for line in (node.topology or "").split("\n")]
    at = [re.sub(r"\x1b\[[0-9;]*m", "", name) for name in lines[0]].index(gpu)
    blank = lines.index([""])
    kept = [[*line[:at], *line[at + 1 :]] for line in lines[:blank] if line[0] != gpu]
    return replace(node, topology="\n".join("\t".join(line) for line in [*kept, *lines[blank:]]))


def without_line(node: NodeCapture, number: int) -> NodeCapture:
    lines = (node.topology or "").split("\n")
    return replace(node, topology="\n".join([*lines[:number], *lines[number + 1 :]]))


def ranks_of(*nodes: NodeCapture, gpus: int = 8) -> tuple[RankPlace, ...]:
    """Node by node, each local rank on the device of its number, through the NIC that its node's map puts nearest."""
    beside = {"n0": (0, 1, 2, 3, 5, 6, 7, 8), "n1": (3, 2, 1, 0, 6, 5, 8, 7)}
    return tuple(
        RankPlace(
            rank=at * gpus + local,
            host=node.host,
            local_rank=local,
            device=local,
            nic=f"mlx5_{beside[node.host][local]}",
        )
        for at, node in enumerate(nodes)
        for local in range(gpus)
    )


def said(findings: tuple[Finding, ...], promise: str = "") -> str:
    """The text of findings without their remedies; only those of one contract, if `promise` names it."""
    return "\n".join(
        f"{each.promise} {each.field} = {each.value}: {each.problem}"
        for each in findings
        if each.promise.startswith(promise)
    )


def names(text: str, word: str) -> bool:
    """Whether a text holds a word as a whole: GPU1 does not count as part of GPU12."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text) is not None
