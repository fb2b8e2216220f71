"""The node before a launch: fabric, devices, memory, NUMA balancing.

Cases are captures of `nvidia-smi topo -m` and similar tools (`captures/`), healthy or broken in one named place.
`unreadable_captures.py` has captures that cannot be read, `rank_map.py` the map from ranks to devices.
"""

import re
from dataclasses import replace

from contracts.bringup.law.preflight._captures import (
    A100,
    FOUR,
    H200,
    PCIE,
    WITHOUT_NICS,
    capture,
    names,
    said,
    with_cells,
    without_gpu,
)
from contracts.contract import contract
from contracts.instruments.node import read_node
from contracts.spec.machine import Machine, Need, NodeCapture

EIGHT = Need()

# node, need, the cells with a wrong link
SICK: dict[str, tuple[NodeCapture, Need, dict[tuple[str, str], str]]] = {
    "one-sys": (with_cells(H200, GPU3_GPU5="SYS"), EIGHT, {("GPU3", "GPU5"): "SYS"}),
    "one-phb": (with_cells(H200, GPU6_GPU7="PHB"), EIGHT, {("GPU6", "GPU7"): "PHB"}),
    "one-node": (with_cells(H200, GPU0_GPU2="NODE"), EIGHT, {("GPU0", "GPU2"): "NODE"}),
    "one-pix": (with_cells(WITHOUT_NICS, GPU4_GPU5="PIX"), EIGHT, {("GPU4", "GPU5"): "PIX"}),
    "one-pxb": (with_cells(H200, GPU1_GPU3="PXB"), EIGHT, {("GPU1", "GPU3"): "PXB"}),
    # still NVLink, but a third of its links
    "six-links-left": (with_cells(H200, GPU2_GPU6="NV6"), EIGHT, {("GPU2", "GPU6"): "NV6"}),
    "a-gpu-cut-off": (
        with_cells(H200, GPU4_GPU7="SYS", GPU5_GPU7="PHB", GPU6_GPU7="SYS"), EIGHT,
        {("GPU4", "GPU7"): "SYS", ("GPU5", "GPU7"): "PHB", ("GPU6", "GPU7"): "SYS"},
    ),
    "no-nvlink-at-all": (PCIE, EIGHT, {
        ("GPU0", "GPU1"): "PIX", ("GPU0", "GPU2"): "PXB", ("GPU4", "GPU6"): "NODE", ("GPU3", "GPU4"): "SYS",
        ("GPU6", "GPU7"): "PIX", ("GPU2", "GPU5"): "SYS", ("GPU1", "GPU7"): "SYS",
    }),
    "the-links-of-another-generation": (A100, EIGHT, {("GPU0", "GPU7"): "NV12", ("GPU3", "GPU4"): "NV12"}),
    "twelve-links-asked": (
        with_cells(A100, GPU1_GPU6="NV4"), Need(link="NV12"), {("GPU1", "GPU6"): "NV4"}
    ),
}  # fmt: skip


@contract("PREF-01", asks="preflight", cases=SICK, source="playbook")
def every_gpu_cell_is_the_nvlink_that_was_asked_for(
    stack: Machine, node: NodeCapture, need: Need, sick: dict[tuple[str, str], str]
) -> None:
    """Every GPU–GPU cell of `nvidia-smi topo -m` is the link that the run needs, NV18 on an eight-GPU Hopper node. The
    launch is refused with the name of each cell that differs.

    SYS and PHB are a fallback onto CPU and PCIe paths. A run on such a node works but slowly, and every measurement on
    it is noise: in one case the NCCL tuning that followed was undone once the node was repaired. A preflight that looks
    only for SYS and PHB passes NODE, PIX, PXB and a link at a third of its width.
    """
    text = said(stack.preflight(node, need), "PREF-01")
    for (one, other), link in sick.items():
        line = next((line for line in text.split("\n") if all(names(line, word) for word in (one, other, link))), None)
        assert line is not None, f"{one}–{other} is {link} and no finding of PREF-01 says so; said: {text or 'nothing'}"
    if node not in (PCIE, A100):  # in these two every cell is wrong, so every GPU is named
        ill = {gpu for pair in sick for gpu in pair}
        blamed = {word for word in re.findall(r"GPU[0-9]+", text) if word not in ill}
        assert not blamed, f"{', '.join(sorted(blamed))} is blamed, and its cells are {need.link}: {text}"


HEALTHY = {
    "as-printed": (H200, EIGHT),
    "through-crlf": (replace(H200, topology=(H200.topology or "").replace("\n", "\r\n")), EIGHT),
    "without-escapes": (replace(H200, topology=re.sub(r"\x1b\[[0-9;]*m", "", H200.topology or "")), EIGHT),
    "without-nics": (WITHOUT_NICS, EIGHT),
    # RoCE through one switch per socket: the distance from a GPU to a NIC says nothing about distance between GPUs
    "nics-far-away": (with_cells(H200, GPU0_NIC0="SYS", GPU4_NIC5="PHB", NIC0_NIC8="PXB"), EIGHT),
    "four-gpus-pasted-from-a-terminal": (FOUR, Need(gpus=4)),
    "twelve-links-of-an-old-driver": (A100, Need(link="NV12")),
    "one-gpu": (
        replace(
            H200,
            topology="\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-25\t0\n\nLegend:\n\n  X    = Self\n",
            devices=(H200.devices or "").split("\n")[0] + "\n",
        ),
        Need(gpus=1),
    ),
}


@contract("PREF-01a", asks="preflight", cases=HEALTHY, source="playbook")
def a_healthy_node_is_launched_on(stack: Machine, node: NodeCapture, need: Need) -> None:
    """A healthy node has no findings, in the output of drivers of different years.

    nvidia-smi underlines the header even when its output is piped, older drivers name NICs in the table, a console log
    adds CRLF, and a terminal adds blanks. SYS between a GPU and a NIC is ordinary. A preflight with such false alarms
    is switched off within a week, and then guards nothing.
    """
    findings = stack.preflight(node, need)
    assert not findings, f"a healthy node was refused: {said(findings)}"


_SEVEN = "".join(f"{line}\n" for line in (H200.devices or "").splitlines()[:7])
MISSING = {  # node, need, words of which a finding must hold one
    "gone-from-both": (replace(without_gpu(H200, "GPU7"), devices=_SEVEN), EIGHT, ("GPU7", "7")),
    "gone-from-the-map": (without_gpu(H200, "GPU7"), EIGHT, ("GPU7", "7")),
    "gone-from-the-list": (replace(H200, devices=_SEVEN), EIGHT, ("GPU7", "7")),
    "a-hole-in-the-map": (without_gpu(H200, "GPU2"), EIGHT, ("GPU2", "7")),
    "half-a-node": (FOUR, EIGHT, ("GPU4", "4")),
}


@contract("PREF-01b", asks="preflight", cases=MISSING, source="playbook")
def a_missing_gpu_is_refused(stack: Machine, node: NodeCapture, need: Need, words: tuple[str, ...]) -> None:
    """A node that shows fewer GPUs than the run needs is refused, with the name of the missing GPU or the number that
    is left.

    A GPU that fell off the bus takes its row and column of the table with it: every remaining cell is healthy.
    """
    findings = stack.preflight(node, need)
    assert findings, f"{need.gpus} GPUs are needed and fewer are there; the node was accepted"
    text = said(findings)
    assert any(names(text, word) for word in words), f"neither {' nor '.join(words)} is said: {text}"


@contract("PREF-01c", asks="preflight", cases={
    "gpu6-in-two": (replace(H200, devices=capture("h200-8-mig.devices.txt")), EIGHT, "6"),
}, source="playbook")  # fmt: skip
def a_rank_owns_a_whole_gpu(stack: Machine, node: NodeCapture, need: Need, gpu: str) -> None:
    """A GPU that is split into MIG instances refuses the launch, by its number.

    The table of links does not show it: the cells stay NV18, but a MIG instance has no NVLink at all.
    """
    text = said(stack.preflight(node, need))
    assert text, f"GPU{gpu} is cut into MIG instances and the node was accepted"
    assert names(text, gpu) or names(text, f"GPU{gpu}"), f"GPU{gpu} is not named: {text}"
    assert "MIG" in text, f"MIG is not named: {text}"


# content of /proc/sys/kernel/numa_balancing, whether it is fit
NUMA = {
    "off": ("0\n", True),
    "off-without-newline": ("0", True),
    "on": ("1\n", False),
    "memory-tiering": ("2\n", False),  # a bit mask since Linux 6.1, not a switch
    "both": ("3\n", False),
}


@contract("PREF-02", asks="preflight", cases=NUMA, source="playbook")
def automatic_numa_balancing_is_off(stack: Machine, content: str, fit: bool) -> None:
    """The host's automatic NUMA balancing is off: `/proc/sys/kernel/numa_balancing` holds 0 and nothing else.

    Balancing unmaps pages to see who touches them and moves them between sockets, also those beside pinned staging
    buffers. It shows as jitter of the slowest rank. Since Linux 6.1 the file is a bit mask, so a test for 1 misses 2
    and 3.
    """
    findings = stack.preflight(replace(H200, numa_balancing=content), EIGHT)
    text = said(findings, "PREF-02")
    value = content.strip()
    if fit:
        assert not findings, f"numa_balancing is {value}, which is off, and was refused: {said(findings)}"
    else:
        assert text, f"numa_balancing is {value} and no finding of PREF-02 says so"
        assert names(text, value), f"the value {value} is not said: {text}"


# MiB per GPU as the driver reports it, decimal GB that the recipe was planned for, the GPUs that are too small
MEMORY = {
    "h200": ((143771,) * 8, 141, ()),
    "h100-for-an-80-gb-recipe": ((81559,) * 8, 80, ()),
    "h100-for-an-h200-recipe": ((81559,) * 8, 141, tuple(f"GPU{gpu}" for gpu in range(8))),
    "one-of-another-kind": ((143771,) * 5 + (81559,) + (143771,) * 2, 141, ("GPU5",)),
    "an-h20-of-96": ((97871,) * 8, 141, ("GPU0", "GPU7")),
}


@contract("PREF-06", asks="preflight", cases=MEMORY, source="playbook bringup: HBM need of a preset")
def every_gpu_has_the_memory_the_recipe_was_planned_for(
    stack: Machine, memory: tuple[int, ...], hbm_gb: int, small: tuple[str, ...]
) -> None:
    """Every GPU reports at least the memory that the recipe was planned for. A finding names each GPU that is smaller.

    A preset planned for an H200 starts on an 80 GB H100 and dies at the first long batch. A driver counts in MiB, a
    data sheet in decimal GB: a preflight that reads 141 as GiB refuses every H200, which reports 143771 MiB.
    """
    node = replace(H200, memory="".join(f"{gpu}, {mib}\n" for gpu, mib in enumerate(memory)))
    findings = stack.preflight(node, Need(hbm_gb=hbm_gb))
    text = said(findings)
    if not small:
        assert not findings, f"{memory[0]} MiB is what a card of {hbm_gb} GB shows, and was refused: {text}"
    for gpu in small:
        line = next((line for line in text.split("\n") if names(line, gpu) and names(line, str(hbm_gb))), None)
        assert line is not None, f"{gpu} is too small for {hbm_gb} GB and no finding says so; said: {text or 'nothing'}"


@contract("PREF-01d", asks="preflight", cases={"this-node": ()}, source="playbook", tier="gpu")
def this_nodeis_fit_for_its_gpus(stack: Machine) -> None:
    """The node that this suite runs on, captured by the suite's own tool, passes the preflight for the GPUs that it
    has, and is refused for one more.

    Judged only by captures of other nodes, a preflight may refuse what the tools of this one print, or read nothing.
    """
    is_fit_for_its_gpus(stack, read_node())


def is_fit_for_its_gpus(stack: Machine, node: NodeCapture) -> None:
    there = len(re.findall(r"^GPU \d+:", node.devices or "", re.MULTILINE))
    why = node.failures.get("devices", "it prints no GPU")
    assert there, f"`nvidia-smi -L` names no GPU of a node where torch sees one: {why}"
    refused = said(stack.preflight(node, Need(gpus=there)))
    assert not refused, f"{node.host} is not fit for its {there} GPUs: {refused}"
    more = said(stack.preflight(node, Need(gpus=there + 1)))
    assert more, f"{node.host} has {there} GPUs, and no finding says that {there + 1} are not there"
