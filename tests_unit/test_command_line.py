"""What the command line understands, suggests and completes."""

import json
import os
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from contracts.contract import LAW
from contracts.harness.cli import GROUPS, main
from contracts.harness.commands.samples import FILES
from tests_unit._parties.running import RANKPROOF, ROOT, environment, invoked, ran, rankproof

ITEM = "PAR-01e[tp2-sp@pairs]"
USAGE, INCOMPLETE = 2, 3
COMMANDS = {name: main.get_command(None, name) for name in main.list_commands()}
REFUSED = {
    ("check", "--profile", "PAT-01[nam56x]"): "the nearest are PAT-01[nam56r], ",
    ("check", "--profile", "topo-02"): "the nearest are TOPO-02",
    ("explain", "TOPO-02[pp13-on-53]"): "the nearest are TOPO-02[pp13-on-52]",
    ("explain", "TOPU"): "the nearest are TOPO",
    ("selftest", "--only", "PATT"): "the nearest are PAT",
    ("selftest", "--only", "PAT-01,PATT"): "--only = 'PATT': selects no contract",
    ("selftest", "--only", "MOE-05i"): "is a contract of tier dist; add `--profile dist`",
    ("selftest", "--only", "[]"): "--only = '[]': names nothing",
    ("check", "--stack", "refrence"): "did you mean 'reference'?",
    ("check", "--stack", "ours.Ours"): "did you mean 'ours:Ours'?",
    ("kernels", "--device", "gpu-box"): "is not a device; write sm_NN as the driver does, or a100",
    ("kernels", "--device", "blackwell"): "is not a device",
    ("budget", "nam56r_h200_bf16_v1", "--card", "h1000"): "or the GiB that a process may use",
    ("storage", "missing.toml"): "`rankproof sample` prints one",
}
READ_BY: dict[str, tuple[str, ...]] = {  # sample → the command that reads it
    "map.toml": ("storage", "map.toml"),
    "spans.json": ("goodput", "spans.json"),
    "table.toml": ("stack", "--table", "table.toml"),
    "plan.toml": ("install-plan", "plan.toml"),
    "deviations.toml": ("check", "--profile", "PAT-01[nam52]", "--deviations", "deviations.toml", "--report", "out"),
}


def said(*words: str) -> tuple[int, str]:
    done = invoked(*words)
    return done.exit_code, done.output


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_a_misspelt_option_is_refused_with_the_nearest_one(words: tuple[str, ...], tmp_path: Path) -> None:
    done = rankproof(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert REFUSED[words] in done.stderr


def test_an_item_copied_from_a_report_is_a_valid_profile(tmp_path: Path) -> None:
    code, text = said("explain", ITEM)
    assert code == 0
    assert text.splitlines()[0] == ITEM
    assert f"rankproof check --stack reference --ranks 2 --profile '{ITEM}'" in text
    assert [line.split(":")[0].strip() for line in text.split(" cases\n")[1].split("\n\n")[0].splitlines()] == [
        "tp2-sp@pairs"
    ]
    assert said("list", "--profile", ITEM)[1].startswith("PAR-01e ")
    words = ["selftest", "--only", "TOPO-02[pp13-on-52],PAT-01", "--only", "NAME-01", "--with", "none", "--json",
             "--report", "out"]  # fmt: skip
    done = rankproof(*words, cwd=tmp_path, code=0)
    assert {kill["of"] for kill in json.loads(done.stdout)["kills"]} >= {"TOPO-02", "PAT-01", "NAME-01"}
    assert (tmp_path / "out/detection.md").exists(), "what is printed does not decide what is written"


def test_a_family_is_listed_by_its_name_in_any_case() -> None:
    code, text = said("explain", "topo")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == [id for id in LAW.ids() if id.startswith("TOPO")]
    assert said("explain", "topo-02A")[1].splitlines()[0] == "TOPO-02a"


def test_a_device_can_be_named_by_card_or_architecture() -> None:
    tables = {name: said("kernels", "--device", name) for name in ("sm_90", "sm90", "h200", "hopper", "H100")}
    assert set(tables.values()) == {tables["sm_90"]}
    assert tables["sm_90"][0] == 0
    assert "device sm_90" in tables["sm_90"][1]


def test_json_output_has_what_the_text_has() -> None:
    [pat] = json.loads(said("list", "--profile", "PAT-01a", "--json")[1])
    assert pat == json.loads(said("explain", "PAT-01a", "--json")[1])
    assert set(pat["cases"]) == set(LAW.contracts["PAT-01a"].cases)
    without = {
        name
        for name, command in COMMANDS.items()
        if command is not None and not {"--json"} & {each for parameter in command.params for each in parameter.opts}
    }
    kinds = {"observe", "deviations", "launch", "completion", "sample", "gate", "show", "merge"}
    assert without == kinds, "they print no results"


def test_a_probes_json_has_results_and_the_next_questions_to_answer(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text((ROOT / "docs/examples/whole_periods/ours.py").read_text(encoding="utf-8"))
    done = rankproof("init", "--probe", "ours:Ours", "--propose", "declared.toml", "--json", cwd=tmp_path, code=1)
    told = json.loads(done.stdout)
    assert told["word"] == "violated"
    assert {each["id"] for each in told["results"] if each["outcome"] == "violated"} >= {"PAT-01"}
    assert all(each["questions"] and sum(each["contracts"].values()) for each in told["next"])
    assert "blocks" not in told["next"][0]["questions"]
    assert "declared.toml proposes deviations for" in done.stderr
    done = rankproof("init", "ours", "--json", cwd=tmp_path)
    assert (done.returncode, "json = True: shows what a probe found" in done.stderr) == (USAGE, True)


def test_every_command_is_in_one_group_of_the_help() -> None:
    code, text = said("--help")
    assert code == 0
    assert all(isinstance(each, click.Command) and each.name == name for name, each in COMMANDS.items())
    assert len(COMMANDS) == sum(map(len, GROUPS.values()))
    assert all(len(told) <= 54 for group in GROUPS.values() for _, told in group.values())
    assert all(f"{title}:" in text for title in GROUPS)
    assert "Exit codes: 0 conformant" in " ".join(text.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_calls_this_command(shell: str) -> None:
    code, text = said("completion", shell)
    assert code == 0
    assert "_RANKPROOF_COMPLETE" in text
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("rankproof expl", "explain"),
        ("rankproof explain TOPO-02", "TOPO-02a"),
        ("rankproof explain TOPO-02[pp1", "TOPO-02[pp13-on-52]"),
        ("rankproof check --profile quick,TOPO-02[pp1", "quick,TOPO-02[pp13-on-52]"),
        ("rankproof check --stack mega", "megatron"),
        ("rankproof kernels --j", "--json"),
        ("rankproof budget nam56r_h200_b", "nam56r_h200_bf16_v1"),
        ("rankproof sample m", "map.toml"),
    ],
)
def test_completion_finishes_a_partial_word(typed: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    monkeypatch.setenv("_RANKPROOF_COMPLETE", "bash_complete")
    assert f"plain,{wanted}" in CliRunner().invoke(main, prog_name="rankproof").output.splitlines()


@pytest.mark.parametrize("name", FILES)
def test_each_sample_file_is_accepted_by_its_command(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(said("sample", name)[1])
    if name == "plan.toml":  # pip would be asked
        from contracts.bringup.commands.installation import read_plan

        assert read_plan(tmp_path / name).steps[0].name == "venv"
        return
    done = rankproof(*READ_BY[name], cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr


def test_colours_can_be_turned_off() -> None:
    """On a terminal, which `color=True` stands for."""
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        done = invoked("explain", "PAT-01", color=True, env={"NO_COLOR": None, **variables})
        assert ("\x1b[" in done.output) is coloured


def test_without_torch_the_numbers_are_not_run_and_the_verdict_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["torch"] = None\n')
    variables = environment()
    variables["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{variables['PYTHONPATH']}"
    words = ("check", "--profile", "BLK-03a,PAT-01a", "--with", "none", "--report", "out")
    done = ran([RANKPROOF, *words], cwd=tmp_path, env=variables, code=INCOMPLETE)
    assert "torch is not installed" in " ".join(done.stdout.split())
    assert "declined" not in done.stdout


def test_the_kill_matrix_is_not_truncated_in_a_pipe(tmp_path: Path) -> None:
    assert "builds_whole_periods" in rankproof("selftest", "--only", "PAT-01", "--with", "none", cwd=tmp_path).stdout
