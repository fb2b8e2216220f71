"""The modules that an import loads, seen in a fresh interpreter."""

import subprocess

from contracts.spec.interpreter import python

_SEEN = "import sys; sys.stderr.write('\\n'.join(sys.modules))"


def modules_after(statement: str) -> frozenset[str]:
    """The names in `sys.modules` after a statement, in a fresh interpreter.

    Standard output of the statement is dropped; a `SystemExit` only ends the statement.

    Raises:
        ImportError: when the statement fails, with its last line.
    """
    program = f"try:\n    exec({statement!r})\nexcept SystemExit:\n    pass\n{_SEEN}\n"
    done = subprocess.run(python("-c", program), capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ImportError(f"{statement}: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return frozenset(done.stderr.splitlines())
