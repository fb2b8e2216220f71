"""The log of a run: what the stack, torch and pytest print goes to a file in the report folder, not to the terminal.

The supervising process reads it from a pipe, so the output of a stack that dies is kept. Of a long text only the
beginning and the end are kept, so a stack that prints without end fills neither the disk nor the terminal.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from contracts.court.plain_text import cut, terminal
from contracts.court.record import LOG, mark
from contracts.spec.redaction import LineRedactor, secrets_here

FILE = LOG
HEAD, TAIL = 1 << 20, 1 << 20  # bytes that are kept of the beginning and of the end
LAST_LINES = 20
DRAIN_S = 1.0  # what a process that outlives the run may still print


class Output:
    """Keeps what is written while `taken`, in another process, for `folder`. Enter it where that process is waited for.

    Without a folder, or where it does not exist in the end, all of it is shown instead of kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._reading, self._writing = os.pipe()
        self._head, self._tail = bytearray(), bytearray()
        self._cut = self._saved = 0
        self._redactor = LineRedactor(secrets_here(os.environ, sys.argv))
        self._listens = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Both standard streams are the log's, whoever writes to them, in Python or below it."""
        if self._listens:  # a copy that held this end would wait for a reader that is gone
            os.close(self._reading)
            self._listens = False
        sys.stdout.flush()
        sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        os.dup2(self._writing, 1)
        os.dup2(self._writing, 2)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            sys.stderr.flush()
            for number, each in enumerate(kept, start=1):
                os.dup2(each, number)
                os.close(each)

    def __enter__(self) -> Output:
        os.close(self._writing)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        os.close(self._reading)

    def end(self, *, ended: bool, red: bool) -> None:
        """Write the log, and say where it is: in one line where the verdict is not conformant, with the last lines
        where there is none or the run is broken."""
        text = self._text()
        if not text.strip():
            return
        kept = self._folder is not None and self._folder.is_dir()
        if self._folder is not None and kept:
            with contextlib.suppress(OSError):  # a full disk has been told already, and has no say in the exit code
                mark(self._folder)
                (self._folder / FILE).write_text(text, encoding="utf-8")
        lines = text.splitlines()
        where = f"rankproof: output of the stack and of torch: {len(lines)} lines"
        if kept:
            where += f" in {self._folder}/{FILE}"
        if self._cut:
            where += f", {self._cut} bytes cut"
        if ended or not kept:
            shown = lines[-LAST_LINES:]
            where += ":" if len(shown) == len(lines) else f"; the last {len(shown)}:"
            sys.stderr.write(terminal("\n".join([where, *(cut(line) for line in shown)])) + "\n")
        elif red:
            sys.stderr.write(where + "\n")
        sys.stderr.flush()

    def _text(self) -> str:
        """All that is kept, without secrets."""
        cut = f"\n… {self._cut} bytes were cut here …\n".encode() if self._cut else b""
        redactor = LineRedactor(secrets_here(os.environ, sys.argv))
        text = bytes(self._head + cut + self._tail).decode("utf-8", "replace")
        return "".join(redactor.line(line) for line in text.splitlines(keepends=True)) + redactor.rest()

    def _read(self) -> None:
        until = None
        while True:
            ready, _, _ = select.select([self._reading], [], [], 0.05)
            if self._over.is_set() and until is None:
                until = time.monotonic() + DRAIN_S
            data = os.read(self._reading, 1 << 16) if ready else b""
            self._keep(data)
            self._save()
            # The end of it; or the judging is over, and what it left behind says nothing more, or without end.
            if (ready and not data) or (until is not None and (not ready or time.monotonic() > until)):
                return

    def _save(self) -> None:
        """The beginning is on disk as it comes, line by line and without secrets: this process may be killed too."""
        end = self._head.rfind(b"\n") + 1
        if self._folder is not None and self._saved < end and self._folder.is_dir():
            lines = bytes(self._head[self._saved : end]).decode("utf-8", "replace").splitlines(keepends=True)
            self._saved = end
            with contextlib.suppress(OSError):
                mark(self._folder)
                with (self._folder / FILE).open("a", encoding="utf-8") as file:
                    file.write("".join(map(self._redactor.line, lines)))

    def _keep(self, data: bytes) -> None:
        room = HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        over = len(self._tail) - TAIL
        if over > 0:
            del self._tail[:over]
            self._cut += over
