"""The preflight under hostile captures and absent tools, and as a command."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from contracts.bringup.law.preflight._captures import H200, OTHER_CABLING, WITHOUT_NICS, ranks_of, said, with_cells
from contracts.bringup.law.preflight.node import is_fit_for_its_gpus
from contracts.bringup.law.preflight.node_bugs import asks_for_a_row_of_nics, trusts_the_node
from contracts.instruments.allreduce import main as allreduce
from contracts.instruments.node import read_node
from contracts.spec import codec
from contracts.spec.machine import Need, NodeCapture
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.running import invoked, write

HOSTILE = 10_000
NEED = Need()
WORDS = [
    "NV18",
    "NV1",
    "NV6",
    "SYS",
    "PHB",
    "NODE",
    "PIX",
    "PXB",
    "X",
    "",
    "ERR!",
    "GPU3",
    "NIC0",
    "N/A",
    "0-47",
    "nv18",
]
GPUS = [f"GPU{number}" for number in range(8)]


def is_sound(node: NodeCapture) -> bool:
    """Whether a node is fit, read off the text in another way: eight whole rows of the only right words."""
    table = re.sub(r"\x1b\[[0-9;]*m", "", node.topology or "").lstrip()
    header = table.split("\n")[0].split("CPU")[0].split()
    rows = [line.split() for line in table.split("\n")[1:]]
    for at, gpu in enumerate(GPUS):
        own = [words for words in rows if words[:1] == [gpu]]
        expected = ["X" if at == other else "NV18" for other in range(8)]
        if header[:8] != GPUS or len(own) != 1 or own[0][1:9] != expected:
            return False
    listed = [line for line in (node.devices or "").split("\n") if line.strip()]
    numbered = [line.split(":")[0] for line in listed] == [f"GPU {number}" for number in range(8)]
    uuids = {line.rpartition("UUID: ")[2] for line in listed}
    return numbered and len(uuids) == 8 and int(node.numa_balancing or "1") == 0


def _a_character(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    return text[:at] + chr(draw.choice([*range(128), 0x200B, 0x663, 0xFFFD])) + text[at + draw.randrange(2) :]


def _a_cut(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    return draw.choice([text[:at], text[at:], text[:at] + text[at + draw.randrange(1, 60) :]])


def _lines(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    if draw.random() < 0.5:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines.insert(one, lines[other])
    return "\n".join(lines)


def _cells(text: str, draw: random.Random) -> str:
    lines = [line.split("\t") for line in text.split("\n")]
    row = draw.randrange(len(lines))
    column = draw.randrange(len(lines[row]))
    if draw.random() < 0.3:
        del lines[row][column]
    else:
        lines[row][column] = draw.choice(WORDS)
        if column < len(lines) and row < len(lines[column]) and draw.random() < 0.6:  # both directions
            lines[column][row] = lines[row][column]
    return "\n".join("\t".join(line) for line in lines)


def _a_column(text: str, draw: random.Random) -> str:
    lost = draw.randrange(10)
    lines = [line.split("\t") for line in text.split("\n")]
    return "\n".join("\t".join(cell for at, cell in enumerate(line) if at != lost) for line in lines)


EDITS: list[Callable[[str, random.Random], str]] = [_a_character, _a_cut, _lines, _cells, _cells, _a_column]


def mutated(draw: random.Random) -> NodeCapture:
    node = draw.choice([H200, WITHOUT_NICS, OTHER_CABLING])
    texts = {"topology": node.topology or "", "devices": node.devices or "", "numa_balancing": "0\n"}
    for _ in range(draw.randrange(1, 4)):
        name = draw.choice(["topology"] * 6 + ["devices", "numa_balancing"])
        texts[name] = draw.choice(EDITS)(texts[name], draw)
    return replace(node, **texts)


@pytest.mark.slow
def test_no_damaged_node_passes_preflight_and_every_finding_has_a_remedy() -> None:
    draw, passed, refused = random.Random(20260615), 0, 0
    for _ in range(HOSTILE):
        node = mutated(draw)
        findings = Reference().preflight(node, NEED)
        assert findings or is_sound(node), node
        assert all(each.problem and each.remedy for each in findings)
        passed, refused = passed + (not findings), refused + bool(findings)
    assert passed > HOSTILE / 100, "the edits never leave a node sound, so passing proves nothing"
    assert refused > HOSTILE / 2, "the edits hardly make a node sick, so refusing proves nothing"


def test_a_rank_map_without_nodes_is_refused() -> None:
    assert Reference().rank_map((), (), NEED)


def _tool(folder: Path, text: str) -> None:
    write(folder, {"nvidia-smi": f"#!/bin/sh\n{text}\n"}, mode=0o755)


def test_a_missing_tool_is_a_finding_and_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    node = read_node()
    assert (node.topology, node.devices, node.memory) == (None, None, None)
    assert node.failures["topology"] == "nvidia-smi is not installed"
    assert "nvidia-smi is not installed" in said(Reference().preflight(node, NEED))


def test_a_tool_that_hangs_is_called_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tool(tmp_path, f"echo asked >> {tmp_path}/asked; exec /bin/sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_node(timeout_s=0.5).failures["memory"] == "nvidia-smi did not answer within 0.5 s"
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_the_output_of_a_failing_tool_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tool(tmp_path, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    monkeypatch.setenv("PATH", str(tmp_path))
    node = read_node()
    assert node.topology is None
    assert "topo -m ended with 18: Failed to initialize NVML" in node.failures["topology"]


def test_a_capture_holds_what_the_tool_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"topology": H200.topology or "", "devices": H200.devices or ""})
    _tool(
        tmp_path,
        f'[ "$1" = topo ] && exec /bin/cat {tmp_path}/topology\n[ "$1" = -L ] && exec /bin/cat {tmp_path}/devices',
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("API_TOKEN", "secret")
    node = read_node()
    assert (node.topology, node.devices) == (H200.topology, H200.devices)
    assert node.environment == {"CUDA_VISIBLE_DEVICES": "3"}
    assert codec.loads(NodeCapture, codec.dumps(node)) == node


def _command(folder: Path, *words: str, code: int | None = None, **nodes: object) -> Result:
    """`rankproof preflight`, with values written to files of their names."""
    for name, value in nodes.items():
        (folder / name).write_text(codec.dumps(value))
    files = {name: str(folder / name) for name in nodes}
    return invoked("preflight", *(files.get(word, word) for word in words), code=code)


def test_the_preflight_command_prints_every_finding_with_its_remedy(tmp_path: Path) -> None:
    sick = replace(with_cells(H200, GPU3_GPU5="SYS"), numa_balancing="1\n")
    done = _command(tmp_path, "--capture", "sick", sick=sick, code=1)
    assert "GPU3–GPU5 is SYS" in done.output
    assert "sysctl kernel.numa_balancing=0" in done.output
    assert done.output.endswith("refused\n")


def test_the_command_judges_environment_disks_and_installed_stack_with_the_node(tmp_path: Path) -> None:
    places = {name: f"/nowhere/{name}" for name in ("durable", "scratch", "receipts", "data")} | {
        "data_volume": "/nowhere"
    }
    (tmp_path / "map.toml").write_text("".join(f"{name} = {json.dumps(path)}\n" for name, path in places.items()))
    words = [
        "preflight",
        "--recipe",
        "tiny-nam56r",
        "--storage",
        str(tmp_path / "map.toml"),
        "--table",
        "h200",
        "--json",
    ]
    done = invoked(*words, env={"NCCL_MNNVL_ENABLE": "1", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, code=1)
    found = json.loads(done.stdout)["findings"]
    assert {"environment", "disks", "stack"} <= found.keys()
    assert {each["promise"] for each in found["environment"]} == {"ENV-03", "ENV-05"}
    assert "STOR-01" in {each["promise"] for each in found["disks"]}
    assert "INST-01" in {each["promise"] for each in found["stack"]}


def test_the_command_does_not_mix_a_captured_node_with_this_ones_disks(tmp_path: Path) -> None:
    assert "was taken elsewhere" in _command(tmp_path, "--capture", "fit", "--table", "h200", fit=H200, code=2).output


def test_the_preflight_command_passes_a_healthy_node_for_a_recipe(tmp_path: Path) -> None:
    recipe = ("--recipe", "nam56r_h200_bf16_v1")
    _command(tmp_path, "--capture", "n0", *recipe, n0=H200, code=0)
    small = replace(H200, memory="".join(f"{gpu}, 81559\n" for gpu in range(8)))
    done = _command(tmp_path, "--capture", "n0", *recipe, "--json", n0=small, code=1)
    assert {each["promise"] for each in json.loads(done.output)["findings"]["n0"]} == {"PREF-06"}


def test_several_nodes_need_captures_and_a_rank_map(tmp_path: Path) -> None:
    nodes = {"n0": H200, "n1": OTHER_CABLING, "map": ranks_of(H200, OTHER_CABLING)}
    two = ("--nodes", "2", "--capture", "n0", "--capture", "n1")
    _command(tmp_path, *two, "--ranks", "map", **nodes, code=0)
    unknown = _command(tmp_path, *two, **nodes)
    assert (unknown.exit_code, "PREF-04" in unknown.output) == (1, True)
    _command(tmp_path, "--nodes", "2", "--capture", "n0", **nodes, code=2)
    _command(tmp_path, *two, "--ranks", "n0", **nodes, code=2)


def test_a_capture_is_read_strictly(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for words in (("--capture", str(tmp_path)), ("--capture", str(tmp_path / "binary")), ("--gpus", "0")):
        invoked("preflight", *words, code=2)


@pytest.mark.parametrize(
    "words", [["--floor", "0"], ["--floor", "nan"], ["--floor", "9", "--rounds", "0"], ["--floor", "9"]]
)
def test_an_all_reduce_pass_without_limits_or_ranks_is_a_usage_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as ended:
        allreduce(words)
    assert ended.value.code == 2


def test_the_check_of_the_local_node_works_on_a_captured_one() -> None:
    """PREF-01d captures where it runs; without a GPU there is nothing to capture."""
    is_fit_for_its_gpus(Reference(), H200)
    for mutant, words in (
        (trusts_the_node, "no finding says that 9 are not there"),
        (asks_for_a_row_of_nics, "is not fit for its 8"),
    ):
        with pytest.raises(AssertionError, match=words):
            is_fit_for_its_gpus(mutant(), H200)
    with pytest.raises(AssertionError, match="names no GPU"):
        is_fit_for_its_gpus(Reference(), replace(H200, devices=None))
