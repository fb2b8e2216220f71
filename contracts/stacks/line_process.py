"""A subprocess that answers line by line. Every wait is bounded in seconds and bytes."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts.spec import launchers, shown

STDERR_KEPT_BYTES = 16 * 2**10
STDERR_QUOTED = 600  # characters of it in an error
POLL_S = 0.05  # delay in noticing that a command ended, if a child of it holds its pipes open


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process has which no launcher and no gate has started."""
    return {name: value for name, value in launchers.without(environment).items() if not name.startswith("RANKPROOF_")}


class Failed(Exception):
    """A running command did not answer one line."""


class Running:
    """A started command with three nonblocking pipes and its own process group.

    Only `exchange` waits, and it is bounded in seconds and bytes. `end` kills everything in the group.
    """

    def __init__(self, command: Sequence[str], cwd: Path | None, env: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, bufsize=0, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = streams
        for stream in streams:
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        self._said = bytearray()
        self._complained = bytearray()
        self._ended = False

    def exchange(self, line: bytes, *, seconds: float, limit: int, last: bool) -> bytes:
        """Write one line and read one line.

        Args:
            last: close the input, read to the end and wait for exit code 0; the line may lack its newline.

        Raises:
            Failed: it took too long, wrote too much or anything else, or ended with another exit code.
        """
        deadline = time.monotonic() + seconds
        if not last:
            self._listen_for_noise()
        self._transfer(line, deadline, limit, last)
        if last:
            code = self._finish(deadline)
            if code is None:
                raise Failed(f"did not end within {seconds:g} s")
            if code != 0:
                raise Failed(f"ended with {_exit(code)}")
        text, newline, rest = bytes(self._said).partition(b"\n")
        self._said.clear()
        if rest:
            raise Failed(f"printed more than one line ({shown(rest.decode(errors='replace'))} after the first)")
        if not newline and not last:
            code = self._finish(min(deadline, time.monotonic() + 1.0))
            how = "closed its output" if code is None else f"ended with {_exit(code)}"
            raise Failed(f"{how} before its line was complete" if text else f"{how} without an answer")
        if not text:
            raise Failed("printed nothing")
        return text

    def alive(self) -> bool:
        """Whether the command still runs. Does not reap it, so its group can still be killed."""
        if self._ended or self._process.returncode is not None:
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def end(self) -> None:
        """Kill the process group and release the pipes. May be called twice; a forked copy only closes its pipes."""
        if self._ended:
            return
        self._ended = True
        for stream in (self._stdin, self._stdout, self._stderr):
            assert stream is not None
            stream.close()
        if self.owner == os.getpid():
            self._kill_group()
            self._process.wait()
        else:
            self._process.returncode = 0  # the owner reaps it

    def complaint(self) -> str:
        """The end of what the command wrote to standard error, for an error message."""
        return bytes(self._complained).decode(errors="replace").strip()[-STDERR_QUOTED:]

    def _kill_group(self) -> None:
        if self._process.returncode is None:  # not reaped, so its id is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _listen_for_noise(self) -> None:
        """Fail if a kept command wrote anything before it was asked."""
        assert self._stdout is not None
        try:
            early = os.read(self._stdout.fileno(), 4096)
        except BlockingIOError:
            return
        if early:
            raise Failed(f"spoke before it was asked: {shown(early.decode(errors='replace'))}")

    def _transfer(self, line: bytes, deadline: float, limit: int, last: bool) -> None:
        """Move bytes both ways until the answer is complete: at its newline, or at the end of the output."""
        assert self._stdin is not None
        assert self._stdout is not None
        assert self._stderr is not None
        unsent = memoryview(line)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stderr, selectors.EVENT_READ)
            while self._stdout in selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Failed("gave no answer in time")
                ready = {key.fileobj for key, _ in selector.select(min(left, POLL_S))}
                if self._stdin in ready:
                    unsent = self._send(unsent)
                    if not unsent:
                        selector.unregister(self._stdin)
                        if last:
                            self._stdin.close()
                if self._stderr in ready:
                    complaint = os.read(self._stderr.fileno(), 2**16)
                    self._keep(complaint)
                    if not complaint:
                        selector.unregister(self._stderr)
                if self._stdout in ready:
                    chunk = os.read(self._stdout.fileno(), 2**16)
                    self._said += chunk
                    if not chunk or (not last and b"\n" in chunk):
                        selector.unregister(self._stdout)
                    if len(self._said) > limit:
                        raise Failed(f"printed more than {limit} bytes")
                if not ready and not self.alive():
                    self._kill_group()  # its children must not keep the pipes open

    def _send(self, unsent: memoryview) -> memoryview:
        assert self._stdin is not None
        try:
            return unsent[os.write(self._stdin.fileno(), unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:  # a command need not read its whole input
            return unsent[len(unsent) :]

    def _keep(self, complaint: bytes) -> None:
        self._complained += complaint
        del self._complained[:-STDERR_KEPT_BYTES]

    def _hear_the_rest(self) -> None:
        """Read what is left on standard error of a command that has ended."""
        assert self._stderr is not None
        while True:
            try:
                chunk = os.read(self._stderr.fileno(), 2**16)
            except BlockingIOError:
                return
            if not chunk:
                return
            self._keep(chunk)

    def _finish(self, deadline: float) -> int | None:
        """Wait for the end of the command, kill its process group, return its exit code; None if it still runs."""
        pause = 0.001
        while self.alive():
            if time.monotonic() > deadline:
                return None
            time.sleep(pause)
            pause = min(2 * pause, POLL_S)
        self._kill_group()
        self._hear_the_rest()
        return self._process.wait()


def _exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
