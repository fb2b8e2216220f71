"""A mutant that is one function changes what it names while it answers, and nothing else."""

import functools
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from contracts.law._bugs import broken as broken_module
from contracts.law._bugs.broken import broken
from contracts.spec import Degrees
from contracts.stacks.reference import stack as reference_module
from contracts.stacks.reference.answers import bringup
from contracts.stacks.reference.stack import Reference


class Base:
    def doubled(self, number: int) -> int:
        return 2 * number

    @staticmethod
    def tripled(number: int) -> int:
        return 3 * number

    @classmethod
    def named(cls) -> str:
        return cls.__name__

    @property
    def size(self) -> int:
        return 4


class Derived(Base):
    pass


def _in_the_answer(made: Any, monkeypatch: pytest.MonkeyPatch, look: Any) -> Any:
    """What `look` gives while a mutant, made anew, answers a question."""
    monkeypatch.setattr(Reference, "host", lambda self, name: look())
    return made()().host("any")


def _mutant(owner: Any, name: str, change: Any) -> Any:
    change.__doc__ = "A bug."
    return lambda: broken(owner, name)(change)


def test_an_inherited_function_is_replaced_on_the_owner_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _mutant(Derived, "doubled", lambda doubled, self, number: doubled(self, number) + 1)
    assert _in_the_answer(made, monkeypatch, lambda: (Derived().doubled(2), Base().doubled(2))) == (5, 4)
    assert Derived().doubled(2) == 4
    assert "doubled" not in vars(Derived)


@pytest.mark.parametrize(
    ("name", "change", "look", "want"),
    [
        ("tripled", lambda tripled, number: tripled(number) + 1, lambda: Base.tripled(2), 7),
        ("named", lambda named, cls: named(cls) + "!", lambda: (Derived.named(),), ("Derived!",)),
        ("size", lambda size, self: size(self) + 1, lambda: Base().size, 5),
    ],
)
def test_a_replaced_method_classmethod_or_property_stays_one(
    name: str, change: Any, look: Any, want: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = vars(Base)[name]
    assert _in_the_answer(_mutant(Base, name, change), monkeypatch, look) == want
    assert vars(Base)[name] is former


def test_a_bug_is_applied_once_if_a_question_asks_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _mutant(Base, "doubled", lambda doubled, self, number: doubled(self, number) + 1)
    monkeypatch.setattr(Reference, "preset_names", lambda self: (str(Base().doubled(2)),))
    monkeypatch.setattr(Reference, "host", lambda self, name: (*self.preset_names(), Base().doubled(2)))
    assert made()().host("any") == ("5", 5)


def test_the_bug_is_removed_after_an_answer_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _mutant(Base, "doubled", lambda doubled, self, number: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        _in_the_answer(made, monkeypatch, lambda: Base().doubled(2))
    assert Base().doubled(2) == 4


def test_a_cached_result_of_the_reference_is_not_used_under_a_bug() -> None:
    given = (Degrees(), 2, "own-axis")
    sound = reference_module._group_calls(*given)  # type: ignore[arg-type]  # a layout

    def none(group_calls: Any, topology: Any) -> tuple[()]:
        """No rank makes a group."""
        return ()

    made = broken(reference_module.mesh, "group_calls")(none)
    assert sound
    assert made().group_calls(*given, 0) == ()
    assert Reference().group_calls(*given, 0) == sound


def test_caches_that_no_bug_can_change_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    process = functools.cache(object)
    monkeypatch.setattr(bringup, "process", process, raising=False)
    kept = process()
    broken_module._forget()
    assert process() is kept


def test_a_bug_in_a_stacks_own_method_makes_a_subclass() -> None:
    def nobody(host: Any, self: Any, name: str) -> Any:
        """Every host is the same one."""
        return host(self, "bench-1@us-west1-c")

    made = broken(Reference, "host")(nobody)
    assert issubclass(made, Reference)
    assert made.__name__ == "nobody"
    assert made().host("any") == "bench-1@us-west1-c"


def test_a_mutant_can_be_unpickled_in_another_process() -> None:
    from contracts.bringup.law.comparison import run_comparison_bugs as run_comparison

    mutant = run_comparison.compares_by_region
    program = f"import {mutant.__module__} as m; print(m.{mutant.__qualname__}.__doc__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == mutant.__doc__


class _Doubles(Base):
    """A bug in two functions."""

    def doubled(self, number: int) -> int:
        return super().doubled(number) + 1

    def halved(self, number: int) -> int:
        return self.doubled(number) // 4


@dataclass(frozen=True)
class Frozen:
    size: int = 4


def _derived(change: type) -> Any:
    change.__module__ = "contracts.law.here_bugs"
    return lambda: broken_module.derived()(change)


def test_a_derived_class_replaces_its_base_in_new_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    class Written(Base):
        pass

    monkeypatch.setattr(sys.modules[__name__], "Written", Written, raising=False)
    kinds = (Base, type("Made", (Base,), {}), Written)
    assert _in_the_answer(_derived(_Doubles), monkeypatch, lambda: [each().doubled(2) for each in kinds]) == [5, 5, 4]
    assert Base().doubled(2) == 4


def test_a_frozen_dataclass_can_be_derived_from(monkeypatch: pytest.MonkeyPatch) -> None:
    change = type("Changed", (Frozen,), {"__doc__": "A bug.", "said": lambda self: self.size})
    assert _in_the_answer(_derived(change), monkeypatch, lambda: Frozen(5).said()) == 5  # type: ignore[attr-defined]


def test_a_bug_in_a_subclass_of_the_reference_derives_from_that_subclass(monkeypatch: pytest.MonkeyPatch) -> None:
    _Doubles.__module__ = "contracts.law.here_bugs"
    made = _mutant(_Doubles, "halved", lambda halved, self, number: halved(self, number) + 10)
    assert _in_the_answer(made, monkeypatch, lambda: (Base().halved(2), Base().doubled(2))) == (11, 5)  # type: ignore[attr-defined]
    assert [name for _, name in made().replaces] == ["doubled"]
