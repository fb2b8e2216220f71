"""The last steps out of a process that torchrun has started."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def leave_quietly(code: int) -> None:
    """Leave without the interpreter's own end, which finds half of torch gone and may crash in the rest."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def error_file(words: str) -> None:
    """Give torchrun's own last page a sentence to print, in the file that it names."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        said = {"message": {"message": words, "extraInfo": {"timestamp": str(int(time.time()))}}}
        Path(path).write_text(json.dumps(said), encoding="utf-8")
