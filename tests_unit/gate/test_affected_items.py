"""`check --changed`: what a change of the stack can touch is judged first, and everything is judged."""

import subprocess
from pathlib import Path

import pytest

from contracts.court import record
from tests_unit._parties.running import Done, rankproof

FILES = {
    "fork/__init__.py": "",
    "fork/stack.py": """
from contracts.stacks.reference.stack import Reference

class Fork:
    name, version, layouts, labels = "fork", "1", frozenset({"own-axis", "borrowed"}), {}
    offers = frozenset({"blocks", "topology"})

    def blocks(self, pattern, depth):
        from fork.patterns import blocks
        return blocks(pattern, depth)

    def topology(self, degrees, world, layout):
        from . import mesh
        return mesh.topology(degrees, world, layout)
""",
    "fork/patterns.py": """
from fork import mesh_sizes
from contracts.stacks.reference.stack import Reference
def blocks(pattern, depth): return Reference().blocks(pattern, depth)
""",
    "fork/mesh.py": "from fork import mesh_sizes\nfrom fork.sizes import topology\n",
    "fork/mesh_sizes.py": "",
    "fork/sizes.py": """
from contracts.stacks.reference.stack import Reference
def topology(degrees, world, layout): return Reference().topology(degrees, world, layout)
""",
    "README": "",
}
PROFILE = "PAT-01,TOPO-02"


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "fork")
    git(tmp_path, "checkout", "-qb", "change")
    return tmp_path


def commit(fork: Path, name: str, line: str = "changed") -> None:
    with (fork / name).open("a") as file:
        file.write(f"# {line}\n")
    git(fork, "commit", "-qam", name)


def check(fork: Path, *words: str, code: int | None = None) -> Done:
    asked = ("check", "--stack", "fork.stack:Fork", "--with", "none", "--profile", PROFILE, "--report", "out", *words)
    return rankproof(*asked, cwd=fork, code=code)


@pytest.mark.parametrize(
    ("file", "families"),
    [
        ("fork/sizes.py", ["TOPO", "PAT"]),
        ("fork/patterns.py", ["PAT", "TOPO"]),
        ("fork/stack.py", ["PAT", "TOPO"]),
        ("fork/mesh_sizes.py", ["TOPO", "PAT"]),  # as near to both, and mesh sizes are TOPO-02's file
        ("README", ["PAT", "TOPO"]),
    ],
)
def test_check_changed_judges_the_affected_contracts_first_and_then_the_others(
    file: str, families: list[str], fork: Path
) -> None:
    commit(fork, file)
    done = check(fork, "--changed", "main..", code=0)
    run, _ = record.load(fork / "out")
    assert list(dict.fromkeys(result.id.partition("-")[0] for result in run.results)) == families
    number = {"fork/sizes.py": "TOPO", "fork/patterns.py": "PAT", "fork/stack.py": "PAT TOPO", "README": ""}.get(
        file, "PAT TOPO"
    )
    touched = sum(item.id.partition("-")[0] in number.split() for item in run.plan.items)
    said = f"main..: 1 file changed, {touched} of {len(run.plan.items)} items judged first"
    assert run.header.changed == said
    assert f"Order: {said}" in done.stdout
    check(fork, code=0)
    plain, _ = record.load(fork / "out")
    assert {*plain.plan.items} == {*run.plan.items}, "it orders and never filters"


def test_an_earlier_record_shows_which_files_a_stack_in_another_process_imports(fork: Path) -> None:
    check(fork, "--report", "before", code=0)
    commit(fork, "fork/stack.py")
    check(fork, "--isolated", "--changed", "main..", "--baseline", "before", code=0)
    run, _ = record.load(fork / "out")
    assert run.header.changed.endswith(f"{len(run.plan.items)} of {len(run.plan.items)} items judged first")


@pytest.mark.parametrize("given", ["no-such-branch..", "--output=stolen"])
def test_a_range_that_git_does_not_know_is_refused_before_anything_is_written(given: str, fork: Path) -> None:
    assert f"--changed = '{given}': git says: " in check(fork, f"--changed={given}", code=2).stderr
    assert not (fork / "out").exists()
    assert not (fork / "stolen").exists()


def test_among_equally_affected_contracts_those_named_like_the_changed_lines_come_first(fork: Path) -> None:
    commit(fork, "fork/stack.py", "a mesh has sizes")
    check(fork, "--changed", "main..", code=0)
    run, _ = record.load(fork / "out")
    assert run.results[0].id.startswith("TOPO"), "of mesh_sizes.py"
