"""Preflights that take missing output for health."""

from __future__ import annotations

import re
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.machine import Finding, Need, NodeCapture
from contracts.stacks.reference.stack import Reference


@mutant(of="PREF-05", case="no-nvidia-smi", says="a node with an unreadable capture was accepted")
class PassesWhereThereIsNoTool(Reference):
    """Skips a tool that it cannot run, so that it works on laptops; a container without the tool passes too."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return () if capture.topology is None else super().preflight(capture, need)


@mutant(of="PREF-05", case="driver-mismatch", says="a node with an unreadable capture was accepted")
class SearchesForBadWords(Reference):
    """Greps the output for the words of slow paths, and an error message holds none of them."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        bad = re.search("SYS|PHB|NODE|PIX|PXB", capture.topology or "SYS")
        return super().preflight(capture, need) if bad else ()


@mutant(of="PREF-05", case="two-directions-disagree", says="a node with an unreadable capture was accepted")
class ReadsHalfTheMatrix(Reference):
    """Reads only above the diagonal, because an intact table is symmetric."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return tuple(
            each for each in super().preflight(capture, need) if not re.search(r"but \S+ at GPU", each.problem)
        )


@mutant(of="PREF-05", case="no-numa-file", says="a node with an unreadable capture was accepted")
class TakesAMissingFileForZero(Reference):
    """Reads a missing file as 0: in a container that hides /proc/sys, balancing counts as off."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return super().preflight(replace(capture, numa_balancing=capture.numa_balancing or "0"), need)


@mutant(of="PREF-05", case="empty-map", says="PREF-05 topology has no remedy")
class RefusesWithoutARemedy(Reference):
    """Says that the map cannot be read, without a remedy."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return tuple(replace(each, remedy="") for each in super().preflight(capture, need))


@mutant(of="PREF-05a", case="two-cells-numa-and-a-mask", says="GPU4 GPU6 PHB is not said")
class StopsAtTheFirstReason(Reference):
    """Stops at the first reason, so the node goes to repair once for each."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        return super().preflight(capture, need)[:1]


@mutant(of="PREF-05a", case="no-map-mig-and-numa", says="MIG is not said")
class GivesUpWithoutAMap(Reference):
    """Judges nothing else once the map is missing."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        found = super().preflight(capture, need)
        return found if capture.topology is not None else tuple(each for each in found if each.field == "topology")


@mutant(of="PREF-05b", case="nine-lines", says="line 8 of the map was lost and the node was accepted")
class ForgivesTheLastRow(Reference):
    """Restores a missing last row by symmetry, because logs are often cut at their end."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        text = capture.topology or ""
        if "\nGPU6\t" in text and "\nGPU7\t" not in text:
            text = text.replace("\n\nLegend", "\nGPU7\t" + "NV18\t" * 7 + " X \n\nLegend")
        return super().preflight(replace(capture, topology=text), need)


@mutant(of="PREF-05b", case="nine-lines", says="the row of GPU0 was cut after 2 cells and the node was accepted")
class FillsShortRows(Reference):
    """Pads a short row with the expected link, to get rid of an index error."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        lines = [line.split("\t") for line in (capture.topology or "").split("\n")]
        for cells in lines:
            if cells[0].startswith("GPU") and len(cells) > 1:
                cells.extend([need.link] * (need.gpus + 1 - len(cells)))
        return super().preflight(replace(capture, topology="\n".join("\t".join(cells) for cells in lines)), need)
