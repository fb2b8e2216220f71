"""A preflight refuses absent tools and truncated captures, and reports several reasons at once."""

from dataclasses import replace

from contracts.bringup.law.preflight._captures import (
    H200,
    OTHER_CABLING,
    WITHOUT_NICS,
    capture,
    names,
    said,
    with_cells,
    without_line,
)
from contracts.contract import contract
from contracts.spec.machine import Machine, Need, NodeCapture

EIGHT = Need()

_TABLE = H200.topology or ""
UNREADABLE = {
    "no-nvidia-smi": replace(H200, topology=None, devices=None, memory=None),
    "no-map": replace(H200, topology=None),
    "no-list-of-devices": replace(H200, devices=None),
    "no-numa-file": replace(H200, numa_balancing=None),
    "nothing": NodeCapture(),
    "empty-map": replace(H200, topology=""),
    "blank-map": replace(H200, topology=" \n\t\n\n"),
    "empty-list": replace(H200, devices="\n"),
    "empty-numa": replace(H200, numa_balancing=""),
    "driver-mismatch": replace(H200, topology=capture("driver-mismatch.txt")),
    "driver-mismatch-everywhere": replace(
        H200, topology=capture("driver-mismatch.txt"), devices=capture("driver-mismatch.txt")
    ),
    "legend-alone": replace(H200, topology=_TABLE[_TABLE.index("Legend") :]),
    "cut-in-a-row": replace(H200, topology=_TABLE[: _TABLE.index("GPU5\tNV18") + 20]),
    "cut-after-a-row": replace(H200, topology=_TABLE[: _TABLE.index("\nGPU6\t")]),
    "cut-before-the-nics": replace(H200, topology=_TABLE[: _TABLE.index("\nNIC3\t")]),
    "header-alone": replace(H200, topology=_TABLE[: _TABLE.index("\nGPU0\t")]),
    "without-header": without_line(H200, 0),
    "without-a-row": without_line(H200, 4),
    "a-row-twice": replace(H200, topology=_TABLE.replace("\nGPU3\t", "\nGPU2\t")),
    "a-word-that-is-no-link": with_cells(H200, GPU1_GPU4="ERR!"),
    "an-empty-cell": with_cells(H200, GPU1_GPU4=""),
    "lower-case": with_cells(H200, GPU1_GPU4="nv18"),
    "nv-of-nothing": with_cells(H200, GPU1_GPU4="NV"),
    "two-directions-disagree": replace(H200, topology=_TABLE.replace("GPU7\tNV18\t", "GPU7\tSYS\t", 1)),
    "a-device-not-itself": with_cells(H200, GPU2_GPU2="NV18"),
    "self-in-two-places": with_cells(H200, GPU2_GPU3=" X "),
    "bytes-of-something-else": replace(H200, topology="\x00\x01\x7fELF" * 9),
    # overstruck with backspaces: a terminal shows SYS here
    "struck-over": replace(H200, topology=_TABLE.replace("NV18\tNV18", "NV18\b\b\b\bSYS \tNV18", 1)),
    "json": replace(H200, topology='{"GPU0": {"GPU1": "NV18"}}'),
    "numa-in-words": replace(H200, numa_balancing="off\n"),
    "numa-of-a-failed-cat": replace(H200, numa_balancing="cat: /proc/sys/kernel/numa_balancing: No such file\n"),
    "a-device-twice": replace(H200, devices=(H200.devices or "").replace("GPU 7:", "GPU 6:")),
}


@contract("PREF-05", asks="preflight", cases=UNREADABLE, source="playbook")
def what_cannot_be_read_is_refused(stack: Machine, node: NodeCapture) -> None:
    """The launch is refused, with a remedy, when a tool is absent or its output is cut off or not in its format.

    A preflight that greps for SYS finds none in an error message, and none in an empty file.
    """
    findings = stack.preflight(node, EIGHT)
    assert findings, "a node with an unreadable capture was accepted"
    for each in findings:
        assert each.problem, f"{each.promise} {each.field} has no words on what is wrong"
        assert each.remedy, f"{each.promise} {each.field} has no remedy"


# nodes with several faults, and the words that one line of the findings must hold for each
AT_ONCE: dict[str, tuple[NodeCapture, tuple[tuple[str, ...], ...]]] = {
    "two-cells-numa-and-a-mask": (
        replace(
            with_cells(H200, GPU0_GPU1="SYS", GPU4_GPU6="PHB"),
            numa_balancing="1\n",
            environment={"CUDA_VISIBLE_DEVICES": "3"},
        ),
        (("GPU0", "GPU1", "SYS"), ("GPU4", "GPU6", "PHB"), ("PREF-02",), ("CUDA_VISIBLE_DEVICES",)),
    ),
    "no-map-mig-and-numa": (
        replace(H200, topology=None, devices=capture("h200-8-mig.devices.txt"), numa_balancing="3\n"),
        (("PREF-05",), ("MIG",), ("PREF-02",)),
    ),
    "a-cell-and-no-numa-file": (
        replace(with_cells(H200, GPU2_GPU7="NODE"), numa_balancing=None),
        (("GPU2", "GPU7", "NODE"), ("PREF-05",)),
    ),
}


@contract("PREF-05a", asks="preflight", cases=AT_ONCE, source="playbook")
def all_reasons_come_at_once(stack: Machine, node: NodeCapture, reasons: tuple[tuple[str, ...], ...]) -> None:
    """The preflight reports every reason not to launch in one answer, so that a node is drained and repaired once."""
    text = said(stack.preflight(node, EIGHT))
    for words in reasons:
        line = next((line for line in text.split("\n") if all(names(line, word) for word in words)), None)
        assert line is not None, f"{' '.join(words)} is not said; said: {text or 'nothing'}"


@contract("PREF-05b", asks="preflight", cases={
    "nine-lines": (WITHOUT_NICS, range(9)), "eighteen-lines": (OTHER_CABLING, range(18)),
}, source="playbook")  # fmt: skip
def no_line_of_the_map_can_go_unseen(stack: Machine, node: NodeCapture, table: range) -> None:
    """If any line of the topology table is missing, or the row of a GPU is cut off anywhere, the node is refused.

    A console log loses lines under load. The smallest loss is the worst: one row is missing and no remaining cell is
    wrong.
    """
    for number in table:
        findings = stack.preflight(without_line(node, number), EIGHT)
        assert findings, f"line {number} of the map was lost and the node was accepted"
    lines = (node.topology or "").split("\n")
    for number in range(1, 9):
        cells = lines[number].split("\t")
        for kept in range(9):
            cut = "\n".join([*lines[:number], "\t".join(cells[:kept]), *lines[number + 1 :]])
            findings = stack.preflight(replace(node, topology=cut), EIGHT)
            assert findings, f"the row of GPU{number - 1} was cut after {kept} cells and the node was accepted"
