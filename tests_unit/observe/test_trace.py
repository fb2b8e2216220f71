"""Traces as files: what is refused, and what a killed rank leaves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import rankproof
from contracts.observe.merged import Merged
from contracts.observe.names import canonical
from contracts.observe.trace import LIMIT, VERSION, Writer, lines_of, read
from contracts.spec import Refused

ABOUT = {"run": "r/0", "torch": "2.13"}


def _write(folder: Path, rank: int, world: int, run: str = "r/0") -> Writer:
    return Writer(folder, rank, world, ["train.py", "--token", "open-sesame-now"], {**ABOUT, "run": run})


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    for rank in range(2):
        writer = _write(tmp_path, rank, 2)
        writer.add("step", step=1, backward=2, microbatches=2)
        writer.close("ValueError: open-sesame-now", steps=1, unseen={})
    trace = read(tmp_path)
    assert (trace.world, trace.missing, len(trace.ranks)) == (2, (), 2)
    assert Merged(trace).steps == 1
    assert "open-sesame" not in lines_of(tmp_path, 0).read_text()


def test_a_killed_rank_has_no_end_and_its_half_line_is_left_out(tmp_path: Path) -> None:
    writer = _write(tmp_path, 0, 2)
    writer.add("step", step=1, backward=1, microbatches=1)
    writer.close(steps=1, unseen={})
    *kept, end = lines_of(tmp_path, 0).read_text().splitlines(keepends=True)
    lines_of(tmp_path, 0).write_text("".join(kept) + end[:12])
    trace = read(tmp_path)
    assert trace.ranks[0].end is None
    assert trace.missing == (1,)
    assert Merged(trace).steps == 1


def test_events_after_the_limit_are_left_out_and_the_end_says_so(tmp_path: Path) -> None:
    writer = _write(tmp_path, 0, 1)
    writer.written = LIMIT - 100
    writer.add("no-gradient", step=1, name="short")
    writer.add("no-gradient", step=1, name="long" * 30)
    writer.close(steps=0, unseen={})
    (rank,) = read(tmp_path).ranks
    assert [line["name"] for line in rank.of("no-gradient")] == ["short"]
    assert rank.end["full"] is True


def test_a_trace_without_a_sketch_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, 0, 1).close(steps=0, unseen={})
    (rank,) = read(tmp_path).ranks
    for path in (rank.path, tmp_path / "gone"):
        with pytest.raises(Refused, match="has no sketch 0"):
            replace(rank, path=path).sketch(0)


def test_a_folder_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="holds no trace"):
        read(tmp_path / "nowhere")
    _write(tmp_path, 0, 2).close()
    with pytest.raises(Refused, match="holds a trace of rank 0"):
        _write(tmp_path, 0, 2)
    _write(tmp_path, 1, 2, run="other/0").close()
    with pytest.raises(Refused, match="is of another run"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["[]\n", "nonsense\n", '{"e": 3}\n', "[" * 100_000 + "\n", "\n", ""])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    lines_of(tmp_path, 0).write_text(text)
    with pytest.raises(Refused):
        read(tmp_path)


@pytest.mark.parametrize("version", ["rankproof.trace/3", "rankproof.trace/1.2", "rankproof.trace/2.x", "1", None])
def test_a_trace_of_another_version_is_refused(tmp_path: Path, version: str | None) -> None:
    begin = {"e": "begin", "version": version, "rank": 0, "world": 1, "run": ""}
    lines_of(tmp_path, 0).write_text(json.dumps(begin) + "\n")
    with pytest.raises(Refused, match=rf"is of version {version}, and this suite reads rankproof\.trace/2 up to"):
        read(tmp_path)


def _of_version(folder: Path, version: str, kind: str) -> None:
    """A trace as another suite writes it, with two lines of a kind of its own."""
    writer = _write(folder, 0, 1)
    for step in (1, 1):
        writer.add(kind, step=step, of=["anything"])
    writer.close(steps=0, unseen={"sparse": 3})
    path = lines_of(folder, 0)
    path.write_text(path.read_text().replace(VERSION, version, 1))


def test_lines_that_a_later_suite_added_are_left_out_and_counted(tmp_path: Path) -> None:
    _of_version(tmp_path, "rankproof.trace/2.99", "routed-again")
    (rank,) = read(tmp_path).ranks
    assert not list(rank.of("routed-again"))
    (sparse, count), (words, left_out) = sorted(rank.end["unseen"].items(), reverse=True)
    assert (sparse, count, left_out) == ("sparse", 3, 2)
    assert words.startswith("line 'routed-again' of rankproof.trace/2.99")


@pytest.mark.parametrize("version", [VERSION, "rankproof.trace/2"])
def test_an_unknown_line_in_a_trace_of_this_suite_is_refused(tmp_path: Path, version: str) -> None:
    _of_version(tmp_path, version, "routed-again")
    with pytest.raises(Refused, match="has no valid 'e'"):
        read(tmp_path)


def test_a_trace_of_an_earlier_suite_is_read(tmp_path: Path) -> None:
    _of_version(tmp_path, "rankproof.trace/2", "drawn")
    path = lines_of(tmp_path, 0)
    path.write_text(path.read_text().replace('"of":["anything"]', '"microbatch":1,"drawn":false'))
    (rank,) = read(tmp_path).ranks
    assert len(list(rank.of("drawn"))) == 2


NAMES = {
    "module.blocks.0.up.weight": (True, "blocks.0.up.weight"),
    "_orig_mod.module.up.weight": (True, "up.weight"),
    "module._orig_mod.up.weight": (True, "up.weight"),
    "_fsdp_wrapped_module.layers.3._checkpoint_wrapped_module.w": (False, "layers.3.w"),
    "module.weight": (False, "module.weight"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_parameters_name_does_not_depend_on_wrappers_of_the_model(name: str) -> None:
    inside, want = NAMES[name]
    assert canonical(name, inside=inside) == want


def test_a_step_of_a_trace_names_the_devices_of_the_weights_it_updated(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with rankproof.observing(tmp_path, steps=1):
        net(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    written = [json.loads(line) for line in lines_of(tmp_path, 0).read_text().splitlines()]
    assert [line["devices"] for line in written if line["e"] == "step"] == [["cpu"]]
    assert "device" not in written[0]
