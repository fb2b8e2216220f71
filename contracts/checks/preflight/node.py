"""The node before the launch: fabric, devices, memory, NUMA balancing.

Cases are captures of `nvidia-smi topo -m` and its kin (`captures/`), healthy, or made sick in one named place. A
capture that cannot be read stands in `illegible.py`, the map from ranks to devices in `rank_map.py`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from contracts.checks.preflight._captures import (
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
from contracts.contract import contract, untested
from contracts.spec.machine import Machine, Need, NodeCapture

EIGHT = Need()

# node, need, the sick cells
SICK: dict[str, tuple[NodeCapture, Need, dict[tuple[str, str], str]]] = {
    "one-sys": (with_cells(H200, GPU3_GPU5="SYS"), EIGHT, {("GPU3", "GPU5"): "SYS"}),
    "one-phb": (with_cells(H200, GPU6_GPU7="PHB"), EIGHT, {("GPU6", "GPU7"): "PHB"}),
    "one-node": (with_cells(H200, GPU0_GPU2="NODE"), EIGHT, {("GPU0", "GPU2"): "NODE"}),
    "one-pix": (with_cells(WITHOUT_NICS, GPU4_GPU5="PIX"), EIGHT, {("GPU4", "GPU5"): "PIX"}),
    "one-pxb": (with_cells(H200, GPU1_GPU3="PXB"), EIGHT, {("GPU1", "GPU3"): "PXB"}),
    # NVLink still, on a third of its links
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
    """Every GPU–GPU cell of `nvidia-smi topo -m` is the link that the run needs, NV18 on an eight-way Hopper node; each
    cell that is not refuses the launch by name.

    SYS and PHB are a fallback onto CPU and PCIe paths. A run on such a node works, slowly, and every number measured
    on it is noise: the tuning of NCCL that followed in one case was undone when the node was repaired. A preflight
    that looks for SYS and PHB alone lets NODE, PIX, PXB and a link at a third of its width pass.
    """
    text = said(stack.preflight(node, need), "PREF-01")
    for (one, other), link in sick.items():
        line = next((line for line in text.split("\n") if all(names(line, word) for word in (one, other, link))), None)
        assert line is not None, f"{one}–{other} is {link} and no finding of PREF-01 says so; said: {text or 'nothing'}"
    if node not in (PCIE, A100):  # where every cell is sick, every GPU is named
        ill = {gpu for pair in sick for gpu in pair}
        blamed = {word for word in re.findall(r"GPU[0-9]+", text) if word not in ill}
        assert not blamed, f"{', '.join(sorted(blamed))} is blamed, and its cells are {need.link}: {text}"


HEALTHY = {
    "as-printed": (H200, EIGHT),
    "through-crlf": (replace(H200, topology=(H200.topology or "").replace("\n", "\r\n")), EIGHT),
    "without-escapes": (replace(H200, topology=re.sub(r"\x1b\[[0-9;]*m", "", H200.topology or "")), EIGHT),
    "without-nics": (WITHOUT_NICS, EIGHT),
    # RoCE through one switch a socket: the distance from a GPU to a NIC is no distance between GPUs
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
    """A healthy node has no finding, as drivers of different years print it.

    The header is underlined even when nobody looks, older drivers name NICs in the table, CRLF comes from a console
    log, blanks from a terminal. SYS between a GPU and a NIC is ordinary. A preflight that cries at these is switched
    off within a week, and then it guards nothing.
    """
    findings = stack.preflight(node, need)
    assert not findings, f"a healthy node was refused: {said(findings)}"


_SEVEN = "".join(f"{line}\n" for line in (H200.devices or "").splitlines()[:7])
MISSING = {  # node, need, words of which one must be said
    "gone-from-both": (replace(without_gpu(H200, "GPU7"), devices=_SEVEN), EIGHT, ("GPU7", "7")),
    "gone-from-the-map": (without_gpu(H200, "GPU7"), EIGHT, ("GPU7", "7")),
    "gone-from-the-list": (replace(H200, devices=_SEVEN), EIGHT, ("GPU7", "7")),
    "a-hole-in-the-map": (without_gpu(H200, "GPU2"), EIGHT, ("GPU2", "7")),
    "half-a-node": (FOUR, EIGHT, ("GPU4", "4")),
}


@contract("PREF-01b", asks="preflight", cases=MISSING, source="playbook")
def a_missing_gpu_is_refused(stack: Machine, node: NodeCapture, need: Need, words: tuple[str, ...]) -> None:
    """A node that shows fewer GPUs than it has ranks is refused, with the GPU or the number that is there.

    A GPU that fell off the bus takes its row and its column with it: every cell that is left is healthy.
    """
    findings = stack.preflight(node, need)
    assert findings, f"{need.gpus} GPUs are needed and fewer are there; the node was accepted"
    text = said(findings)
    assert any(names(text, word) for word in words), f"neither {' nor '.join(words)} is said: {text}"


@contract("PREF-01c", asks="preflight", cases={
    "gpu6-in-two": (replace(H200, devices=capture("h200-8-mig.devices.txt")), EIGHT, "6"),
}, source="playbook")  # fmt: skip
def a_rank_owns_a_whole_gpu(stack: Machine, node: NodeCapture, need: Need, gpu: str) -> None:
    """A GPU that is cut into MIG instances refuses the launch, by its number.

    The map of the fabric does not show it: the cells stay NV18, and an instance has no NVLink at all.
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
    """The host's automatic NUMA balancing is off: `/proc/sys/kernel/numa_balancing` is 0 and nothing else.

    Balancing unmaps pages to see who touches them and moves them between sockets, pinned staging buffers' neighbours
    included; it shows as jitter of the slowest rank. Since Linux 6.1 the file is a bit mask, so that a test for 1
    accepts 2 and 3.
    """
    findings = stack.preflight(replace(H200, numa_balancing=content), EIGHT)
    text = said(findings, "PREF-02")
    value = content.strip()
    if fit:
        assert not findings, f"numa_balancing is {value}, which is off, and was refused: {said(findings)}"
    else:
        assert text, f"numa_balancing is {value} and no finding of PREF-02 says so"
        assert names(text, value), f"the value {value} is not said: {text}"


# MiB a GPU as the driver says it, decimal GB the recipe was planned for, the GPUs that are too small
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
    """Every GPU has the memory that the recipe was planned for, as far as a card shows it; a smaller one is named.

    A preset planned for an H200 starts on an 80 GB H100 and dies at the first long batch. A driver counts in MiB and
    a data sheet in decimal GB: who reads 141 as GiB refuses every H200, which shows 143771 MiB.
    """
    node = replace(H200, memory="".join(f"{gpu}, {mib}\n" for gpu, mib in enumerate(memory)))
    findings = stack.preflight(node, Need(hbm_gb=hbm_gb))
    text = said(findings)
    if not small:
        assert not findings, f"{memory[0]} MiB is what a card of {hbm_gb} GB shows, and was refused: {text}"
    for gpu in small:
        line = next((line for line in text.split("\n") if names(line, gpu) and names(line, str(hbm_gb))), None)
        assert line is not None, f"{gpu} is too small for {hbm_gb} GB and no finding says so; said: {text or 'nothing'}"


untested(
    "PREF-01d", "The node this suite runs on, captured by the suite's own instrument, is fit for its GPUs.",
    why="needs a GPU node; `rankproof preflight` judges one by hand", tier="gpu",
)  # fmt: skip
