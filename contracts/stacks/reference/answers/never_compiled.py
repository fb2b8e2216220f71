"""An interpreter that has read torch's compiler and compiled nothing. It runs each module that it is asked for in a
fork, which begins where a fresh interpreter is after four seconds.

A question is a line of JSON: what the module reads from standard input, then its name and arguments. The reply is a
line, what the module printed or its error.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from contextlib import redirect_stdout

import torch._inductor.compile_fx

import contracts.stacks.reference.model.parts
import contracts.stacks.reference.stack
from contracts.stacks.forked_call import ForkDied, in_a_fork

READ = (torch._inductor.compile_fx, contracts.stacks.reference.stack, contracts.stacks.reference.model.parts)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a compiler says is no reply
    for line in sys.stdin:
        said, *words = json.loads(line)
        try:
            reply = in_a_fork(lambda: run(said, words))  # noqa: B023  # it is called before the next line
        except ForkDied as error:
            reply = json.dumps({"error": str(error)})
        replies.write(reply + "\n")
        replies.flush()


def run(said: str, words: list[str]) -> str:
    sys.argv, sys.stdin = words, io.StringIO(said)
    try:
        with redirect_stdout(io.StringIO()) as printed:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
    return json.dumps({"printed": printed.getvalue()})


if __name__ == "__main__":
    main()
