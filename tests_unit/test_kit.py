"""The kit of adapters: links lead there and back, an untried version says so and falls back, the example is short."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.court.judge import ending
from contracts.court.party import OnTheStand
from contracts.spec import MOVED, Moved, NotOffered, Unreachable
from contracts.stacks.kit.moved import there
from contracts.stacks.kit.versions import FallingBack, falls_back, fitted, labels
from contracts.stacks.protocol import PROTOCOL
from contracts.stacks.reference.stack import Reference
from contracts.stacks.serve import reply
from tests_unit._parties.running import ROOT, environment, metadata

TRIED = ("1.0", "1.1")


def _of_the_suite(name: str) -> object:
    """A function whose code is the suite's, so that its last frame is the adapter's."""
    there = ROOT / "contracts/stacks/kit/of_a_test.py"
    scope: dict[str, object] = {}
    exec(compile(f"def answer(given):\n    return {name}\n", str(there), "exec"), scope)
    return scope["answer"]


@pytest.mark.parametrize("touch", ["given.gone", "given.upper(wide=1)", "{}[given]", "__import__('no_such_package')",
                                   "__import__('importlib').import_module('no_such_package.part')"])  # fmt: skip
def test_a_name_missing_from_an_untried_version_makes_the_question_not_offered(touch: str) -> None:
    answer = falls_back(_of_the_suite(touch), "stack 2.0", TRIED)  # type: ignore[arg-type]
    with pytest.raises(NotOffered, match=r"stack 2\.0 was never tried, 1\.0, 1\.1 were, and the adapter does not find"):
        answer("text")


def test_an_error_of_the_package_is_reported_as_it_is() -> None:
    def broken(given: str) -> str:
        raise KeyError(given)

    with pytest.raises(KeyError):
        falls_back(broken, "stack 2.0", TRIED)("text")


@pytest.mark.parametrize("touch", ["__import__('broken_inside')", "__import__('importlib').import_module({!r})"])
def test_an_import_error_within_the_package_is_reported_as_it_is(
    touch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_inside.py").write_text("from json import no_such_name\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    answer = falls_back(_of_the_suite(touch.format("broken_inside")), "stack 2.0", TRIED)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match="no_such_name"):
        answer("text")


def test_a_shim_without_its_target_makes_the_question_not_offered_with_its_message() -> None:
    def shimmed() -> None:
        raise Unreachable("could not reach the rounding of forward")

    with pytest.raises(NotOffered, match="could not reach the rounding of forward"):
        falls_back(shimmed, "stack 2.0", TRIED)()


def test_a_failed_attribute_lookup_inside_the_package_makes_the_question_not_offered() -> None:
    class Model:
        def __getattr__(self, name: str) -> str:
            raise AttributeError(f"a model has no {name}")

    with pytest.raises(NotOffered, match="AttributeError: a model has no gone"):
        falls_back(_of_the_suite("given.gone"), "stack 2.0", TRIED)(Model())  # type: ignore[arg-type]


def test_a_configuration_that_the_package_rejects_is_not_offered() -> None:
    def built(given: str) -> None:
        with fitted("a configuration"):
            raise ValueError(f"unknown\n  {given}")

    def declined() -> None:
        with fitted("a configuration"):
            raise NotOffered("it has no such layer", "stack")

    with pytest.raises(NotOffered, match="Misfit: a configuration: ValueError: unknown wide"):
        falls_back(built, "stack 2.0", TRIED)("wide")
    with pytest.raises(NotOffered, match=r"^it has no such layer$"):
        falls_back(declined, "stack 2.0", TRIED)()


def test_refused_and_not_offered_errors_pass_through_unchanged() -> None:
    class Answers:
        offers = frozenset({"blocks"})

        def blocks(self) -> None:
            raise NotOffered("it has no blocks", "stack")

    with pytest.raises(NotOffered, match=r"^it has no blocks$") as raised:
        FallingBack(Answers(), "stack 2.0", TRIED).blocks()
    assert raised.value.lack == "stack"


def test_labels_mark_an_untried_version_as_untried() -> None:
    said = {"train": "shimmed: the device", "built": ""}
    assert labels(said, "1.1", TRIED) == said
    assert labels(said, "2.0", TRIED) == {
        "train": "untried: 2.0 was never tried, 1.0, 1.1 were; shimmed: the device",
        "built": "untried: 2.0 was never tried, 1.0, 1.1 were",
    }


def test_an_untried_version_of_a_package_claims_nothing_and_answers_what_it_can(tmp_path: Path) -> None:
    """Of transformers there is only the name: every answer falls back, and none is raw Python."""
    metadata(tmp_path, "transformers", "9.9.9")
    (tmp_path / "transformers.py").write_text("", encoding="utf-8")
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from contracts.harness.parties import load
from contracts.spec.errors import NotOffered
from contracts.spec.recipe import Recipe
small = Recipe(name="small", family="dense", pattern="AE", depth=2, hidden=32, ffn_hidden=32, heads=4, kv_groups=2,
               seq_length=8)
from contracts.spec.training import Session
stack = load("transformers")
assert stack.version.startswith("9.9.9+files.") and not stack.abilities.claims and "train" in stack.offers
assert all(words.startswith(f"untried: {{stack.version}} was never tried, 5.23.0") for words in stack.labels.values())
for ask in (lambda: stack.block_weights(small, 0, "nemo_native"), lambda: stack.train(Session(recipe=small, steps=0))):
    try:
        ask()
    except NotOffered as declined:
        print(declined.lack, declined)
"""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("its answers need torch")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True,
                          check=False, timeout=120)  # fmt: skip
    told = done.stdout.splitlines()
    assert len(told) == 2, done.stdout + done.stderr
    assert all(
        re.match(r"adapter transformers 9\.9\.9\+files\.\w+ was never tried, 5\.23\.0", each) for each in told
    ), told
    assert "Traceback" not in done.stderr


def test_the_adapter_of_the_guide_is_short_and_computes_nothing() -> None:
    text = (ROOT / "docs/examples/toy_trainer/lane.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert "autograd" not in text
    assert "cross_entropy" not in text


@pytest.mark.parametrize(("touch", "told"), [
    ("given.codecz", "looked for codecz in json, which has codecs"),
    ("__import__('json.decoders')", "looked for decoders in json, which has decoder"),
    ("given.JSONDecoder(hook=1)", "looked for hook in json.decoder.JSONDecoder, which has object_hook"),
])  # fmt: skip
def test_a_moved_name_is_reported_with_where_it_was_looked_for_and_what_is_there(touch: str, told: str) -> None:
    """And a case of it is not run: a fork that renames what is asked of it is not conformant for that."""
    answer = falls_back(_of_the_suite(touch), "stack 2.0", TRIED)  # type: ignore[arg-type]
    with pytest.raises(Moved, match=re.escape(told)) as caught:
        answer(json)
    stand = OnTheStand(Reference(), (), ("blocks",))
    assert ending(caught.value, stand) == ("not run", str(caught.value))
    assert ending(NotOffered("of another kind"), stand)[0] == "not offered"
    error = ImportError("cannot import name 'loader' from 'json' (there.py)")
    assert there(error).startswith("looked for loader in json, which has load")


def test_a_moved_name_is_reported_by_a_stack_in_another_process_too() -> None:
    class Fork(Reference):
        def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
            raise Moved("looked for build in forked, which has made")

    line = json.dumps({"protocol": PROTOCOL, "id": 1, "question": "blocks", "arguments": {"pattern": "AE", "depth": 2}})
    assert reply(Fork(), line)["lack"] == MOVED
