"""Whether a package can be imported, asked in a process of its own: absent, broken with its words, or importable.

`find_spec` says "there" of a package whose import fails, and an ImportError of something that it needs looks like its
own absence; an import in this process would leave half of it loaded. Only finding it and importing it, apart, tells.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

from contracts.spec.kernel_selection import Package

TIMEOUT_S = 120.0  # Transformer Engine was seen to take 20 s from a cold disk

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
    """What becomes of importing `modules` of an installed distribution.

    `path` is searched before what the interpreter has. An import that ends the process, or does not come back, is
    broken too.
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
