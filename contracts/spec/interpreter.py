"""How this interpreter was started, as far as that has a say in a verdict."""

import os
import sys
from collections.abc import Mapping

from contracts.spec.errors import refuse


def python(*words: str) -> tuple[str, ...]:
    """A command of this interpreter: with -P, so that a folder `contracts/` or `torch/` of whoever runs this is not
    taken for the package of that name."""
    return (sys.executable, "-P", *words)


STRIPPED = "assertions are stripped, and without them no check can fail: any stack would be conformant"
_NO_SAY = {
    "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONUNBUFFERED", "PYTHONSAFEPATH",
    "PYTHONWARNINGS", "PYTHONSTARTUP", "PYTHONINSPECT",
}  # fmt: skip
"""Where modules come from is the subject's to report; PYTHONWARNINGS stands among the options -W."""


def refuse_without_assertions() -> None:
    """Refuse to continue where `python -O` or PYTHONOPTIMIZE has stripped every `assert`.

    Raises:
        Refused: there.
    """
    if not __debug__:
        given = os.environ.get("PYTHONOPTIMIZE") or f"-{'O' * sys.flags.optimize}"
        raise refuse("PYTHONOPTIMIZE", given, STRIPPED, "unset it, and start Python without -O")


def settings(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Options and variables that this interpreter was started with, as one writes them: `-W error`, `-X dev`,
    `PYTHONHASHSEED=0`."""
    options = [f"-W {each}" for each in sys.warnoptions]
    options += [f"-X {name}" if value is True else f"-X {name}={value}" for name, value in sys._xoptions.items()]
    heard = () if sys.flags.ignore_environment else sorted(environment)
    named = [name for name in heard if name.startswith("PYTHON") and name not in _NO_SAY and environment[name]]
    return (*options, *(f"{name}={environment[name]}" for name in named))
