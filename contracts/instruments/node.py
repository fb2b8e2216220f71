"""Captures the node of this process as text, without judging it."""

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from contracts.spec.machine import NodeCapture

TIMEOUT_S = 10.0  # with a wedged driver nvidia-smi hangs for ever; a healthy eight-way node answers within two seconds

_TOOLS: Mapping[str, tuple[str, ...]] = {
    "topology": ("nvidia-smi", "topo", "-m"),
    "devices": ("nvidia-smi", "-L"),
    "memory": ("nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits"),
}
_NUMA_BALANCING = Path("/proc/sys/kernel/numa_balancing")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def read_node(*, timeout_s: float = TIMEOUT_S) -> NodeCapture:
    """Run the tools, each for at most `timeout_s`. A tool that is absent, fails or hangs gives None and a reason.

    A tool that was absent or hung is not run again, since its other queries would end the same way.
    """
    seen: dict[str, str] = {}
    failures: dict[str, str] = {}
    dead: dict[str, str] = {}
    for name, command in _TOOLS.items():
        if command[0] in dead:
            failures[name] = dead[command[0]]
            continue
        try:
            seen[name] = _said(command, timeout_s)
        except FileNotFoundError:
            failures[name] = dead[command[0]] = f"{command[0]} is not installed"
        except subprocess.TimeoutExpired:
            failures[name] = dead[command[0]] = f"{command[0]} did not answer within {timeout_s:g} s"
        except (OSError, ChildProcessError) as error:
            failures[name] = str(error)
    try:
        seen["numa_balancing"] = _NUMA_BALANCING.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        failures["numa_balancing"] = f"{_NUMA_BALANCING}: {error.strerror}"
    return NodeCapture(
        host=socket.gethostname(),
        topology=seen.get("topology"),
        devices=seen.get("devices"),
        memory=seen.get("memory"),
        numa_balancing=seen.get("numa_balancing"),
        environment={name: os.environ[name] for name in _VISIBLE if name in os.environ},
        failures=failures,
    )


def _said(command: tuple[str, ...], timeout_s: float) -> str:
    """Standard output of a successful command.

    Raises:
        ChildProcessError: when it failed, with its exit code and first line.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=timeout_s, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ChildProcessError(f"{' '.join(command)} ended with {done.returncode}: {lines[0] if lines else 'silent'}")
    return done.stdout
