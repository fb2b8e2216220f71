"""What an adapter answers to `trace`: runs of a script, each made once, some after others."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from contracts.observe.trace import read  # noqa: E402
from contracts.spec import NotOffered  # noqa: E402
from contracts.stacks.kit.traces import Script, observed  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.slow]

SCRIPT = """
import os, sys, torch
net, kept = torch.nn.Linear(2, 1), sys.argv[1]
if "--load" in sys.argv:
    net.load_state_dict(torch.load(kept))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    net(torch.ones(3, 2)).sum().backward()
    optimizer.step()
if os.environ.get("RANK") == "0" and "--load" not in sys.argv:
    torch.save(net.state_dict(), kept)
"""


def _runs(script: Path) -> dict[str, Script]:
    words = (str(script), "{kept}/net.pt")
    return {
        "judged": Script(words=words, ranks=2),
        "whole": Script(words=words),
        "resumed": Script(words=(*words, "--load"), before="whole"),
        "lent": Script(words=words, options=("--weights-from", "{before}"), before="kept"),
        "kept": Script(words=words, options=("--keep-weights",)),
        "dies": Script(words=(str(script.with_name("missing.py")),)),
    }


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Script]:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    return _runs(tmp_path / "train.py")


def test_a_stacks_run_has_all_of_its_ranks_and_is_started_once(
    runs: dict[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher around this process is not the script's."""
    for name, value in {"RANK": "5", "WORLD_SIZE": "9", "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    trace = observed("ours", runs, "judged")
    assert [(rank.rank, rank.end and rank.end["steps"]) for rank in read(Path(trace)).ranks] == [(0, 2), (1, 2)]
    assert observed("ours", runs, "judged") == trace


@pytest.mark.parametrize(("run", "before", "kind"), [("resumed", "whole", "updated"), ("lent", "kept", "weight")])
def test_a_resumed_run_begins_with_the_weights_of_the_one_before(
    runs: dict[str, Script], run: str, before: str, kind: str
) -> None:
    """Resumed, with the weights that the one before ended with; lent, with those that it began with."""
    later, earlier = (read(Path(observed("ours", runs, each))).ranks[0] for each in (run, before))
    step = 2 if kind == "updated" else 1
    want = {line["name"]: line["bits"] for line in earlier.of(kind) if line["step"] == step}
    assert want
    assert {line["name"]: line["bits"] for line in later.of("weight") if line["step"] == 1} == want


def test_a_run_that_a_stack_does_not_have_is_not_offered(runs: dict[str, Script]) -> None:
    with pytest.raises(NotOffered, match="ours: its script has no run 'spread'"):
        observed("ours", runs, "spread")


def test_a_missing_script_of_a_stack_is_reported(runs: dict[str, Script]) -> None:
    with pytest.raises(RuntimeError, match=r"nothing was observed of .*missing\.py"):
        observed("ours", runs, "dies")
