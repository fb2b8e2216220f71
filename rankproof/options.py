"""The options and ini keys of the pytest plugin, and what a session said by them.

pytest loads this in every session of an environment that has rankproof, so it imports nothing but pytest.
"""

import os
from pathlib import Path
from typing import Any

import pytest

NAME = "rankproof"
JUDGE = "contracts.harness.plugin"
CASE = "rankproof_case"
MARK = "rankproof_contracts"
ARGUMENT = "contract"

OPTIONS: dict[str, str] = {
    "stack": "the stack under test: a name or package.module:Name [reference]",
    "at": "the checkout whose code answers: it comes first on the path",
    "with": "who answers what the stack does not (a launcher's parser); `none` for nobody; may be repeated",
    "profile": "profiles, ids and prefixes of ids, as for `rankproof check`",
    "deviations": "TOML file of declared deviations",
    "baseline": "an earlier record: what was judged there must be judged now",
    "report": "folder: write the run as JSON lines to run.jsonl in it",
    "changed": "what `git diff` takes, such as main..: items that such a change can touch are judged first",
    "shard": "I/N: judge every Nth item of the plan, from the Ith on; `rankproof merge` makes one record of all shares",
    "law": "a frozen set of contracts, such as 2026.11: what was added later is judged and not counted",
    "proof": "kills.json of `rankproof selftest`, or its folder: contracts that failed there are not judged",
    "deadline": "seconds that one case may take",
    "device": "where the stack computes: cpu, cuda or auto, as for `rankproof check`",
}
"""Each is the option `--rankproof-NAME` and the ini key `rankproof_NAME`; `stack` and `device` also the variables
RANKPROOF_STACK and RANKPROOF_DEVICE."""
_FILES = ("deviations", "baseline", "report", "proof")


def setting(config: pytest.Config, name: str) -> Any:
    """The value of an option: from the command line, or the ini file (a relative file there is relative to it), or
    None.
    """
    given = config.getoption(f"rankproof_{name}")
    if name == "stack" and not given:
        given = os.environ.get("RANKPROOF_STACK")
    if given:
        return Path(given) if name in _FILES else given
    written = config.getini(f"rankproof_{name}")
    if not written:
        return None
    return (config.inipath or config.rootpath / "_").parent / written if name in _FILES else written


def gating(config: pytest.Config) -> bool:
    """Whether this session has a record or a verdict; it must say so itself, an ini file does not."""
    return bool(config.getoption("rankproof_gate") or config.getoption("rankproof_report"))
