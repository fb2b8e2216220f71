#!/usr/bin/env python3
"""Puts launch.sh under test: one question on standard input, one answer on standard output (rankproof/1)."""

import json
import os
import subprocess
import sys
from pathlib import Path

LAUNCHER = Path(__file__).with_name("launch.sh")
BLOCKS = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}


def ask(task, **variables):
    """What launch.sh prints for a task; what it complains about is a refusal."""
    env = os.environ | {name: str(value) for name, value in variables.items()}
    done = subprocess.run(["sh", LAUNCHER, task], env=env, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        words = {"field": "launch.sh", "value": repr(variables), "problem": done.stderr.strip(), "remedy": "mend it"}
        raise SystemExit(say(refused=[words]))
    done.check_returncode()
    return done.stdout.splitlines()


def hello():
    offers = ["blocks", "launch"]
    return {"name": "launch.sh", "version": "2026.11", "offers": offers, "layouts": [], "labels": {}}


def blocks(pattern, depth):
    return [BLOCKS[letter] for letter in ask("layers", PATTERN=pattern, DEPTH=depth)[0]]


def launch(recipe, lane):
    degrees, gpus = lane["degrees"] or recipe["degrees"], lane["gpus"]
    variables = {name.upper(): degrees[name] for name in ("tp", "pp", "ep")} | {"GPUS": gpus}
    sizes = {"HIDDEN": recipe["hidden"], "HEADS": recipe["heads"], "DEPTH": recipe["depth"]}
    words = ask("words", PATTERN=recipe["pattern"], **sizes, **variables)
    script = words.index("pretrain_hybrid.py")
    letters = ask("layers", PATTERN=recipe["pattern"], **sizes)[0]
    return {
        "torchrun": words[:script], "script": [words[script]], "argv": words[script + 1 :],
        "env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "unset": [], "recorded": {},
        "launcher": "megatron", "launcher_version": "0.19.2", "degrees": degrees, "world": gpus,
        "recurrent": {"base": 1, "numbers": [i for i, letter in enumerate(letters, 1) if letter == "R"]},
        "sparse": {"base": 1, "numbers": []},
    }  # fmt: skip


def say(**body):
    print(json.dumps({"protocol": "rankproof/1", "id": asked["id"], **body}))  # noqa: T201


asked = json.loads(sys.stdin.readline())
say(answer={"hello": hello, "blocks": blocks, "launch": launch}[asked["question"]](**asked["arguments"]))
