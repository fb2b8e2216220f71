"""Nothing is green that was not compared: not in a phase of `diff`, and in no OBS contract."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests_unit._parties.running import invoked

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

import rankproof  # noqa: E402
from contracts import observe  # noqa: E402
from contracts.observe.merged import Merged  # noqa: E402
from contracts.observe.pairing import paired  # noqa: E402
from contracts.observe.party import Observed  # noqa: E402
from contracts.observe.trace import Line, Writer, read  # noqa: E402
from contracts.spec import NotOffered  # noqa: E402
from tests_unit._parties.law import LAW  # noqa: E402

Edit = Callable[[Line, int], Iterable[Line]]


class Router(nn.Module):
    """Gives scores and a map of tokens and experts."""

    def forward(self, scores: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.zeros_like(scores).scatter(-1, (scores + bias).topk(2).indices, 1.0).bool()
        return scores * chosen, chosen


class Experts(nn.Module):
    """A router, its counter and its bias, by torchtitan's names."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.inner, self.router = nn.Linear(8, 4), nn.Linear(8, 8), Router()
        self.register_buffer("tokens_per_expert_E", torch.zeros(4))
        self.register_buffer("expert_bias_E", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.router(self.gate(x).sigmoid(), self.expert_bias_E)
        if self.training:
            self.tokens_per_expert_E.add_(chosen.flatten(0, -2).sum(0))
        return self.inner(x) * scores.sum(-1, keepdim=True)


def _train(steps: int) -> None:
    """Tied, dropped, clipped, scheduled, evaluated and told: something of every contract."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(9, 8), Experts(), nn.Dropout(0.1), nn.Linear(8, 9, bias=False))
    net[3].weight = net[0].weight
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 9)
    texts = torch.randint(9, (4 * steps, 7), generator=torch.Generator().manual_seed(1))
    for rows in torch.utils.data.DataLoader(texts, 4):
        optimizer.zero_grad()
        observe.step(microbatches=1)
        nn.functional.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        moved = 0.01 * (net[1].tokens_per_expert_E.mean() - net[1].tokens_per_expert_E).sign()
        net[1].expert_bias_E += moved - moved.mean()
        net[1].tokens_per_expert_E.zero_()
        optimizer.step()
        schedule.step()
        net.eval()
        with torch.no_grad():
            net(rows[:, :-1])
        net.train()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a run of three steps on one rank."""
    folder = tmp_path_factory.mktemp("one") / "trace"
    with rankproof.observing(folder):
        _train(4)
    return folder


def _rewritten(trace: Path, folder: Path, edit: Edit, world: int = 1) -> Path:
    """A trace of `world` ranks, each of whose lines `edit` gives for a line of the only rank of `trace`."""
    folder.mkdir()
    lines = [json.loads(each) for each in (trace / "rank-00000.jsonl").read_text().splitlines()]
    for rank in range(world):
        mine = [other for each in lines for other in edit(json.loads(json.dumps(each)), rank)]
        (folder / f"rank-{rank:05d}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in mine))
        shutil.copy(trace / "rank-00000.sketches", folder / f"rank-{rank:05d}.sketches")
    return folder


def _of_two(line: Line, rank: int) -> Iterable[Line]:
    """A line of the run as if it was one of two data-parallel ranks, each with rows and random states of its own."""
    if line["e"] == "begin":
        line |= {"world": 2, "rank": rank}
    if line["e"] == "root":
        line |= {"data": [0, 1], "replicas": [0, 1], "reduces": "float32"}
    if line["e"] == "input":
        line |= {"rows": [each + rank for each in line["rows"]], "random": f"{line['random']}{rank}"}
    if line["e"] == "drawn":
        line["drawn"] = True
    yield line
    if line["e"] == "routed":
        yield line | {"e": "handed", "rows": sum(line["counts"])}
    if line["e"] == "step":
        yield {"e": "collectives", "step": line["step"], "group": "0-1", "said": ["all_reduce(sum) 9 float32"]}


def _without(*kinds: str) -> Edit:
    return lambda line, rank: [] if line["e"] in kinds else [line]


def _empty(line: Line, rank: int) -> Iterable[Line]:
    return [line | ({"steps": 0} if line["e"] == "end" else {})] if line["e"] in ("begin", "end") else []


def _halves(trace: Path, folder: Path) -> dict[str, Path]:
    """The run whole, and resumed after its first step."""

    def later(line: Line, rank: int) -> Iterable[Line]:
        step = line.get("step", 2) - 1
        updated = line["e"] == "updated" and step == 0
        if line["e"] == "end":
            line["steps"] = max(0, line["steps"] - 1)
        if updated:
            yield line | {"e": "weight", "step": 1}
        elif (step > 0 and (line["e"], step) != ("weight", 1)) or "step" not in line:
            yield line | ({"step": step} if "step" in line else {})

    return {"whole": trace, "resumed": _rewritten(trace, folder / "resumed", later)}


NUMBERS = ("weight", "gradient", "updated")
SUBJECTS: dict[str, tuple[tuple[str, ...], ...]] = {  # contract → what is taken out of its trace, all of it at once
    "OBS-01": (*((each,) for each in NUMBERS), ("forward", "loss")),
    "OBS-02": ((*NUMBERS, "moment", "buffer"),), "OBS-03": (("root",),), "OBS-04": (("clip",), ("gradient",)),
    "OBS-05": (("tied",),), "OBS-06": (("input",),), "OBS-07": (("told",), ("step",)), "OBS-08": (("group",),),
    "OBS-09": (("gradient",), ("updated",), ("forward", "loss")), "OBS-10": (("collectives",),),
    "OBS-11": (*((each,) for each in NUMBERS), ("forward", "loss")), "OBS-12": (("drawn",), ("input",)),
    "OBS-13": (("evaluation", "modes"), ("weight", "evaluated", "modes")),
    "OBS-14": (("routed",), ("counted", "bias"), ("counter", "bias")),
    "OBS-15": (("gradient", "updated", "moment", "loss"),), "OBS-16": (("root",), ("group",), ("gradient",)),
    "OBS-17": (("world", "root", "collectives"),), "OBS-18": (("routed",), ("handed",)),
    "OBS-20": (("root",), ("collectives",)),
}  # fmt: skip
LIKE = {"OBS-01": "one-rank", "OBS-09": "whole", "OBS-11": "plain"}


def _judge(id: str, one: Path, folder: Path, edit: Edit) -> None:
    """Ask a contract about the run, every line of which is edited; one about two runs, about two that are edited."""
    folder.mkdir()
    edited = _rewritten(one, folder / "one", edit)
    runs = {"two": _rewritten(one, folder / "two", lambda *line: [more for each in _of_two(*line)
                                                                   for more in edit(each, line[1])], 2)}  # fmt: skip
    if id in LIKE:
        runs = _halves(edited, folder) if id == "OBS-09" else {LIKE[id]: edited, "resumed": edited}
    arguments = next(iter(LAW.contracts[id].cases.values()))
    LAW.contracts[id].check(Observed(read(runs.popitem()[1]), runs), *arguments)


def test_every_contract_about_a_trace_is_here() -> None:
    assert set(SUBJECTS) == {id for id in LAW.contracts if id.startswith("OBS-")}


@pytest.mark.parametrize("id", SUBJECTS)
def test_a_contract_that_compared_nothing_does_not_hold(one: Path, tmp_path: Path, id: str) -> None:
    """A contract that holds in a run does not hold without its subject, nor in an empty trace."""
    _judge(id, one, tmp_path / "whole", lambda line, rank: [line])
    for number, edit in enumerate((*(_without(*kinds) for kinds in SUBJECTS[id]), _empty)):
        with pytest.raises((NotOffered, AssertionError)) as said:
            _judge(id, one, tmp_path / str(number), edit)
        assert said.type is NotOffered or id == "OBS-16", (number, said.value)


@pytest.mark.parametrize("kinds", [*SUBJECTS["OBS-01"], ("forward", "loss", *NUMBERS)], ids=" ".join)
def test_runs_are_not_comparable_if_a_phase_has_no_pair_of_tensors(
    one: Path, tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    done = invoked("diff", one, _rewritten(one, tmp_path / "other", _without(*kinds)), code=3)
    assert "NOT COMPARABLE: no pair was compared of " in done.output.splitlines()[-1]
    done = invoked("diff", one, one, code=0)
    assert "compared: 5 initial weights, 3 steps" in done.output.splitlines()[-1]


def _named(change: Callable[[str], str], *, scale: float = 1.0, of: str = "gradient") -> Edit:
    """Every parameter, module and buffer is called otherwise; what is of one kind is scaled."""

    def edit(line: Line, rank: int) -> Iterable[Line]:
        for field in ("names", "trainable", "frozen", "evaluating"):
            if field in line:
                line[field] = [change(each) for each in line[field]]
        if line.get("name", "(root)") != "(root)":
            line["name"] = change(line["name"])
        if line["e"] == of and scale != 1:
            other = None if line["sketch"] is None else line["sketch"] ^ 1  # that of another tensor
            line |= {"squares": line["squares"] * scale**2, "sketch": other}
        yield line

    return edit


NAMES: dict[str, Callable[[str], str]] = {
    "wrapped": "module.{}".format, "fabric": "_forward_module.module.{}".format, "held": "model.{}".format,
    "a part": lambda name: name.replace("1.", "1.module.", 1) if name.startswith("1.") else name,
    "renamed": lambda name: name.replace("1.inner", "1.expert"),
    "tied": lambda name: name.replace("0.weight", "3.weight"),
}  # fmt: skip


@pytest.mark.parametrize("names", NAMES)
def test_renamed_tensors_are_paired(one: Path, tmp_path: Path, names: str) -> None:
    for scale, code in ((1.0, 0), (0.5, 1)):
        other = _rewritten(one, tmp_path / f"by-{scale}", _named(NAMES[names], scale=scale))
        for pair in ((one, other), (other, one)):
            done = invoked("diff", *pair, code=code)
            assert "compared: 5 initial weights" in done.output.splitlines()[-1]
            assert done.output.startswith("paired  ")
            assert code == 0 or ", first in step 1, gradient: " in done.output.splitlines()[-1]


def test_rename_pairs_tensors_that_nothing_else_pairs(one: Path, tmp_path: Path) -> None:
    other = _rewritten(one, tmp_path / "other", _named("q.{}_".format, scale=2.0, of="weight"))
    done = invoked("diff", one, other, code=3)
    assert "(0.weight is not in one run, q.0.weight_ not in the other: --rename A=B pairs them)" in done.output
    words = ["--rename", "0.weight=q.0.weight_", "--rename", "1.gate.bias=q.1.gate.bias_"]
    done = invoked("diff", one, other, *words, code=1)
    assert "2 more" not in done.output
    assert "step 1, initial weights: 0.weight: differs by" in done.output.splitlines()[-1]
    done = invoked("diff", one, other, "--rename", "0.wait=q", "--rename", "1=p.1", code=2)
    assert "rename = '0.wait': is no name in" in done.output
    assert "the nearest are 0.weight" in done.output
    assert "rename = 'p.1': is no name in" in done.output
    invoked("diff", one, other, "--rename", "0", code=2)


def test_a_run_whose_replicas_differ_equals_itself(one: Path, tmp_path: Path) -> None:
    """As under tensor parallelism by hand, with plain tensors."""

    def apart(line: Line, rank: int) -> Iterable[Line]:
        for each in _of_two(line, rank):
            yield each | (
                {"bits": f"{each['bits']}{rank}"} if "bits" in line and line.get("name") == "1.inner.weight" else {}
            )

    def off(line: Line, rank: int) -> Iterable[Line]:
        for each in apart(line, rank):
            yield each | (
                {"sketch": 0} if rank and (line["e"], line.get("name")) == ("gradient", "1.inner.weight") else {}
            )

    runs = [_rewritten(one, tmp_path / edit.__name__, edit, 2) for edit in (apart, off)]
    assert [invoked("diff", runs[0], each).exit_code for each in runs] == [0, 1]


@pytest.mark.parametrize("name", ["module.{}", "model.{}", "q.{}_x"])
def test_ten_thousand_renamed_tensors_are_paired_correctly(tmp_path: Path, name: str) -> None:
    """Without a look at each name for each other one, which takes minutes."""
    runs = []
    for run, form in (("one", "{}"), ("other", name)):
        writer = Writer(tmp_path / run, 0, 1, ["train.py"], {"run": "r/0"})
        names = [form.format(f"layers.{number // 4}.part{number % 4}.weight") for number in range(10_000)]
        writer.add("root", number=0, type="Net", trainable=names, frozen=[], replicas=[], data=[])
        for number, each in enumerate(names):
            writer.add("weight", step=1, shape=[4, number % 7], dtype="float32", part="", partial=False, name=each,
                       bits="0", squares=number + 1.0, sketch=None)  # fmt: skip
        writer.close(steps=1, unseen={})
        runs.append(Merged(read(tmp_path / run)))
    _, pairs = paired(runs[0], runs[1])
    assert len(pairs) == 10_000
    assert all(name.format(ours) == theirs for theirs, ours in pairs.items())


@pytest.mark.parametrize(("end", "words"), [
    ([], "rank 0 of the other run died"), ([{"error": "ValueError: 3", "steps": 1}], "ended with ValueError: 3"),
])  # fmt: skip
def test_a_run_that_breaks_off_is_not_equal_to_one_that_goes_further(
    one: Path, tmp_path: Path, end: list[Line], words: str
) -> None:
    """A run that ends earlier as it was asked to is, in the steps that both have."""

    def one_step(line: Line, rank: int) -> Iterable[Line]:
        return [line | each for each in end] if line["e"] == "end" else [line] * (line.get("step", 1) < 2)

    asked = _rewritten(one, tmp_path / "asked", lambda line, rank: [line | {"steps": 1}] * (line["e"] == "end")
                       or one_step(line, rank))  # fmt: skip
    assert invoked("diff", one, asked, code=0).output.splitlines()[-1].startswith("EQUAL")
    broken = _rewritten(one, tmp_path / "broken", one_step)
    for pair in ((one, broken), (broken, one)):
        said = invoked("diff", *pair, code=3).output.splitlines()[-1]
        assert "both agree up to step 1, and then rank 0 of the " in said
    assert words in invoked("diff", one, broken, code=3).output
