"""Imports in a process of their own: whether a package can be imported, and which modules a statement loads.

`find_spec` finds packages whose import fails. An ImportError does not distinguish an absent package from an absent
dependency. And a failed import in this process would leave modules half loaded. So the probe finds and imports the
package in two steps: it is absent, broken (with the error) or importable.
"""

import functools
import json
import os
import subprocess
import sys

from contracts.spec import Package
from contracts.spec.interpreter import python

TIMEOUT_S = 120.0  # Transformer Engine took 20 s from a cold disk

_PROGRAM = """
import importlib, importlib.util, json, sys
from importlib import metadata
distribution, *modules = sys.argv[1:]
def said(**words): print(json.dumps(words)); sys.exit()
try: version = metadata.version(distribution)
except metadata.PackageNotFoundError: version = None
if importlib.util.find_spec(modules[0].split(".")[0]) is None:
    if version is None: said(state="absent")
    said(state="broken", version=version, words="its metadata is installed, and no module")
try:
    for module in modules: importlib.import_module(module)
except BaseException as error:
    said(state="broken", version=version, words=f"{type(error).__name__}: {error}"[:300])
said(state="importable", version=version)
"""


@functools.cache
def probe(distribution: str, modules: tuple[str, ...], *, python: str = sys.executable, path: str = "") -> Package:
    """The result of importing `modules` of an installed distribution.

    `path` is searched before the interpreter's own path. An import that kills the process or hangs is also broken.
    """
    env = os.environ | ({"PYTHONPATH": path} if path else {})
    command = [python, "-P", "-W", "ignore", "-c", _PROGRAM, distribution, *modules]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Package(state="broken", words=f"its import did not end within {TIMEOUT_S:g} s")
    try:
        return Package(**json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        words = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Package(state="broken", words=f"its import ended the process: {words}")


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
