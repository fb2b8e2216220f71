"""Who writes where: rank 0 to the console, the others to their logs."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def take(config: pytest.Config, log: Path | None) -> int:
    """Send this process's output to `log`, if there is one. Returns a descriptor of the console that was there before.

    pytest captures file descriptors and remembers which ones it replaced, so capturing stops before they change and
    starts again afterwards. The two calls are part of pytest but not documented; seen in 3.7 to 9.2.
    """
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
    console = os.dup(2)
    if log is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)
    if capture is not None:
        capture.start_global_capturing()
        capture.suspend_global_capture()
    return console


@contextmanager
def untaken(plugins: pytest.PytestPluginManager) -> Iterator[None]:
    """While pytest captures nothing."""
    capture = plugins.getplugin("capturemanager")
    if capture is None or not capture.is_globally_capturing():
        yield
        return
    capture.suspend_global_capture(in_=True)
    yield
    capture.resume_global_capture()


@contextmanager
def unseen(config: pytest.Config, instead: str) -> Iterator[None]:
    """Print one line instead of what pytest prints of reports that an earlier attempt has printed.

    `_tw` is private in pytest: its reporter counts a report and prints it in one step. Seen in 7.0 to 9.2.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:
        yield
        return
    say(config, instead)
    file, reporter._tw._file = reporter._tw._file, io.StringIO()
    try:
        yield
    finally:
        reporter._tw._file, reporter.currentfspath = file, None


def say(config: pytest.Config, line: str) -> None:
    """Print a line of its own among pytest's dots."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(line, red=True)


def say_raw(console: int, text: str) -> None:
    """Print without pytest, when this process ends before pytest could print."""
    with suppress(OSError):  # a terminal that was closed
        os.write(console, text.encode(errors="replace"))


def finish(config: pytest.Config, session: pytest.Session, said: list[pytest.TestReport], reason: str) -> None:
    """Write pytest's last page and its report files from a thread, while the main thread is out of reach.

    This is not the whole end of a session: fixtures are not finalized, because that could hang. Plugins get the exit
    status "interrupted", so that nobody takes what is written for a complete run.
    """
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend(in_=True)
    for report in said:
        config.hook.pytest_runtest_logreport(report=report)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    session.shouldfail = reason
    without = [plugin for name in ("runner", "ranks") if (plugin := config.pluginmanager.getplugin(name)) is not None]
    hook = config.pluginmanager.subset_hook_caller("pytest_sessionfinish", remove_plugins=without)
    hook(session=session, exitstatus=pytest.ExitCode.INTERRUPTED)
    sys.stdout.flush()
