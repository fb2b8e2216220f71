"""Preflights that take silence for health."""

from __future__ import annotations

import re
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.machine import Finding, Need, NodeCapture
from contracts.stacks.reference.stack import Reference


@mutant(of="PREF-05", case="no-nvidia-smi", says="a node of which something could not be read was accepted")
class PassesWhereThereIsNoTool(Reference):
    """Skips what it cannot run, so that it works on laptops too; a container without the tool is no laptop."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return () if capture.topology is None else super().preflight(capture, need)


@mutant(of="PREF-05", case="driver-mismatch", says="a node of which something could not be read was accepted")
class SearchesForBadWords(Reference):
    """Greps the output for the words of slow paths: an error message holds none of them."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        bad = re.search("SYS|PHB|NODE|PIX|PXB", capture.topology or "SYS")
        return super().preflight(capture, need) if bad else ()


@mutant(of="PREF-05", case="two-directions-disagree", says="a node of which something could not be read was accepted")
class ReadsHalfTheMatrix(Reference):
    """Reads above the diagonal, because the table is symmetric when it is whole."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return tuple(
            each for each in super().preflight(capture, need) if not re.search(r"and \S+ at GPU", each.problem)
        )


@mutant(of="PREF-05", case="no-numa-file", says="a node of which something could not be read was accepted")
class TakesAMissingFileForZero(Reference):
    """Reads the file or takes 0: a container that hides /proc/sys has balancing off, by that account."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return super().preflight(replace(capture, numa_balancing=capture.numa_balancing or "0"), need)


@mutant(of="PREF-05", case="empty-map", says="PREF-05 topology has no remedy")
class RefusesWithoutARemedy(Reference):
    """Says that the map cannot be read, at three in the morning, and nothing else."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return tuple(replace(each, remedy="") for each in super().preflight(capture, need))


@mutant(of="PREF-05a", case="two-cells-numa-and-a-mask", says="GPU4 GPU6 PHB is not said")
class StopsAtTheFirstReason(Reference):
    """Leaves at the first reason: the node comes back from repair once for each of them."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return super().preflight(capture, need)[:1]


@mutant(of="PREF-05a", case="no-map-mig-and-numa", says="MIG is not said")
class GivesUpWithoutAMap(Reference):
    """Without a map there is nothing to judge, it says, and does not look at the rest."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        found = super().preflight(capture, need)
        return found if capture.topology is not None else tuple(each for each in found if each.field == "topology")


@mutant(of="PREF-05b", case="nine-lines", says="line 8 of the map was lost and the node was accepted")
class ForgivesTheLastRow(Reference):
    """Puts the last row back when it is missing, since logs are cut at their end and the row is known by symmetry."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        text = capture.topology or ""
        if "\nGPU6\t" in text and "\nGPU7\t" not in text:
            text = text.replace("\n\nLegend", "\nGPU7\t" + "NV18\t" * 7 + " X \n\nLegend")
        return super().preflight(replace(capture, topology=text), need)


@mutant(of="PREF-05b", case="nine-lines", says="the row of GPU0 was cut after 2 cells and the node was accepted")
class FillsShortRows(Reference):
    """Pads a row that is too short with the link that was expected; an index error went away."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        lines = [line.split("\t") for line in (capture.topology or "").split("\n")]
        for cells in lines:
            if cells[0].startswith("GPU") and len(cells) > 1:
                cells.extend([need.link] * (need.gpus + 1 - len(cells)))
        return super().preflight(replace(capture, topology="\n".join("\t".join(cells) for cells in lines)), need)
