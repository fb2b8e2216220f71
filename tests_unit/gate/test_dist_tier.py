"""The tier of many ranks from outside: what it needs, what its record says, and the pages that say how to start it."""

import importlib.util
import json
import re
import shlex
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.contract import contract
from contracts.court import profiles
from contracts.harness.gate import Gate
from contracts.harness.plugin import _marks, result_of
from contracts.harness.torchrun import environment
from contracts.spec import NotOffered, codec
from contracts.spec.records import Result, Violation
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.bugs import LAW
from tests_unit._parties.running import RANKPROOF, Done, invoked, rankproof
from tests_unit.ranks.running import PLAIN, needs_torch, torchrun

DOCS = Path(__file__).parents[2] / "docs"
INCOMPLETE, USAGE, BROKEN = 3, 2, 4

FAULTY = """
import os
from dataclasses import replace
from contracts.instruments.ranks import here
from contracts.stacks.reference.stack import Reference

class GoesWrong(Reference):
    def live_mesh(self, degrees, world, layout, contribution):
        if degrees.cp == 2 and here().rank == 2:
            raise RuntimeError("no route to rank 3")
        mesh = super().live_mesh(degrees, world, layout, contribution)
        if degrees.pp == 2 and here().rank == 1:
            os._exit(0)
        if degrees.etp == 1 and here().rank == 3:
            mesh = replace(mesh, groups={**mesh.groups, "tp": (1, 3)})
        return mesh
"""


def _example(page: str, name: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert found is not None, f"{page} has no example {name}"
    return found[1]


def _rankproof(*words: str, cwd: Path, code: int | None = None) -> Done:
    return rankproof(*words, cwd=cwd, code=code, limit_s=280)


def test_without_ranks_an_item_of_several_is_not_run_and_shows_the_command(tmp_path: Path) -> None:
    words = ["check", "--profile", "TOPO-05d[own-axis-2x4]", "--report", str(tmp_path / "out"), "--form", "json"]
    (result,) = json.loads(_rankproof(*words, cwd=tmp_path, code=INCOMPLETE).stdout)["results"]
    assert result["outcome"] == "not run"
    assert "rankproof check --ranks 8 --profile 'TOPO-05d[own-axis-2x4]'" in result["words"]


def test_a_slow_contract_of_several_ranks_belongs_to_the_dist_tier() -> None:
    plan = profiles.plan(LAW, "COMP-06[tp2]")
    gate = Gate(subject=Reference(), origin="reference", assistants=(), profile="COMP-06[tp2]", plan=plan)
    assert {mark.name for item in plan.items for mark in _marks(gate, item)} == {"dist", "slow"}


def test_ranks_are_refused_for_a_profile_that_one_process_judges(tmp_path: Path) -> None:
    invoked("selftest", "--profile", "dist", "--only", "PAT", code=USAGE)
    for words, reason in (
        (("TOPO-02",), "TOPO-02, TOPO-02a, TOPO-02b': is judged by one process"),
        (("TOPO-05d", "--selftest"), "rankproof selftest --profile dist"),
    ):
        refused = _rankproof("check", "--ranks", "4", "--report", "out", "--profile", *words, cwd=tmp_path, code=USAGE)
        assert reason in refused.stderr


@pytest.mark.parametrize(("words", "reason"), [
    (("--ranks", "4", "--dist-backend", "nccl"), "takes one rank a device, and here are 4 ranks, 0 devices; give"),
    (("--dist-backend", "staged"), "carries tensors between ranks; give --ranks too"),
])  # fmt: skip
def test_a_backend_that_cannot_run_here_is_refused_at_once(words: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    done = rankproof("check", *words, "--report", "out", cwd=tmp_path, limit_s=60, CUDA_VISIBLE_DEVICES="", code=USAGE)
    assert reason in done.stderr
    assert not (tmp_path / "out/run.jsonl.part").exists()


def test_ranks_judge_only_the_dist_cases_of_a_mixed_profile() -> None:
    plan = profiles.of_several_ranks(LAW, profiles.plan(LAW, "PREF-03"))
    assert set(plan.promises) == {"PREF-03", "PREF-03b", "PREF-03c"} == {item.id for item in plan.items}
    assert {"PREF-03a", "TOPO-01"} <= set(plan.outside)


def test_a_case_says_how_many_ranks_judge_it() -> None:
    assert LAW.contracts["TOPO-05d"].ranks("own-axis-dp3") == 3
    assert LAW.contracts["PREF-03"].ranks("16-mib-on-8") == 8
    assert LAW.contracts["PREF-03a"].ranks("one-rank") == 1, "of one process"
    with pytest.raises(AssertionError, match="its parameter `world` must say by how many"):

        @contract("DEMO-01", asks="devices", cases={"one": (2,)}, source="here", tier="dist")
        def says_nothing_of_ranks(stack: object, size: int) -> None:
            """A promise of several ranks."""


def _report(result: Result | None, verdict: dict[str, Any] | None, when: str = "call", failed: bool = True) -> Any:
    properties: list[tuple[str, object]] = []
    if result is not None:
        properties.append(("rankproof.result", codec.dumps(result)))
    if verdict is not None:
        properties.append(("ranks.verdict", json.dumps({"primary": 2, "words": "rank 2 died"} | verdict)))
    return SimpleNamespace(user_properties=properties, when=when, failed=failed)


HOLDS = Result(id="TOPO-05d", case="own-axis-dp3", outcome="holds")
VIOLATED = Result(id="TOPO-05d", case="own-axis-dp3", outcome="violated", words="rank 2 holds [0]")
ITEM = HOLDS.item


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(_report(HOLDS, None, failed=False), ("holds", "", None), id="all-agree"),
        pytest.param(_report(VIOLATED, {}), ("violated", "rank 2 holds [0]", 2), id="one-diverged"),
        pytest.param(_report(None, {}), ("broken", "rank 2 died", 2), id="one-died"),
        # The rank that speaks had kept the promise, and the ranks did not agree: that is no promise kept.
        pytest.param(_report(HOLDS, {"words": "ranks disagree"}), ("broken", "ranks disagree", 2), id="no-agreement"),
        pytest.param(_report(None, {"primary": -1, "words": "stopped"}), ("broken", "stopped", None), id="no-rank"),
        pytest.param(_report(HOLDS, {}, when="teardown"), ("broken", "rank 2 died", 2), id="failed-in-teardown"),
        pytest.param(_report(VIOLATED, {}, when="teardown", failed=False), None, id="said-in-the-call-already"),
        pytest.param(_report(None, None, failed=False), None, id="a-test-of-somebody-else"),
    ],
)
def test_a_result_is_the_outcome_that_the_ranks_agreed_on(
    report: Any, expected: tuple[str, str, int | None] | None
) -> None:
    found = result_of(report, ITEM)
    assert (found and (found.outcome, found.words, found.rank)) == expected


@pytest.mark.parametrize(
    ("first", "outcomes", "ranks"),
    [(1, {"0": "passed", "1": "failed", "3": "failed"}, (1, 3)), (2, {"0": "failed (aborted)"}, (2,)), (-1, {}, ())],
    ids=["two-failed", "one-died", "no-rank"],
)
def test_a_result_has_the_ranks_on_which_it_went_wrong(
    first: int, outcomes: dict[str, str], ranks: tuple[int, ...]
) -> None:
    for result in (VIOLATED, HOLDS):
        assert result_of(_report(result, {"primary": first, "outcomes": outcomes}), ITEM).ranks == ranks


def test_a_result_has_what_each_rank_found() -> None:
    def said(*words: str) -> list[tuple[str, str]]:
        violations = tuple(Violation(words=each) for each in words)
        return [("rankproof.result", codec.dumps(replace(VIOLATED, violations=violations)))]

    alike = ("layers.0.wq differs: L2 error 1.0e-03", "layers.1.wq differs: L2 error 2.0e-03")
    verdict = {
        "outcomes": {
            "0": "failed",
            "1": "passed",
            "2": "failed",
            "3": "failed",
            "4": "failed (aborted)",
            "5": "failed",
        },
        "properties": {"0": said(*alike), "2": said(alike[0]), "3": said(*alike), "5": [("of-another", "plugin")]},
    }
    found = result_of(_report(VIOLATED, verdict), ITEM)
    told = [(each.ranks, [part.words for part in each.violations]) for each in found.on_ranks]
    assert told == [((0, 3), [*alike]), ((2,), [alike[0]]), ((1,), [])]
    assert codec.loads(Result, codec.dumps(found)) == found


def test_the_launch_of_several_nodes_is_one_line_with_its_rendezvous() -> None:
    page = (DOCS / "several-nodes.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith("$ rankproof emit"))
    done = invoked(*shlex.split(line)[2:], code=0)
    for word in ("--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=node-0:29500", "--rdzv_id=r1"):
        assert word in done.output


def test_the_slurm_script_is_bash_and_starts_what_the_plain_block_starts(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(_example("several-nodes.md", "slurm"), encoding="utf-8")
    assert subprocess.run(["bash", "-n", script], check=False, timeout=20).returncode == 0

    def launched(text: str) -> list[str]:
        joined = text.replace("\\\n", " ")
        return re.search(r"torchrun (.*?)(?:'|\n|$)", joined)[1].split()  # type: ignore[index]

    assert launched(script.read_text()) == launched(_example("several-nodes.md", "plain"))


class TestUnderTorchrun:
    pytestmark = needs_torch()

    @pytest.mark.parametrize("plain", [True, False])
    def test_a_failure_on_one_rank_that_plain_pytest_hides_is_reported_by_this_plugin(
        self, plain: bool, tmp_path: Path
    ) -> None:
        files = {"test_lie.py": _example("ranks.md", "lie"), **({"conftest.py": PLAIN} if plain else {})}
        run = torchrun(tmp_path, files, ranks=2)
        outcomes = [run.outcome(name) for name in ("test_with_a_bug_on_rank_1", "test_that_is_right")]
        assert outcomes == (["passed", "failed"] if plain else ["failed", "passed"]), run.output[-3000:]
        assert plain or "rank 1 diverged first: ValueError: the bug" in run.words("test_with_a_bug_on_rank_1")

    def test_ranks_that_die_raise_or_hold_wrong_groups_leave_one_record(self, tmp_path: Path) -> None:
        (tmp_path / "faulty.py").write_text(FAULTY, encoding="utf-8")
        cases = ("own-axis-dp3", "own-axis-pp2-tp2-on-4", "own-axis-ep2-tp2-etp1-on-4", "borrowed-cp2-ep2-on-4")
        profile = ",".join(f"TOPO-05d[{case}]" for case in cases)
        words = ("--ranks", "4", "--stack", "faulty:GoesWrong", "--profile", profile, "--report", "out")
        told = json.loads(_rankproof("check", *words, "--form", "json", cwd=tmp_path, code=1).stdout)["results"]
        found = {each["case"]: (each["outcome"], each["rank"], each["words"]) for each in told}
        assert {each["case"]: each["ranks"] for each in told} == dict(zip(cases, ([], [1], [3], [2]), strict=True))
        assert found["own-axis-dp3"] == ("holds", None, "")
        assert found["own-axis-pp2-tp2-on-4"] == ("broken", 1, "rank 1 died without an outcome")
        swapped = "rank 3 holds [1, 3] as its tp group, expected [2, 3]"
        assert found["own-axis-ep2-tp2-etp1-on-4"] == ("violated", 3, swapped)
        outcome, rank, said = found["borrowed-cp2-ep2-on-4"]
        assert (outcome, rank) == ("broken", 2)
        assert "no route to rank 3" in said

    def test_the_backend_that_carried_the_tensors_is_in_report_and_log(self, tmp_path: Path) -> None:
        profile = ("--profile", "TOPO-05d[own-axis-tp2-on-2],PAR-12[tp2]")
        words = ("check", "--ranks", "2", "--dist-backend", "staged", *profile, "--report", "out", "--form", "json")
        done = _rankproof(*words, cwd=tmp_path, code=0)
        said = json.loads(done.stdout)
        assert ({each["outcome"] for each in said["results"]}, said["backend"]) == ({"holds"}, "staged")
        assert "staged through host memory; NCCL is not judged" in done.stderr
        assert "ranks: 2 over staged" in (tmp_path / "out/ranks.log").read_text()

    def test_the_dist_self_test_kills_its_mutants_in_one_torchrun(self, tmp_path: Path) -> None:
        words = ("selftest", "--profile", "dist", "--ranks", "4", "--only", "TOPO", "--report", "out")
        _rankproof(*words, cwd=tmp_path, code=0)
        matrix = json.loads((tmp_path / "out/kills.json").read_text())
        tier = [each for each in LAW.mutants if each.of.startswith("TOPO") and LAW.contracts[each.of].tier == "dist"]
        killed = {(kill["of"], kill["mutant"]) for kill in matrix["kills"]}  # some also on a leaner recipe
        assert killed == {(each.of, each.name) for each in tier}
        assert {kill["fate"] for kill in matrix["kills"]} == {"killed"}
        assert matrix["unguarded"] == []

    @pytest.mark.parametrize(("profile", "code"), [("TOPO-05d[own-axis-pp2-tp2-on-4],ENV-06a[on-4]", 0),
                                                   ("ENV-06a", 1)])  # fmt: skip
    def test_two_torchrun_agents_are_judged_as_two_nodes(self, profile: str, code: int, tmp_path: Path) -> None:
        with socket.create_server(("localhost", 0)) as free:
            port = free.getsockname()[1]
        chosen = {"NODES": "2", "RANKS": "2", "ENDPOINT": f"localhost:{port}", "RUN": "two", "PROFILE": profile,
                  "REPORT": str(tmp_path / "out")}  # fmt: skip
        outside = environment() | chosen
        outside["PATH"] = f"{Path(RANKPROOF).parent}:{outside['PATH']}"
        block = ["bash", "-c", _example("several-nodes.md", "plain")]
        agents = [subprocess.Popen(block, cwd=tmp_path, env=outside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True) for _ in range(2)]  # fmt: skip
        said = []
        try:
            said = [agent.communicate(timeout=150)[0] for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
        assert [agent.returncode for agent in agents] == [code, code], "\n".join(said)[-3000:]
        footer = json.loads((tmp_path / "out/run.jsonl").read_text().splitlines()[-1])["footer"]
        assert footer["word"] == ("conformant" if code == 0 else "incomplete")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the folder is told by torch.distributed")
def test_a_rank_that_declines_leaves_the_shared_folder_to_the_ranks_after_it() -> None:
    import torch.distributed as dist

    from contracts.law._support.saved_states import shared_folder

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(NotOffered), shared_folder() as left:
            raise NotOffered("has no FSDP2")
        assert left.is_dir()
        with shared_folder() as done:
            assert done.is_dir()
        assert not done.exists()
    finally:
        dist.destroy_process_group()
