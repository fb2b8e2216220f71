"""The root conftest loads the plugin and the one profile of hypothesis: the same examples everywhere, no deadline.

The law is judged without the development tools and without torch too: what needs one that is not here is left out.
"""

import functools
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest_plugins = ["contracts.harness.plugin"]

TOOLS = ("hypothesis", "jsonschema", "pytest_timeout", "syrupy", "xdist", "torch")
MISSING = [each for each in TOOLS if find_spec(each) is None]
_NAMED = "|".join(MISSING) or r"\A\Z."
_TOOL = re.compile(rf"^(?:from|import) (?:{_NAMED})\b|^(?:\w+ = )?pytest\.importorskip\(\"(?:{_NAMED})\"", re.MULTILINE)
_OURS = re.compile(r"^from (tests_\w+(?:\.\w+)+) import", re.MULTILINE)
_left_out: set[Path] = set()


@functools.cache
def _needs_what_is_missing(path: Path) -> bool:
    """Whether a file imports a missing tool, or another test file that does."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    ours = (Path(__file__).parent / f"{name.replace('.', '/')}.py" for name in _OURS.findall(text))
    return _TOOL.search(text) is not None or any(map(_needs_what_is_missing, ours))


if "hypothesis" not in MISSING:
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow]  # a busy machine, not a fault
    settings.register_profile("rankproof", deadline=None, database=None, derandomize=True, suppress_health_check=slow)
    settings.load_profile("rankproof")

if "syrupy" in MISSING:

    @pytest.fixture
    def snapshot() -> None:
        pytest.skip("needs syrupy, of the extra dev")


def pytest_configure(config: pytest.Config) -> None:
    if "pytest_timeout" in MISSING:
        config.addinivalue_line("markers", "timeout(seconds): no limit, since pytest-timeout is not installed")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if collection_path.suffix != ".py" or not _needs_what_is_missing(collection_path):
        return None
    _left_out.add(collection_path)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        *others, last = MISSING
        named = f"{', '.join(others)} or {last}" if others else last
        extras = "dev,torch" if last == "torch" else "dev"
        terminalreporter.write_line(f"left out: tests that need {named}; `pip install '.[{extras}]'` brings them")
