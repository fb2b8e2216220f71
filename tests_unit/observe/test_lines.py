"""Lines keep their order, whichever thread writes them; an error of that thread is raised where it is waited for."""

import threading

import pytest

from contracts.observe.lines import Lines


def test_lines_that_are_added_while_a_thread_writes_follow_its_own() -> None:
    lines, found, begun, goes_on = Lines(), [], threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        assert goes_on.wait(10)
        found.append(threading.current_thread().name)
        lines.add(lambda: found.append("asked for by the first"))

    lines.add(first, waits=True)
    lines.filled = 1
    lines.write(aside=True)
    assert begun.wait(10)
    lines.add(lambda: found.append("later"))
    assert found == []
    goes_on.set()
    lines.written()
    assert found == ["rankproof", "asked for by the first"]
    lines.filled = len(lines.waiting)
    lines.write()
    assert found[2:] == ["later"]


def test_an_error_of_the_thread_is_raised_once() -> None:
    lines = Lines()
    lines.add(lambda: {}["absent"], waits=True)
    lines.filled = 1
    lines.write(aside=True)
    with pytest.raises(KeyError, match="absent"):
        lines.written()
    lines.written()


def test_the_thread_lets_the_script_go_on_until_somebody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contracts.observe.lines.PAUSE_S", 60)
    lines, found = Lines(), []
    lines.add(lambda: found.append("line"), waits=True)
    lines.filled = 1
    lines.write(aside=True)
    assert found == []
    lines.written()
    assert found == ["line"]
