"""The contents of a Python environment and its host, read without importing torch.

The inspected interpreter itself runs a few lines, so that its own paths, user directory and duplicates count, and not
those of the suite.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from contracts.spec import Unreachable
from contracts.spec.installation import Extension, InstalledPart, Source, TorchBuild

_LOOK = r"""
import importlib.machinery, importlib.metadata, json, runpy, sys
sys.path[:] = [path for path in sys.path if path]
parts = []
for found in importlib.metadata.distributions():
    meta = found.metadata
    where = str(getattr(found, "_path", ""))
    files = [str(file) for file in found.files or () if str(file).endswith((".so", ".pyd"))]
    parts.append({"name": meta["Name"], "version": meta["Version"], "place": where, "compiled": files,
                  "url": found.read_text("direct_url.json"), "installer": found.read_text("INSTALLER"),
                  "wheel": found.read_text("WHEEL")})
spec = importlib.machinery.PathFinder.find_spec("torch")
build = None
if spec is not None and spec.submodule_search_locations:
    try:
        known = runpy.run_path(spec.submodule_search_locations[0] + "/version.py")
        build = {"version": str(known["__version__"]), "cuda": known.get("cuda")}
    except Exception as error:
        build = {"error": str(error)}
print(json.dumps({"parts": parts, "torch": build, "python": ".".join(map(str, sys.version_info[:3])),
                  "tag": "cp%d%d" % sys.version_info[:2]}))
"""

_RUNTIME = """
import json, torch
print(json.dumps({"nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None,
                  "cudnn": torch.backends.cudnn.version(), "abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI)}))
"""

TOOLS: Mapping[str, tuple[tuple[str, ...], str]] = {  # name → command, pattern of its version
    "driver": (("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"), r"^(\d+(?:\.\d+)+)$"),
    "cuda-toolkit": (("nvcc", "--version"), r"release (\d+\.\d+)"),
    "nsys": (("nsys", "--version"), r"version (\d+\.\d+\.\d+)"),
    "gcc": (("gcc", "-dumpfullversion"), r"^(\d+(?:\.\d+)+)$"),
}


class Environment:
    """One environment, inspected once."""

    def __init__(self, python: str = sys.executable) -> None:
        """
        Raises:
            Unreachable: when the interpreter cannot be run.
        """
        self.python = python
        self._seen = _run_json(python, _LOOK, timeout=60)

    @property
    def torch(self) -> TorchBuild | None:
        """The build as torch's own version file states it."""
        build = self._seen["torch"]
        if build is None or "error" in build:
            return None
        return TorchBuild(version=build["version"], cuda=build["cuda"], python_tag=self._seen["tag"])

    def parts(self) -> tuple[InstalledPart, ...]:
        """The interpreter, distributions and the host's tools. A tool that fails or prints garbage has no version."""
        distributions = tuple(
            InstalledPart(name=each["name"] or Path(each["place"]).name, version=each["version"],
                          source=_source(each), place=each["place"])
            for each in self._seen["parts"]
        )  # fmt: skip
        interpreter = InstalledPart(name="python", version=self._seen["python"], source="system", place=self.python)
        return (interpreter, *distributions, *tools())

    def runtime(self) -> tuple[InstalledPart, ...]:
        """NCCL and cuDNN as torch reports them, for a build without distributions of them. Imports torch in a separate
        process."""
        seen = _run_json(self.python, _RUNTIME, timeout=300)
        numbers = {"nccl": seen["nccl"], "cudnn": _cudnn(seen["cudnn"])}
        return tuple(InstalledPart(name=name, version=version) for name, version in numbers.items() if version)

    def extensions(self, names: Iterable[str], *, load: bool) -> tuple[Extension, ...]:
        """The compiled packages among these distributions. `load` imports torch and each of their modules."""
        wanted = {_normal(name) for name in names}
        found = []
        for each in self._seen["parts"]:
            tags = re.findall(r"^Tag: (\S+)", each["wheel"] or "", re.MULTILINE)
            if not each["name"] or _normal(each["name"]) not in wanted or not (each["compiled"] or tags):
                continue
            local = each["version"].partition("+")[2]
            recorded = re.search(r"torch(\d+\.\d+(?:\.\d+)?)", local)  # the format of flash-attn's wheels
            abi = re.search(r"cxx11abi(TRUE|FALSE)", local, re.IGNORECASE)
            loads, error = _loads(self.python, each["compiled"]) if load and each["compiled"] else (None, "")
            found.append(
                Extension(name=each["name"], version=each["version"], tag=tags[0] if tags else "unknown",
                          built_for=recorded[1] if recorded else None,
                          cxx11_abi=abi[1].upper() == "TRUE" if abi else None, loads=loads, error=error)
            )  # fmt: skip
        return tuple(found)


def tools(commands: Mapping[str, tuple[tuple[str, ...], str]] = TOOLS) -> tuple[InstalledPart, ...]:
    """The host's tools. An absent tool is not listed."""
    found = []
    for name, (words, pattern) in commands.items():
        place = shutil.which(words[0])
        if place is None:
            continue
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False, errors="replace")
            versions = set(re.findall(pattern, done.stdout, re.MULTILINE)) if done.returncode == 0 else set()
        except (OSError, subprocess.TimeoutExpired):
            versions = set()
        version = versions.pop() if len(versions) == 1 else None  # two versions cannot be: unknown
        found.append(InstalledPart(name=name, version=version, source="system", place=place))
    return tuple(found)


def _source(part: Mapping[str, Any]) -> Source | None:
    """Its source according to pip: PEP 610's direct_url.json; without that file, an index."""
    if part["url"]:
        told = json.loads(part["url"])
        kinds: Mapping[str, Source] = {"vcs_info": "git", "archive_info": "wheel", "dir_info": "directory"}
        return next((kinds[key] for key in kinds if key in told), None)
    if "/dist-packages/" in part["place"] and part["place"].startswith("/usr/lib/"):
        return "system"
    return "index" if (part["installer"] or "").strip() in ("pip", "uv") else None


def _loads(python: str, files: list[str]) -> tuple[bool, str]:
    # a name that begins with lib is a linked library, not a module
    inside = [Path(file) for file in files if not file.startswith(("..", "lib")) and "/lib" not in file]
    modules = [".".join((*file.parent.parts, file.name.split(".")[0])) for file in inside]
    program = "import importlib, torch\n" + "\n".join(f"importlib.import_module({name!r})" for name in modules)
    try:
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=300, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        return False, "did not load within 300 s"
    lines = done.stderr.strip().splitlines()
    return done.returncode == 0, lines[-1] if done.returncode and lines else ""


def _cudnn(number: int | None) -> str | None:
    """cuDNN writes 9.20.0 as 92000 (since version 9: major · 10000 + minor · 100 + patch)."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number else None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _run_json(python: str, program: str, *, timeout: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=timeout, check=False, cwd="/"
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise Unreachable(f"{python} cannot be looked at: {lines[-1]}")
        return cast(dict[str, Any], json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise Unreachable(f"{python} cannot be looked at: {error}") from error
