"""The environments of this repository: which interpreter judges a stack.

`python -m contracts.harness.environments STACK` prints the command that judges it and makes its environment if need be.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.spec import Unreachable


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A stack with an interpreter of its own. `variable` names its versions for make, of which the first is called by
    the stack's name only. One that is `optional` may be missing: then this interpreter judges what it can."""

    target: str
    variable: str
    default: str
    optional: bool = False


ENVIRONMENTS: Mapping[str, Environment] = {
    "torchtitan": Environment(target="titan", variable="TITAN", default="0.3.0"),
    "transformers": Environment(target="transformers", variable="TRANSFORMERS", default="5.23.0"),
    "megatron": Environment(target="megatron-if-possible", variable="MEGATRON", default="0.19.2", optional=True),
}


def judge_of(stack: str) -> str:
    """The `rankproof` that judges a stack.

    Raises:
        Unreachable: if its environment cannot be made.
    """
    name, _, version = stack.partition("==")
    name = name.removesuffix("-distributed-optimizer")
    here = shutil.which("rankproof") or str(Path(sys.executable).with_name("rankproof"))
    if name not in ENVIRONMENTS:
        return here
    found = ENVIRONMENTS[name]
    version = version or next(iter(os.environ.get(found.variable, found.default).split()), "")
    own = Path(f".venv-{name}-{version}/bin/rankproof").absolute()
    if not (found.optional and own.exists()):
        words = ["make", "--no-print-directory", found.target, f"{found.variable}={version}"]
        made = subprocess.run(words, stdout=sys.stderr.fileno(), check=False)
        if made.returncode and not found.optional:
            raise Unreachable(f"{stack}: `{' '.join(words)}` could not make its environment")
    return str(own) if own.exists() else here


if __name__ == "__main__":
    sys.stdout.write(f"{judge_of(sys.argv[1])}\n")
