"""What came out as one HTML page without a network: the head's model as a tree, the first difference marked."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.court.html_report import frame, template
from contracts.harness.ab.answer import Answer, compared_lines
from contracts.observe.diff import Difference
from contracts.observe.source import ROOT, module_of

COLOURS = {"equal": "conformant", "different": "violated"}


@dataclass(kw_only=True)
class Node:
    """A module in the tree; `open` if it, or a part of it, differs."""

    label: str
    of: str = ""
    words: str = ""
    mark: str = ""
    open: bool = False
    parts: list[Node] = field(default_factory=list)


def page(answer: Answer) -> str:
    """The page."""
    found = answer.found
    of = {"comparison": "Compared", "rest": "Compared from the base's weights"}
    told = [(heading, list(compared_lines(each))) for name, heading in of.items() if (each := getattr(found, name))]
    differences = found.comparison.differences if found.comparison else ()
    text: str = template("ab.html.j2").render(
        frame(answer.headline),
        colour=COLOURS.get(answer.word, "incomplete"), sides=(answer.sides.base, answer.sides.head),
        command=shlex.join(answer.sides.head.words), found=found, compared=told, reports=answer.reports,
        roots=tree(found.modules, differences),
    )  # fmt: skip
    return text


def tree(modules: Mapping[str, str], differences: tuple[Difference, ...]) -> list[Node]:
    """The modules as they hold each other, with what differs in them."""
    nodes: dict[str, Node] = {ROOT: Node(label=ROOT, open=True)}
    first = module_of(differences[0], modules) if differences else ""
    words = {module_of(each, modules): f"{each.phase}: {each.words}" for each in reversed(differences)}
    for name in modules:
        _node(nodes, name)
    for name, node in nodes.items():
        node.of = modules.get(name, "").rpartition(":")[2].rpartition(".")[2]
        node.words = words.get(name, "")
        node.mark = "violated first" if name == first else "violated" if node.words else ""
        if node.words:
            _open(nodes, name)
    return [nodes[ROOT]] if modules else []


def _node(nodes: dict[str, Node], name: str) -> Node:
    if name not in nodes:
        above, _, label = name.rpartition(".")
        nodes[name] = Node(label=label)
        _node(nodes, above or ROOT).parts.append(nodes[name])
    return nodes[name]


def _open(nodes: Mapping[str, Node], name: str) -> None:
    while name in nodes:
        nodes[name].open = True
        name = name.rpartition(".")[0]
