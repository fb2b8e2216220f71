"""The faults of benchmarks/forks.toml: each is a fault, and a release that has changed is not passed over."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from benchmarks.forks import HERE, Fault, planted

FAULTS = [Fault(**each) for each in tomllib.loads(HERE.with_suffix(".toml").read_text(encoding="utf-8"))["fault"]]
FAULT = Fault(id="f", stack="megatron", file="one.py", old="a + b", new="a - b", ask="PAR-01e", first="named")


def test_every_fault_is_one_and_says_why_it_is_not_named() -> None:
    assert len({each.id for each in FAULTS}) == len(FAULTS)
    assert not [each.id for each in FAULTS if each.old == each.new or (each.now == "named") != (each.why == "")]


def test_a_fault_is_a_commit_of_its_own_and_a_lost_line_is_said(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("a + b\n")
    told = ["-c", "user.name=a", "-c", "user.email=a@a"]
    for words in (["init", "-q"], ["add", "."], [*told, "commit", "-qm", "release"], ["tag", "release"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    first, second = planted(FAULT, tmp_path), planted(FAULT, tmp_path)
    shown = ["git", "-C", str(tmp_path), "show", f"{second}:one.py"]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout == "a - b\n"
    assert first
    (tmp_path / "one.py").write_text("a * b\n")
    subprocess.run(["git", "-C", str(tmp_path), *told, "commit", "-qam", "newer"], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "tag", "-f", "release"], check=True, capture_output=True)
    with pytest.raises(ValueError, match=r"f: one.py no longer has 'a \+ b'"):
        planted(FAULT, tmp_path)
