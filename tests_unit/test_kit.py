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
from tests_unit._parties.running import ROOT, environment

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="links are of tensors")
TRIED = ("1.0", "1.1")


# versions
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
    told = tmp_path / "transformers-9.9.9.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 9.9.9\n", encoding="utf-8")
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


# names
@pytest.mark.slow
@needs_torch
def test_separate_expert_tensors_are_stacked_and_split_and_an_incomplete_stack_is_left_out() -> None:
    import torch

    from contracts.stacks.kit import links

    ours = {"w": torch.arange(12.0).reshape(3, 2, 2)}
    each = links.of_each("experts.{}.up", "w", 3)
    theirs = links.to_theirs(ours, each)
    assert [*theirs] == ["experts.0.up", "experts.1.up", "experts.2.up"]
    assert torch.equal(theirs["experts.1.up"], ours["w"][1])
    assert torch.equal(links.to_canonical(theirs, each)["w"], ours["w"])
    del theirs["experts.2.up"]
    assert links.to_canonical(theirs, each) == {}
    links.fitting(each, ["experts.0.up", "experts.1.up", "experts.2.up"])
    with pytest.raises(ValueError, match="'w' is linked twice"):
        links.fitting([*each, links.same("up", "w")], ["experts.0.up", "experts.1.up", "experts.2.up", "up"])


@pytest.mark.slow
@needs_torch
def test_links_convert_tensors_to_the_stacks_layout_and_back() -> None:
    import torch

    from contracts.stacks.kit import links

    q, k, v = (
        torch.arange(8.0).reshape(4, 2),
        10 + torch.arange(4.0).reshape(2, 2),
        20 + torch.arange(4.0).reshape(2, 2),
    )
    given = {"q": q, "k": k, "v": v}
    rows = {
        "side by side": (links.joined("w", "qkv", (4, 2, 2)), [*q.tolist(), *k.tolist(), *v.tolist()]),
        "by group": (links.grouped("w", "qkv", 2, (2, 1, 1)), [q[:2], k[:1], v[:1], q[2:], k[1:], v[1:]]),
        "in pairs": (links.ordered("w", "q", links.paired(4)), q[[0, 2, 1, 3]].tolist()),
        "in pairs, two heads": (links.ordered("w", "q", links.of_heads(links.paired(2), 2)), q.tolist()),
        "behind others": (links.ordered("w", "q", links.paired(2, 2)), q.tolist()),
        "alone": (links.same("w", "q"), q.tolist()),
    }
    for words, (link, expected) in rows.items():
        flat = [row for each in expected for row in (each.tolist() if isinstance(each, torch.Tensor) else [each])]
        theirs = links.to_theirs(given, [link])
        assert theirs["w"].tolist() == flat, words
        for name, back in links.to_canonical(theirs, [link]).items():
            assert torch.equal(back, given[name]), (words, name)


@pytest.mark.slow
@needs_torch
def test_a_link_can_be_moved_into_a_submodule_and_skips_incomplete_tensors() -> None:
    import torch

    from contracts.stacks.kit import links

    link = links.joined("qkv", ("q", "k"), (1, 1)).within("layers.3.", "layers.6.")
    assert (link.theirs, link.ours) == ("layers.3.qkv", ("layers.6.q", "layers.6.k"))
    assert links.to_theirs({"layers.6.q": torch.zeros(1, 2)}, [link]) == {}
    depthwise = links.depthwise("conv", "xb", (2, 1))
    taps = {"x": torch.ones(2, 4), "b": torch.zeros(1, 4)}
    theirs = links.to_theirs(taps, [depthwise])
    assert theirs["conv"].shape == (3, 1, 4)
    assert {name: tuple(each.shape) for name, each in links.to_canonical(theirs, [depthwise]).items()} == {
        "x": (2, 4), "b": (1, 4),
    }  # fmt: skip


@pytest.mark.slow
@needs_torch
def test_every_name_that_does_not_fit_is_refused_at_once() -> None:
    import torch

    from contracts.instruments import numerics
    from contracts.spec import Refused
    from contracts.stacks.kit import links, runs

    into = {"a": torch.zeros(2), "b": torch.zeros(2)}
    known = [links.same("a", "A"), links.same("b", "B")]
    with pytest.raises(Refused) as refused:
        runs.put("weights", numerics.arrays({"A": torch.zeros(3), "C": torch.zeros(2)}), into, known)
    told = [str(each) for each in refused.value.refusals]
    assert len(told) == 3
    assert "'A': has shape (3,); give (2,)" in told[0]
    assert "'B': is missing" in told[1]
    assert "'C': is no tensor of the model" in told[2]
    assert not into["a"].any()


@pytest.mark.slow
@needs_torch
def test_a_link_of_another_shape_names_the_tensor_and_what_it_should_be_made_of() -> None:
    import torch

    from contracts.stacks.kit import links

    for wrong in (links.joined("qkv", ("q", "k"), (4, 3)), links.grouped("qkv", ("q", "k"), 3, (1, 1)),
                  links.ordered("qkv", "q", (2, 1, 0)), links.depthwise("qkv", ("q",), (8,)),
                  links.joined("qkv", ("q", "k", "v"), (4, 4))):  # fmt: skip
        with pytest.raises(ValueError, match=r"qkv \(8, 2\) is not q"):
            links.to_canonical({"qkv": torch.zeros(8, 2)}, [wrong])


@pytest.mark.slow
@needs_torch
def test_every_link_that_does_not_match_the_model_is_named_before_any_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/examples/toy_trainer")
    from dataclasses import replace
    from typing import Any

    from lane import Stack  # type: ignore[import-not-found]

    from contracts.law._support.recipes import DENSE

    class Mistaken(Stack):  # type: ignore[misc]
        def links(self, letter: str, recipe: Any) -> Any:
            for each in super().links(letter, recipe):
                if each.theirs == "attention.out.weight":
                    yield replace(each, theirs="attention.ouT.weight")
                elif each.theirs != "mlp.up.weight":
                    yield each

    shallow = replace(DENSE, depth=2)
    with pytest.raises(ValueError, match="do not fit") as raised:
        Mistaken().built(shallow, "nemo_native")
    assert str(raised.value) == (
        "the links do not fit: 'blocks.0.attention.ouT.weight' is no tensor of the stack, "
        "'blocks.0.attention.out.weight' is; 'blocks.0.attention.out.weight' of the stack has no link; "
        "'blocks.0.mlp.up.weight' of the stack has no link"
    )
    with pytest.raises(ValueError, match=r"'attention\.ouT\.weight' is no tensor of the stack"):
        Mistaken().block_weights(shallow, 0, "nemo_native")
    assert len(Stack().built(shallow, "nemo_native").parameters) == 14


@pytest.mark.slow
@needs_torch
def test_a_run_gets_fixed_rates_and_a_given_optimizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/examples/toy_trainer")
    from dataclasses import replace

    import torch
    from lane import Stack, Toy  # type: ignore[import-not-found]

    from contracts.law._support.recipes import DENSE
    from contracts.law._support.training_run import batch
    from contracts.spec import Session

    recipe = replace(DENSE, depth=2)
    session = Session(recipe=recipe, steps=1, batches=(batch("noted", recipe=recipe),),
                      observe=frozenset({"gradients", "optimizer"}))  # fmt: skip
    stack = Stack()
    with pytest.raises(NotOffered, match="all its parameters have one rate"):
        stack.train(replace(session, rates={"embedding.weight": 0.5}))
    monkeypatch.setattr(Toy, "note", lambda *_: None)
    with pytest.raises(RuntimeError, match=r"no gradients were noted of step 1: call note\(1\) before it clips"):
        stack.train(session)
    monkeypatch.undo()
    mine = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    mine.param_groups[0]["params"][0].grad = torch.ones(2)
    mine.step()
    monkeypatch.setattr(Toy, "optimizers", lambda self: (mine,))
    assert stack.train(session).steps[0].optimizer == {}
    assert {row.optimizer for row in stack.built(recipe, "nemo_native").parameters} == {None}


# tables
@pytest.mark.slow
@needs_torch
def test_the_table_is_read_off_names_shapes_and_dtypes() -> None:
    """For every family and feature it says what the reference says of the same tensors, without the recipe."""
    from contracts.instruments import numerics
    from contracts.law.recipe.observable_features import BUNDLES
    from contracts.stacks.kit import tables
    from contracts.stacks.reference.stack import Reference

    for words, (recipe, mode, _, _) in BUNDLES.items():
        want = Reference().built(recipe, mode)
        held = numerics.tensors(Reference().initial(recipe, mode))
        buffers = {name: held.pop(name) for name in want.buffers}
        found = tables.built(held, buffers, {row.name: row.weight_decay for row in want.parameters})
        assert (found.layers, found.features, found.buffers) == (want.layers, want.features, want.buffers), words
        read = {row.name: (row.shape, row.dtype, row.role, row.layer) for row in found.parameters}
        assert read == {row.name: (row.shape, row.dtype, row.role, row.layer) for row in want.parameters}, words


@pytest.mark.slow
@needs_torch
def test_a_parameter_of_no_optimizer_has_no_rule_and_each_its_own_dtype() -> None:
    import torch

    from contracts.stacks.kit import tables

    held = {"head.weight": torch.zeros(3, 2, dtype=torch.bfloat16), "norm.weight": torch.zeros(2)}
    head, norm = tables.built(held, {}, {"head.weight": 0.1}).parameters
    assert (head.dtype, head.optimizer, head.weight_decay, set(head.state.values())) == (
        "bfloat16", "adamw", 0.1, {"bfloat16"},
    )  # fmt: skip
    assert (norm.dtype, norm.optimizer, norm.weight_decay, norm.state) == ("float32", None, 0.0, {})


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
