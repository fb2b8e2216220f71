"""Preflights that pass a sick node or refuse a healthy one."""

from __future__ import annotations

import re
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.machine import Finding, Need, NodeCapture
from contracts.stacks.reference.stack import Reference


@mutant(of="PREF-01", case="one-sys", says="GPU3–GPU5 is SYS and no finding of PREF-01 says so", bugs=("PRV-24",))
class TrustsTheNode(Reference):
    """Runs no preflight, because the node was fine last week."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return ()


@mutant(of="PREF-01", case="one-node", says="GPU0–GPU2 is NODE and no finding of PREF-01 says so")
class LooksForSysAndPhb(Reference):
    """Searches only for SYS and PHB, the two words that the playbook names, and accepts NODE, PIX and PXB."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        found = super().preflight(capture, need)
        return tuple(each for each in found if each.promise != "PREF-01" or re.search("SYS|PHB", each.value))


@mutant(of="PREF-01", case="six-links-left", says="GPU2–GPU6 is NV6 and no finding of PREF-01 says so")
class TakesAnyNvlink(Reference):
    """Asks whether there is NVLink, not how many links: a GPU with a third of them passes."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return tuple(each for each in super().preflight(capture, need) if not re.search("is NV[0-9]", each.value))


@mutant(of="PREF-01", case="a-gpu-cut-off", says="GPU4–GPU7 is SYS and no finding of PREF-01 says so")
class ReadsTheFirstRow(Reference):
    """Checks only the links of GPU0: a switch that lost another pair is never seen."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        found = super().preflight(capture, need)
        return tuple(each for each in found if each.promise != "PREF-01" or "GPU0" in each.value)


@mutant(of="PREF-01", case="one-pxb", says="GPU1–GPU3 is PXB and no finding of PREF-01 says so")
class SaysThatSomethingIsWrong(Reference):
    """Refuses the node without saying where, so eight GPUs are drained and tested one by one."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return tuple(replace(each, value="the fabric") for each in super().preflight(capture, need))


@mutant(of="PREF-01", case="one-phb", says="is blamed, and its cells are NV18")
class BlamesTheWholeRow(Reference):
    """Prints the whole row of a sick cell, and so names seven healthy neighbours."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        row = " ".join(f"GPU{gpu}" for gpu in range(need.gpus))
        found = super().preflight(capture, need)
        return tuple(replace(each, problem=f"{each.problem} in the row {row}") for each in found)


@mutant(of="PREF-01", case="twelve-links-asked", says="GPU1–GPU6 is NV4 and no finding of PREF-01 says so")
class WritesDownOneGeneration(Reference):
    """Skips its check where the link is not Hopper's, because it used to refuse such nodes wrongly."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        found = super().preflight(capture, need)
        return found if need.link == "NV18" else tuple(each for each in found if each.promise != "PREF-01")


@mutant(of="PREF-01a", case="nics-far-away", says="a healthy node was refused")
class SearchesTheTextForSys(Reference):
    """Over-correction: refuses a node with SYS anywhere in the table, also for a NIC across the socket."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        table = (capture.topology or "").partition("Legend")[0]
        sick = Finding(promise="PREF-01", field="topology", value="SYS", problem="is in the map", remedy="mend it")
        return (*super().preflight(capture, need), *((sick,) if "SYS" in table else ()))


@mutant(of="PREF-01a", case="as-printed", says="a healthy node was refused")
class ReadsPlainTextAlone(Reference):
    """Reads only a table pasted from a ticket, and fails on the underlined header of a real node."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return super().preflight(replace(capture, topology=(capture.topology or "").replace("\x1b", "?")), need)


@mutant(of="PREF-01a", case="one-gpu", says="a healthy node was refused")
class WantsEightOfEverything(Reference):
    """Asks every node for eight GPUs, the developer's one-GPU node included."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return super().preflight(capture, replace(need, gpus=8))


@mutant(of="PREF-01b", case="gone-from-both", says="8 GPUs are needed and fewer are there; the node was accepted")
class JudgesTheCellsThatAreThere(Reference):
    """Takes the node's size from the node itself: a lost GPU has no cell that could be wrong."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        there = len(re.findall(r"^GPU\d+\t", capture.topology or "", re.MULTILINE))
        return super().preflight(capture, replace(need, gpus=min(need.gpus, there) or need.gpus))


@mutant(of="PREF-01c", case="gpu6-in-two", says="GPU6 is cut into MIG instances and the node was accepted")
class CountsTheLinesOfGpus(Reference):
    """Keeps only lines that begin with GPU, but those of MIG instances are indented."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        kept = re.sub(r"^ +MIG.*\n", "", capture.devices or "", flags=re.MULTILINE)
        return super().preflight(replace(capture, devices=kept), need)


@mutant(of="PREF-02", case="on", says="numa_balancing is 1 and no finding of PREF-02 says so", bugs=("PRV-24",))
class LeavesNumaToTheHost(Reference):
    """Checks the fabric and nothing of the host."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return super().preflight(replace(capture, numa_balancing="0"), need)


@mutant(of="PREF-02", case="memory-tiering", says="numa_balancing is 2 and no finding of PREF-02 says so")
class TakesTheFileForASwitch(Reference):
    """Compares with 1, but since Linux 6.1 the file is a bit mask and 2 moves pages too."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        found = super().preflight(capture, need)
        return tuple(each for each in found if each.promise != "PREF-02" or each.value == "1")


@mutant(of="PREF-02", case="off-without-newline", says="which is off, and was refused")
class ComparesWithTheNewline(Reference):
    """Over-correction: accepts only "0" with a newline, and refuses a capture that was stripped."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        exact = capture.numa_balancing == "0\n"
        return super().preflight(replace(capture, numa_balancing="0\n" if exact else "1\n"), need)


@mutant(of="PREF-06", case="h100-for-an-h200-recipe", says="GPU0 is too small for 141 GB and no finding says so")
class TakesAnyHopper(Reference):
    """Takes H100 and H200 for the same card: they share an architecture and differ by 61 GB."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return super().preflight(capture, replace(need, hbm_gb=min(need.hbm_gb, 80)))


@mutant(of="PREF-06", case="h200", says="143771 MiB is what a card of 141 GB shows, and was refused")
class ComparesWithTheNameOfTheCard(Reference):
    """Reads gigabytes as gibibytes: 141 GiB are 144384 MiB, which no H200 reports."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        least = min(int(line.split(",")[1]) for line in (capture.memory or "0, 0").splitlines())
        short = Finding(
            promise="PREF-06", field="GPU0", value=f"{least} MiB", problem="too small", remedy="take another"
        )
        return (*super().preflight(capture, need), *((short,) if least < need.hbm_gb * 1024 else ()))


@mutant(of="PREF-06", case="one-of-another-kind", says="GPU5 is too small for 141 GB and no finding says so")
class AsksTheFirstCard(Reference):
    """Reads only the memory of GPU0."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return tuple(
            each for each in super().preflight(capture, need) if each.promise != "PREF-06" or each.field == "GPU0"
        )
