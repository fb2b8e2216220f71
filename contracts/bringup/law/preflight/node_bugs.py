"""Preflights that pass a sick node or refuse a healthy one."""

import re
from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec.machine import Finding
from contracts.stacks.reference.stack import Reference


@broken(
    Reference, "preflight",
    "PREF-01[one-sys]: GPU3–GPU5 is SYS and no finding of PREF-01 says so",
    "PREF-01d[this-node]: and no finding says that", bugs=("PRV-24",),
)  # fmt: skip
def trusts_the_node(preflight, self, capture, need):
    """Runs no preflight, because the node was fine last week."""
    return ()


@broken(Reference, "preflight", "PREF-01[one-node]: GPU0–GPU2 is NODE and no finding of PREF-01 says so")
def looks_for_sys_and_phb(preflight, self, capture, need):
    """Searches only for SYS and PHB, the two words that the playbook names, and accepts NODE, PIX and PXB."""
    found = preflight(self, capture, need)
    return tuple(each for each in found if each.promise != "PREF-01" or re.search("SYS|PHB", each.value))


@broken(Reference, "preflight", "PREF-01[six-links-left]: GPU2–GPU6 is NV6 and no finding of PREF-01 says so")
def takes_any_nvlink(preflight, self, capture, need):
    """Asks whether there is NVLink, not how many links: a GPU with a third of them passes."""
    return tuple(each for each in preflight(self, capture, need) if not re.search("is NV[0-9]", each.value))


@broken(Reference, "preflight", "PREF-01[a-gpu-cut-off]: GPU4–GPU7 is SYS and no finding of PREF-01 says so")
def reads_the_first_row(preflight, self, capture, need):
    """Checks only the links of GPU0: a switch that lost another pair is never seen."""
    found = preflight(self, capture, need)
    return tuple(each for each in found if each.promise != "PREF-01" or "GPU0" in each.value)


@broken(Reference, "preflight", "PREF-01[one-pxb]: GPU1–GPU3 is PXB and no finding of PREF-01 says so")
def says_that_something_is_wrong(preflight, self, capture, need):
    """Refuses the node without saying where, so eight GPUs are drained and tested one by one."""
    return tuple(replace(each, value="the fabric") for each in preflight(self, capture, need))


@broken(Reference, "preflight", "PREF-01[one-phb]: is blamed, and its cells are NV18")
def blames_the_whole_row(preflight, self, capture, need):
    """Prints the whole row of a sick cell, and so names seven healthy neighbours."""
    row = " ".join(f"GPU{gpu}" for gpu in range(need.gpus))
    found = preflight(self, capture, need)
    return tuple(replace(each, problem=f"{each.problem} in the row {row}") for each in found)


@broken(Reference, "preflight", "PREF-01[twelve-links-asked]: GPU1–GPU6 is NV4 and no finding of PREF-01 says so")
def writes_down_one_generation(preflight, self, capture, need):
    """Skips its check where the link is not Hopper's, because it used to refuse such nodes wrongly."""
    found = preflight(self, capture, need)
    return found if need.link == "NV18" else tuple(each for each in found if each.promise != "PREF-01")


@broken(Reference, "preflight", "PREF-01a[nics-far-away]: a healthy node was refused")
def searches_the_text_for_sys(preflight, self, capture, need):
    """Over-correction: refuses a node with SYS anywhere in the table, also for a NIC across the socket."""
    table = (capture.topology or "").partition("Legend")[0]
    sick = Finding(promise="PREF-01", field="topology", value="SYS", problem="is in the map", remedy="mend it")
    return (*preflight(self, capture, need), *((sick,) if "SYS" in table else ()))


@broken(Reference, "preflight", "PREF-01a[as-printed]: a healthy node was refused")
def reads_plain_text_alone(preflight, self, capture, need):
    """Reads only a table pasted from a ticket, and fails on the underlined header of a real node."""
    return preflight(self, replace(capture, topology=(capture.topology or "").replace("\x1b", "?")), need)


@broken(Reference, "preflight", "PREF-01a[one-gpu]: a healthy node was refused")
def wants_eight_of_everything(preflight, self, capture, need):
    """Asks every node for eight GPUs, the developer's one-GPU node included."""
    return preflight(self, capture, replace(need, gpus=8))


@broken(
    Reference, "preflight", "PREF-01b[gone-from-both]: 8 GPUs are needed and fewer are there; the node was accepted"
)
def judges_the_cells_that_are_there(preflight, self, capture, need):
    """Takes the node's size from the node itself: a lost GPU has no cell that could be wrong."""
    there = len(re.findall(r"^GPU\d+\t", capture.topology or "", re.MULTILINE))
    return preflight(self, capture, replace(need, gpus=min(need.gpus, there) or need.gpus))


@broken(Reference, "preflight", "PREF-01c[gpu6-in-two]: GPU6 is cut into MIG instances and the node was accepted")
def counts_the_lines_of_gpus(preflight, self, capture, need):
    """Keeps only lines that begin with GPU, but those of MIG instances are indented."""
    kept = re.sub(r"^ +MIG.*\n", "", capture.devices or "", flags=re.MULTILINE)
    return preflight(self, replace(capture, devices=kept), need)


@broken(Reference, "preflight", "PREF-02[on]: numa_balancing is 1 and no finding of PREF-02 says so", bugs=("PRV-24",))
def leaves_numa_to_the_host(preflight, self, capture, need):
    """Checks the fabric and nothing of the host."""
    return preflight(self, replace(capture, numa_balancing="0"), need)


@broken(Reference, "preflight", "PREF-02[memory-tiering]: numa_balancing is 2 and no finding of PREF-02 says so")
def takes_the_file_for_a_switch(preflight, self, capture, need):
    """Compares with 1, but since Linux 6.1 the file is a bit mask and 2 moves pages too."""
    found = preflight(self, capture, need)
    return tuple(each for each in found if each.promise != "PREF-02" or each.value == "1")


@broken(Reference, "preflight", "PREF-02[off-without-newline]: which is off, and was refused")
def compares_with_the_newline(preflight, self, capture, need):
    """Over-correction: accepts only "0" with a newline, and refuses a capture that was stripped."""
    exact = capture.numa_balancing == "0\n"
    return preflight(self, replace(capture, numa_balancing="0\n" if exact else "1\n"), need)


@broken(Reference, "preflight", "PREF-06[h100-for-an-h200-recipe]: GPU0 is too small for 141 GB and no finding says so")
def takes_any_hopper(preflight, self, capture, need):
    """Takes H100 and H200 for the same card: they share an architecture and differ by 61 GB."""
    return preflight(self, capture, replace(need, hbm_gb=min(need.hbm_gb, 80)))


@broken(Reference, "preflight", "PREF-06[h200]: 143771 MiB is what a card of 141 GB shows, and was refused")
def compares_with_the_name_of_the_card(preflight, self, capture, need):
    """Reads gigabytes as gibibytes: 141 GiB are 144384 MiB, which no H200 reports."""
    least = min(int(line.split(",")[1]) for line in (capture.memory or "0, 0").splitlines())
    short = Finding(promise="PREF-06", field="GPU0", value=f"{least} MiB", problem="too small", remedy="take another")
    return (*preflight(self, capture, need), *((short,) if least < need.hbm_gb * 1024 else ()))


@broken(Reference, "preflight", "PREF-06[one-of-another-kind]: GPU5 is too small for 141 GB and no finding says so")
def asks_the_first_card(preflight, self, capture, need):
    """Reads only the memory of GPU0."""
    return tuple(each for each in preflight(self, capture, need) if each.promise != "PREF-06" or each.field == "GPU0")


@broken(Reference, "preflight", "PREF-01d[this-node]: is not fit for its")
def asks_for_a_row_of_nics(preflight, self, capture, need):
    """Needs a NIC for each GPU on every node, also on one that has a single GPU and is nobody's neighbour."""
    wanting = Finding(promise="PREF-01", field="nics", value="0", problem="a NIC a GPU is needed", remedy="add some")
    return (*preflight(self, capture, need), wanting)
