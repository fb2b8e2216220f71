"""The packages of the interpreter that runs this file, as JSON on standard output.

The interpreter that will start the ranks runs it as a file. That interpreter may not have this suite, so the file uses
the standard library only, and it imports none of the packages. `build` is the commit of an unchanged version-control
checkout, or the digest of the list of installed files with their hashes; null if neither proves the build, or if a file
is no longer the one that was installed.
"""

import base64
import csv
import hashlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

RUNTIME = (
    "torch", "triton", "torchao", "torchtitan", "megatron-core", "transformer-engine", "flash-attn", "flash-attn-4",
    "flash-linear-attention", "fla-core", "mamba-ssm", "causal-conv1d", "dualpipe", "nvidia-cutlass-dsl",
    "quack-kernels", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
)  # fmt: skip
"""Packages that affect the result or the speed of a step."""

GIT_TIMEOUT_S = 10.0


def build_of(name: str) -> str | None:
    """The proof of the build of an installed package."""
    distribution = metadata.distribution(name)
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    commit = origin.get("vcs_info", {}).get("commit_id")
    if commit:
        return f"git:{commit}"
    if origin.get("dir_info", {}).get("editable"):
        return _commit_of(origin["url"].removeprefix("file://"))
    record = distribution.read_text("RECORD")
    if not record:
        return None
    # Byte-code, entry points (`../../bin/…`) and metadata are written by the installer and differ between machines.
    files = sorted(
        line
        for line in record.splitlines()
        if ",sha256=" in line and ".dist-info/" not in line and not line.startswith("..")
    )
    if not all(_as_recorded(distribution, line) for line in files):
        return None  # somebody edited a file where it is installed
    return f"sha256:{hashlib.sha256(chr(10).join(files).encode()).hexdigest()[:16]}" if files else None


def _as_recorded(distribution: metadata.Distribution, line: str) -> bool:
    """Whether a file is the one that was installed: sources by their hash, binaries (gigabytes) by their size."""
    name, digest, size = next(csv.reader([line]))
    try:
        path = Path(str(distribution.locate_file(name)))
        if not name.endswith(".py"):
            return not size or path.stat().st_size == int(size)
        found = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        return digest == f"sha256={found}"
    except (OSError, ValueError):
        return False


def _commit_of(folder: str) -> str | None:
    """The commit of an unchanged checkout."""
    said = []
    for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            said.append(
                subprocess.run(
                    ["git", "-C", folder, *words], capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S
                ).stdout.strip()
            )
        except (OSError, subprocess.SubprocessError):
            return None
    revision, changes = said
    return None if changes else f"git:{revision}"


def installed() -> list[dict[str, str | None]]:
    """Name, version and build of every runtime package that is installed."""
    found: list[dict[str, str | None]] = []
    for name in RUNTIME:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        found.append({"name": name, "version": version, "build": build_of(name)})
    return found


if __name__ == "__main__":
    json.dump({"python": sys.version.split()[0], "components": installed()}, sys.stdout)
