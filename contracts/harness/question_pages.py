"""The reference of every question, as Markdown: signature, docstring, the values that go in and out, and who asks it.

`docs/questions.md` is written by `python -m contracts.harness.question_pages docs/questions.md`; a test compares them.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from contracts.contract import Law
from contracts.harness.adapter_skeleton import Method, group_of, sides
from contracts.harness.families import read_checks
from contracts.spec import Party

HEAD = """# The questions

Generated from the docstrings of `contracts/spec/`; `make snapshots` writes it anew. A stack under test answers the
questions that it names in `offers`. Values are frozen dataclasses; each one is explained where it is first met.
[protocol.md](protocol.md) says how a question travels to another process, and writes the schema of its JSON.
`rankproof init NAME --group GROUP` writes an adapter with the methods of a group.

## What every stack says of itself

{party}

## Groups

| group | about | questions |
|---|---|---|
{groups}
"""


def page(law: Law) -> str:
    """Every question that a stack can be asked, one section a group."""
    told: set[str] = set()
    groups = [group_of(name, protocol, told) for name, protocol in sides().items()]
    rows = [f"| [{each.name}](#group-{each.name}) | {each.about} | {len(each.methods)} |" for each in groups]
    party = (inspect.getdoc(Party) or "").partition("\n\n")[2]
    lines = [HEAD.format(party=party, groups="\n".join(rows))]
    for group in groups:
        lines += [f"## Group {group.name}", "", f"{group.about}. `{group.module.replace('.', '/')}.py`", ""]
        for method in group.methods:
            lines += [*_question(method, law), ""]
    return "\n".join(lines).rstrip() + "\n"


def _question(method: Method, law: Law) -> Iterator[str]:
    families = sorted({each.family for each in law.contracts.values() if method.name in each.asks})
    yield f"### {method.name}"
    yield ""
    yield f"Asked by {', '.join(families)}." if families else "Asked by no contract yet."
    yield ""
    yield "```python"
    yield f'{method.signature}\n        """{method.doc}"""'.replace("\n    ", "\n")
    yield "```"


if __name__ == "__main__":
    from contracts.contract import LAW

    read_checks()
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m contracts.harness.question_pages FILE")
    Path(sys.argv[1]).write_text(page(LAW), encoding="utf-8")
