"""The last steps out of a process that torchrun has started."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def leave_quietly(code: int) -> None:
    """Exit without the interpreter's own shutdown, which may crash when half of torch is gone already."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def error_file(words: str) -> None:
    """Write a sentence for torchrun's final summary into the file that torchrun names."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        said = {"message": {"message": words, "extraInfo": {"timestamp": str(int(time.time()))}}}
        Path(path).write_text(json.dumps(said), encoding="utf-8")
