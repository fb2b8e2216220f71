"""Every deviation that ships here names a script that shows the fault without the suite."""

from pathlib import Path

import pytest

from contracts.court.deviations import load

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docs/deviations").glob("*.toml"))
SCRIPTS = {f"docs/confirmed/{path.name}": path for path in (ROOT / "docs/confirmed").glob("*.py")}


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_every_deviation_names_its_script(file: Path) -> None:
    """Beside it a public issue may stand."""
    bare = [f"{each.id}[{each.case}]: {each.issue}" for each in load(file) if each.issue.split(", ")[0] not in SCRIPTS]
    assert not bare


def test_every_script_is_named_where_its_fault_is_described() -> None:
    told = "".join(path.read_text(encoding="utf-8") for path in [*FILES, *(ROOT / "docs").glob("*.md")])
    assert not [name for name, path in SCRIPTS.items() if path.name not in told]


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_is_short_and_says_how_it_is_run(name: str) -> None:
    text = SCRIPTS[name].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert text.startswith('"""'), "its first line says what the fault is"
    assert "rankproof" not in text, "it stands without the suite"
    assert "contracts" not in text, "it stands without the suite"
