"""Headless Chromium over a pipe, by the DevTools protocol: no driver and no further package."""

import contextlib
import json
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
LIMIT_S = 120.0  # for one answer, on a machine that does other things
COMPLAINTS = {  # method → what of its parameters is the complaint
    "Runtime.exceptionThrown": "exceptionDetails", "Runtime.consoleAPICalled": "args", "Log.entryAdded": "entry",
}  # fmt: skip


class Browser:
    """One page of one browser."""

    def __init__(self, ours: socket.socket) -> None:
        self._ours, self._buffer, self._number = ours, b"", 0
        self._session: str | None = None
        self.complaints: list[str] = []  # console errors, exceptions, log entries
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._ours.sendall(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def open(self, page: Path | str, fragment: str = "", *, width: int = 1400, dark: bool = False) -> None:
        """Load a page afresh, a file or an address, in a window of this width."""
        self.complaints.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="", features=scheme)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=(page.as_uri() if isinstance(page, Path) else page) + fragment)
        self.until("document.readyState === 'complete' && location.protocol !== 'about:'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + LIMIT_S
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, text=key if len(key) == 1 and kind == "keyDown" else ""
            )

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = self._ours.recv(1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        if method in COMPLAINTS and params.get("type", "error") in ("error", "warning", "assert"):
            self.complaints.append(str(params[COMPLAINTS[method]]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return message


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in a folder."""
    ours, theirs = socket.socketpair()
    ours.settimeout(LIMIT_S)
    words = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
    ]  # fmt: skip
    end = theirs.fileno()
    script = f"exec {shlex.join(words)} 3<&{end} 4>&{end}"  # where it reads and writes
    process = subprocess.Popen(
        ["bash", "-c", script], pass_fds=[end], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    theirs.close()
    try:
        yield Browser(ours)
    finally:
        ours.close()  # the browser ends with it
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
