"""The kit of adapters where it has tensors: links lead there and back, a run is put together, a table is read."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="links are of tensors")

from contracts.instruments import numerics  # noqa: E402
from contracts.law._support.recipes import DENSE  # noqa: E402
from contracts.law._support.training_run import batch  # noqa: E402
from contracts.law.recipe.observable_features import BUNDLES  # noqa: E402
from contracts.spec import NotOffered, Refused, Session  # noqa: E402
from contracts.stacks.kit import links, runs, tables  # noqa: E402
from contracts.stacks.reference.stack import Reference  # noqa: E402
from tests_unit._parties.running import ROOT  # noqa: E402

pytestmark = pytest.mark.slow


def test_separate_expert_tensors_are_stacked_and_split_and_an_incomplete_stack_is_left_out() -> None:
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


def test_links_convert_tensors_to_the_stacks_layout_and_back() -> None:
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


def test_a_link_can_be_moved_into_a_submodule_and_skips_incomplete_tensors() -> None:
    link = links.joined("qkv", ("q", "k"), (1, 1)).within("layers.3.", "layers.6.")
    assert (link.theirs, link.ours) == ("layers.3.qkv", ("layers.6.q", "layers.6.k"))
    assert links.to_theirs({"layers.6.q": torch.zeros(1, 2)}, [link]) == {}
    depthwise = links.depthwise("conv", "xb", (2, 1))
    theirs = links.to_theirs({"x": torch.ones(2, 4), "b": torch.zeros(1, 4)}, [depthwise])
    assert theirs["conv"].shape == (3, 1, 4)
    assert {name: tuple(each.shape) for name, each in links.to_canonical(theirs, [depthwise]).items()} == {
        "x": (2, 4), "b": (1, 4),
    }  # fmt: skip


def test_every_name_that_does_not_fit_is_refused_at_once() -> None:
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


def test_a_link_of_another_shape_names_the_tensor_and_what_it_should_be_made_of() -> None:
    for wrong in (links.joined("qkv", ("q", "k"), (4, 3)), links.grouped("qkv", ("q", "k"), 3, (1, 1)),
                  links.ordered("qkv", "q", (2, 1, 0)), links.depthwise("qkv", ("q",), (8,)),
                  links.joined("qkv", ("q", "k", "v"), (4, 4))):  # fmt: skip
        with pytest.raises(ValueError, match=r"qkv \(8, 2\) is not q"):
            links.to_canonical({"qkv": torch.zeros(8, 2)}, [wrong])


def test_every_link_that_does_not_match_the_model_is_named_before_any_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/examples/toy_trainer")
    from lane import Stack  # type: ignore[import-not-found]

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


def test_a_run_gets_fixed_rates_and_a_given_optimizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/examples/toy_trainer")
    from lane import Stack, Toy  # type: ignore[import-not-found]

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


def test_the_table_is_read_off_names_shapes_and_dtypes() -> None:
    """For every family and feature it says what the reference says of the same tensors, without the recipe."""
    for words, (recipe, mode, _, _) in BUNDLES.items():
        want = Reference().built(recipe, mode)
        held = numerics.tensors(Reference().initial(recipe, mode))
        buffers = {name: held.pop(name) for name in want.buffers}
        found = tables.built(held, buffers, {row.name: row.weight_decay for row in want.parameters})
        assert (found.layers, found.features, found.buffers) == (want.layers, want.features, want.buffers), words
        read = {row.name: (row.shape, row.dtype, row.role, row.layer) for row in found.parameters}
        assert read == {row.name: (row.shape, row.dtype, row.role, row.layer) for row in want.parameters}, words


def test_a_parameter_of_no_optimizer_has_no_rule_and_each_its_own_dtype() -> None:
    held = {"head.weight": torch.zeros(3, 2, dtype=torch.bfloat16), "norm.weight": torch.zeros(2)}
    head, norm = tables.built(held, {}, {"head.weight": 0.1}).parameters
    assert (head.dtype, head.optimizer, head.weight_decay, set(head.state.values())) == (
        "bfloat16", "adamw", 0.1, {"bfloat16"},
    )  # fmt: skip
    assert (norm.dtype, norm.optimizer, norm.weight_decay, norm.state) == ("float32", None, 0.0, {})
