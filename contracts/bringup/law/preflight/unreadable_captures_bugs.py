"""Preflights that take missing output for health."""

import re
from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.stack import Reference


@broken(Reference, "preflight", "PREF-05[no-nvidia-smi]: a node with an unreadable capture was accepted")
def passes_where_there_is_no_tool(preflight, self, capture, need):
    """Skips a tool that it cannot run, so that it works on laptops; a container without the tool passes too."""
    return () if capture.topology is None else preflight(self, capture, need)


@broken(Reference, "preflight", "PREF-05[driver-mismatch]: a node with an unreadable capture was accepted")
def searches_for_bad_words(preflight, self, capture, need):
    """Greps the output for the words of slow paths, and an error message holds none of them."""
    bad = re.search("SYS|PHB|NODE|PIX|PXB", capture.topology or "SYS")
    return preflight(self, capture, need) if bad else ()


@broken(Reference, "preflight", "PREF-05[two-directions-disagree]: a node with an unreadable capture was accepted")
def reads_half_the_matrix(preflight, self, capture, need):
    """Reads only above the diagonal, because an intact table is symmetric."""
    return tuple(each for each in preflight(self, capture, need) if not re.search(r"but \S+ at GPU", each.problem))


@broken(Reference, "preflight", "PREF-05[no-numa-file]: a node with an unreadable capture was accepted")
def takes_a_missing_file_for_zero(preflight, self, capture, need):
    """Reads a missing file as 0: in a container that hides /proc/sys, balancing counts as off."""
    return preflight(self, replace(capture, numa_balancing=capture.numa_balancing or "0"), need)


@broken(Reference, "preflight", "PREF-05[empty-map]: PREF-05 topology has no remedy")
def refuses_without_a_remedy(preflight, self, capture, need):
    """Says that the map cannot be read, without a remedy."""
    return tuple(replace(each, remedy="") for each in preflight(self, capture, need))


@broken(Reference, "preflight", "PREF-05a[two-cells-numa-and-a-mask]: GPU4 GPU6 PHB is not said")
def stops_at_the_first_reason(preflight, self, capture, need):
    """Stops at the first reason, so the node goes to repair once for each."""
    return preflight(self, capture, need)[:1]


@broken(Reference, "preflight", "PREF-05a[no-map-mig-and-numa]: MIG is not said")
def gives_up_without_a_map(preflight, self, capture, need):
    """Judges nothing else once the map is missing."""
    found = preflight(self, capture, need)
    return found if capture.topology is not None else tuple(each for each in found if each.field == "topology")


@broken(Reference, "preflight", "PREF-05b[nine-lines]: line 8 of the map was lost and the node was accepted")
def forgives_the_last_row(preflight, self, capture, need):
    """Restores a missing last row by symmetry, because logs are often cut at their end."""
    text = capture.topology or ""
    if "\nGPU6\t" in text and "\nGPU7\t" not in text:
        text = text.replace("\n\nLegend", "\nGPU7\t" + "NV18\t" * 7 + " X \n\nLegend")
    return preflight(self, replace(capture, topology=text), need)


@broken(Reference, "preflight", "PREF-05b[nine-lines]: the row of GPU0 was cut after 2 cells and the node was accepted")
def fills_short_rows(preflight, self, capture, need):
    """Pads a short row with the expected link, to get rid of an index error."""
    lines = [line.split("\t") for line in (capture.topology or "").split("\n")]
    for cells in lines:
        if cells[0].startswith("GPU") and len(cells) > 1:
            cells.extend([need.link] * (need.gpus + 1 - len(cells)))
    return preflight(self, replace(capture, topology="\n".join("\t".join(cells) for cells in lines)), need)
