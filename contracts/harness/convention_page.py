"""The page of conventions: their choices, where each is found, which contracts follow them, and who declares what.

`docs/conventions.md` is written by `python -m contracts.harness.convention_page docs/conventions.md`; a test compares
them.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from contracts.contract import LAW, Law
from contracts.harness.families import read_checks
from contracts.spec import CONVENTIONS, conventions_of
from contracts.stacks.megatron import Megatron
from contracts.stacks.torchtitan.stack import Torchtitan
from contracts.stacks.transformers.stack import Transformers

SHIPPED: Mapping[str, object] = {"Megatron-Core": Megatron, "torchtitan": Torchtitan, "transformers": Transformers}

HEAD = """# Conventions

Generated from `contracts/spec/conventions.py`; `make snapshots` writes it anew. If correct stacks differ, a stack
declares its choice, as `conventions = {"rope-angles": "float32"}`, and is judged by it: if it
declares one choice and computes another, it is violated. A stack that declares nothing has the first choice of each,
also where it is not asked. A convention is no way out: a new choice needs a stack that has it on purpose, and a source.
"""


def page(law: Law) -> str:
    """Every convention, and the table of the shipped stacks."""
    of = {name: conventions_of(stack) for name, stack in SHIPPED.items()}
    lines = [HEAD, f"| convention | reference | {' | '.join(of)} |", f"|---|---|{'---|' * len(of)}"]
    for name, convention in CONVENTIONS.items():
        chosen = " | ".join(declared[name] for declared in of.values())
        lines.append(f"| [{name}](#{name}) | {convention.default} | {chosen} |")
    for name in CONVENTIONS:
        lines += ["", *_section(law, name)]
    return "\n".join(lines) + "\n"


def _section(law: Law, name: str) -> Iterator[str]:
    convention = CONVENTIONS[name]
    followed = ", ".join(id for id, each in law.contracts.items() if name in each.conventions)
    yield f"## {name}"
    yield ""
    yield f"{convention.about[0].upper()}{convention.about[1:]}. Judged by {followed}."
    yield ""
    yield "| choice | means | found in |"
    yield "|---|---|---|"
    for each in convention.choices:
        scripts = "".join(f", [{name}](confirmed/{name}.py)" for name in each.shown)
        yield f"| {each.name} | {each.means} | {each.source}{scripts} |"


if __name__ == "__main__":
    read_checks()
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m contracts.harness.convention_page FILE")
    Path(sys.argv[1]).write_text(page(LAW), encoding="utf-8")
