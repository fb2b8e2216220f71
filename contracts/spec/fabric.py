"""A strict parser of `nvidia-smi topo -m`, the topology of a node.

The format: a header of device names, a row of links for each device, an empty line, a legend. Drivers differ in the
details, and the parser accepts all of these: tabs, or spaces from a terminal; an underlined header; CR LF; NICs named
`NIC0` with a legend, or `mlx5_0` in the table (drivers before 470); affinity columns. It refuses a table that could
mean something else: missing or unknown cells, a row without its column, a device that is not X to itself, a link whose
two directions disagree.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from contracts.spec.errors import Refusals

NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")  # how far a NIC is from a GPU, in the words of the legend

_UNDERLINE = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU(0|[1-9][0-9]{0,3})")
_DEVICE = re.compile(r"GPU(0|[1-9][0-9]{0,3})|NIC(0|[1-9][0-9]{0,3})|(mlx|irdma|bnxt_re|rdmap|efa)[A-Za-z0-9_]*")
_LINK = re.compile(rf"X|NV[1-9][0-9]?|{'|'.join(NEAREST_FIRST)}")
_NIC_NAME = re.compile(r"\s*(NIC[0-9]+)\s*:\s*(\S+)\s*")
_REMEDY = "capture the standard output of `nvidia-smi topo -m`, whole and unedited"


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The links between the devices of a node.

    Args:
        gpus: `("GPU0", …)` in the order of the table.
        nics: names in the order of the table.
        links: `links["GPU3"]["GPU5"]` is NV18 on a healthy eight-way node; each pair is there in both directions.
        nic_names: name in the table → name of the RDMA device, `{"NIC0": "mlx5_0"}`.
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: Mapping[str, Mapping[str, str]]
    nic_names: Mapping[str, str]

    def nearest_nics(self, gpu: str) -> tuple[str, ...]:
        """The names of the RDMA devices nearest to a GPU; empty when the node has none."""
        distance = {nic: NEAREST_FIRST.index(self.links[gpu][nic]) for nic in self.nics}
        least = min(distance.values(), default=0)
        return tuple(self.nic_names.get(nic, nic) for nic in self.nics if distance[nic] == least)


def read_fabric(text: str) -> Fabric:
    """Parse the table.

    Raises:
        Refused: every problem of the table, with the name of the cell (`GPU3–GPU5`).
    """
    found = Refusals()
    lines = _lines(text, found)
    found.raise_any()
    header, rows = lines[0], lines[1:]
    columns = _columns(header)
    links: dict[str, dict[str, str]] = {}
    for words in rows:
        name, cells = words[0], words[1 : 1 + len(columns)]
        if name in links:
            found.add("topology", name, "has two rows", _REMEDY)
        elif len(cells) < len(columns):
            found.add("topology", name, f"has {len(cells)} cells for {len(columns)} columns", _REMEDY)
        elif more := [word for word in words[1 + len(columns) :] if _LINK.fullmatch(word)]:
            found.add("topology", name, f"has {len(cells) + len(more)} cells for {len(columns)} columns", _REMEDY)
        links[name] = dict(zip(columns, cells, strict=False))
    for name in (name for name in links if name not in columns):
        found.add("topology", name, "has a row and no column", _REMEDY)
    for name in (name for name in columns if name not in links):
        found.add("topology", name, "has a column and no row", _REMEDY)
    found.raise_any()
    _judge_cells(columns, links, found)
    found.raise_any()
    return Fabric(
        gpus=tuple(name for name in columns if _GPU.fullmatch(name)),
        nics=tuple(name for name in columns if not _GPU.fullmatch(name)),
        links=links,
        nic_names={match[1]: match[2] for line in text.splitlines() if (match := _NIC_NAME.fullmatch(line))},
    )


def _lines(text: str, found: Refusals) -> list[list[str]]:
    """The header and each row, split into words, up to the empty line that ends the table."""
    plain = _UNDERLINE.sub("", text).replace("\r\n", "\n")
    strange = sorted({character for character in plain if character not in "\t\n" and not character.isprintable()})
    if strange:
        found.add("topology", strange[0], "is not a character of such a table", _REMEDY)
        return []
    lines = [line.split() for line in plain.split("\n")]
    while lines and not lines[0]:
        lines.pop(0)
    table = lines[: lines.index([])] if [] in lines else lines
    if not table or not _columns(table[0]):
        found.add("topology", " ".join(table[0]) if table else "", "is not a header of device names", _REMEDY)
        return []
    columns = _columns(table[0])
    if not any(_GPU.fullmatch(name) for name in columns):
        found.add("topology", " ".join(columns), "names no GPU", _REMEDY)
    for name in {name for name in columns if columns.count(name) > 1}:
        found.add("topology", name, "has two columns", _REMEDY)
    for words in (words for words in lines[len(table) :] if words):
        if _DEVICE.fullmatch(words[0]):
            found.add("topology", words[0], "has a row below the table", _REMEDY)
    return table


def _columns(header: list[str]) -> tuple[str, ...]:
    """The device names of a header line; empty when it is not one. Names of affinity columns may follow."""
    names = []
    rest = list(header)
    while rest and _DEVICE.fullmatch(rest[0]):
        names.append(rest.pop(0))
    trailing = " ".join(rest)
    known = ("", *(" ".join(titles) for titles in _TITLES))
    return tuple(names) if trailing in known else ()


_TITLES = (
    ("CPU Affinity",),
    ("CPU Affinity", "NUMA Affinity"),
    ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID"),
)


def _judge_cells(columns: tuple[str, ...], links: Mapping[str, Mapping[str, str]], found: Refusals) -> None:
    for row in columns:
        for column in columns:
            link, back = links[row][column], links[column][row]
            cell = f"{row}–{column}"
            if not _LINK.fullmatch(link):
                found.add("topology", link, f"is not a link, at {cell}", _REMEDY)
            elif (link == "X") != (row == column):
                found.add("topology", link, f"is at {cell}; X is only for a device and itself", _REMEDY)
            elif link != back and columns.index(row) < columns.index(column) and _LINK.fullmatch(back):
                found.add("topology", link, f"is at {cell}, but {back} at {column}–{row}", _REMEDY)
            elif link.startswith("NV") and not (_GPU.fullmatch(row) and _GPU.fullmatch(column)):
                found.add("topology", link, f"is at {cell}; NVLink only connects GPUs", _REMEDY)
