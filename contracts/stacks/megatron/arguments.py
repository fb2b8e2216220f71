"""Reads an argv with Megatron's own parser, validation and configuration. Runs inside Megatron's environment.

There are three stages, and each may refuse: the command line is parsed, the arguments are validated against each other
and the world, and the model configuration is built from them. Every reading runs in a fork of the process, because
validation changes globals and the environment.
"""

import argparse
import contextlib
import enum
import functools
import importlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.spec import Provenance, Reading, Stage, Unreachable, shown
from contracts.stacks.forked_call import in_a_fork

MODULE = "megatron.training.arguments"
HOPPER = 9  # compute capability of an H200; validation asks for it under TP, CP and grouped GEMM
TRANSFORMER_ENGINE = "2.14.0"  # presumed where an argv needs one: it is never installed here, and is on every H200

FUSED = ("megatron.core.models.common.embeddings.rope_utils", "megatron.core.transformer.moe.moe_utils")

# Megatron's messages about a missing package or device. None of them is about the argv.
ENVIRONMENT = re.compile(
    r"install (TE|Transformer ?Engine|apex|with pip)|pip install|not installed|"
    r"(with|requires?|least|Please install) (TE|Transformer ?Engine)\b|TE (version )?(>=|\d)|TE version|"
    r"not compiled with CUDA|No CUDA GPUs|NVIDIA driver|CUDA error",
    re.IGNORECASE,
)

Values = dict[str, str]


@dataclass(kw_only=True)
class Outcome:
    """The stage at which one run of the parser stopped, and the fields it ended with, as text.

    `touched`: whether validation asked the fake device. `warned`: what rank 0 is warned of; any other rank is not.
    """

    stage: Stage
    message: str
    args: Values
    config: Values
    touched: bool
    warned: list[str]

    @property
    def lacks(self) -> bool:
        """Whether it stopped because a package or a device is missing."""
        missing = self.message.startswith(("ImportError", "ModuleNotFoundError")) or ENVIRONMENT.search(self.message)
        return self.stage != "accepted" and bool(missing)


@dataclass(kw_only=True)
class Given:
    """One flag of the argv, with its position, its words and its value."""

    flag: str
    dest: str
    words: slice
    asked: str | None
    default: str


def read(argv: Sequence[str], env: Mapping[str, str], world: int, version: str, *, shimmed: bool) -> Reading:
    """How Megatron reads an argv under some environment variables and a world size.

    If Megatron stops only because Transformer Engine is missing, the argv is read again as if it were installed. The
    message then says so, even if the argv is accepted.

    Raises:
        Unreachable: it stopped because something is not installed here, which says nothing about the argv.
    """
    run = functools.partial(_outcome, env=env, world=world)
    outcome = run(argv)
    presumed = ""
    if outcome.lacks:
        run = functools.partial(run, presume=True)
        outcome = run(argv)
        presumed = f"Transformer Engine {TRANSFORMER_ENGINE} presumed"
    if outcome.lacks:
        raise Unreachable(f"Megatron-Core stopped at {outcome.stage} over its environment: {outcome.message}")
    provenance: Provenance = "shimmed" if shimmed or presumed or outcome.touched else "unpatched"
    dropped = _dropped(argv, outcome, run) if outcome.stage == "accepted" else {}
    configured = {f"config.{name}": value for name, value in outcome.config.items()}
    return Reading(
        stage=outcome.stage,
        message=f"{outcome.message} ({presumed})".strip() if presumed else outcome.message,
        values=outcome.args | configured,
        dropped=dropped,
        warned=tuple(outcome.warned),
        version=version,
        provenance=provenance,
    )


def flags() -> list[dict[str, Any]]:
    """Every flag of the live parser, in the form of the flag table that ships with this suite."""
    return [
        {
            "names": list(action.option_strings),
            "dest": action.dest,
            "type": None if action.type is None else getattr(action.type, "__name__", str(action.type)),
            "default": _plain(action.default),
            "choices": None if action.choices is None else [_plain(choice) for choice in action.choices],
            "nargs": action.nargs,
            "required": action.required,
        }
        for action in _parser()._actions
        if action.dest != "help"
    ]


def _plain(value: Any) -> Any:
    """A default or a choice in JSON; members of an enumeration by name."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    plain = value is None or isinstance(value, (bool, int, float, str))
    return value if plain and not isinstance(value, enum.Enum) else as_text(value)


def _outcome(argv: Sequence[str], env: Mapping[str, str], world: int, presume: bool = False) -> Outcome:
    """Parse, validate and configure in a fork."""
    return Outcome(**json.loads(in_a_fork(lambda: json.dumps(vars(_run(argv, env, world, presume))))))


def _run(argv: Sequence[str], env: Mapping[str, str], world: int, presume: bool) -> Outcome:
    arguments: Any = importlib.import_module(MODULE)
    if presume:
        _presume_transformer_engine()
    parser, touched = _parser(), _stand_in_for_a_device(arguments)
    arguments.add_megatron_arguments = lambda empty: parser  # the same parser, built once: 0.3 s
    os.environ.update({**env, "WORLD_SIZE": str(world), "RANK": "1", "LOCAL_RANK": "1"})  # rank 0 prints every argument
    sys.argv = ["megatron", *argv]
    warned: list[str] = []
    arguments.warn_rank_0 = lambda message, *rank: warned.append(str(message))
    args: Any = None
    config: Any = None

    def stop(stage: Stage, message: str) -> Outcome:
        texts = {"args": _texts(args), "config": _texts(config)}
        return Outcome(stage=stage, message=message, **texts, touched=bool(touched), warned=warned)

    stage: Stage = "parse"
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            args = arguments.parse_args()
        stage = "validate"
        arguments.validate_args(args)
        stage = "config"
        config = arguments.core_transformer_config_from_args(args)
    except SystemExit:
        said = complaint.getvalue().strip()
        return stop(stage, said.rpartition(" error: ")[2] or "exits without reading further")
    except Exception as error:
        return stop(stage, f"{type(error).__name__}: {error}")
    return stop("accepted", "")


def _stand_in_for_a_device(arguments: Any) -> list[str]:
    """Let validation find a fake Hopper device. Returns a list that is not empty after validation asked for it."""
    torch = importlib.import_module("torch")
    touched: list[str] = []

    def capability(*device: object) -> tuple[int, int]:
        touched.append("capability")
        return HOPPER, 0

    arguments.get_device_arch_version = lambda: capability()[0]
    torch.cuda.get_device_capability = capability
    return touched


def _presume_transformer_engine() -> None:
    """Let every version check pass, and pretend that every fused kernel exists, as long as none is called."""
    utils: Any = importlib.import_module("megatron.core.utils")
    utils._te_version = importlib.import_module("packaging.version").Version(TRANSFORMER_ENGINE)
    for name in FUSED:
        module: Any = importlib.import_module(name)
        for function in [key for key, value in vars(module).items() if key.startswith("fused_") and value is None]:
            setattr(module, function, _absent)


def _absent(*arguments: object, **named: object) -> None:
    raise RuntimeError("this kernel of Transformer Engine was only presumed")


def _dropped(argv: Sequence[str], whole: Outcome, run: Callable[[Sequence[str]], Outcome]) -> dict[str, str]:
    """Every flag that had no effect, or whose value was overridden, and why.

    It removes each flag and reads the rest: if no argument and no field of the configuration changes, the flag was
    dropped. Not reported: a flag that states a default, a flag without which Megatron refuses, and a flag whose value
    went to another field.
    """
    given = _given(argv)
    dropped = {}
    for index, each in enumerate(given):
        later = any(other.dest == each.dest for other in given[index + 1 :])
        if later and not _collects(each):
            dropped[each.flag] = f"{each.asked} is given again later, and the last one wins"
            continue
        rest = [*argv[: each.words.start], *argv[each.words.stop :]]
        why = _why_dropped(each, whole, run(rest))
        if why:
            dropped[each.flag] = why
    return dropped


def _why_dropped(given: Given, whole: Outcome, rest: Outcome) -> str | None:
    if rest.stage != "accepted" or given.asked is None:
        return None  # Megatron refuses without it, so it had an effect
    ended = whole.args.get(given.dest)
    configured = whole.config.get(given.dest)
    changed = {name for name in whole.args if whole.args[name] != rest.args.get(name)}
    configuration = {name for name in whole.config if whole.config[name] != rest.config.get(name)}
    if not changed and not configuration:
        if given.asked in (ended, given.default):
            return None  # states the default
        return f"asks for {given.asked}, ends as {ended}, and nothing changes when it is left out"
    moved = [whole.args[name] for name in changed] + [whole.config[name] for name in configuration]
    if ended != given.asked and given.dest not in changed and given.asked not in moved:
        return f"asks for {given.asked}, ends as {ended}"
    if changed == {given.dest} and not configuration and configured not in (None, "None", given.asked):
        return f"asks for {given.asked}, but the model is configured with {configured}"
    return None


def _given(argv: Sequence[str]) -> list[Given]:
    """The flags of an argv that the parser accepted, each with its words."""
    parser = _parser()
    known: Mapping[str, argparse.Action] = parser._option_string_actions
    starts = [i for i, word in enumerate(argv) if word.startswith("-") and word.partition("=")[0] in known]
    found = []
    for start, stop in zip(starts, [*starts[1:], len(argv)], strict=True):
        flag = argv[start].partition("=")[0]
        action = known[flag]
        asked = None
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            asked = as_text(getattr(parser.parse_known_args(argv[start:stop])[0], action.dest))
        found.append(
            Given(flag=flag, dest=action.dest, words=slice(start, stop), asked=asked, default=as_text(action.default))
        )
    return found


def _collects(given: Given) -> bool:
    """Whether a repeated flag appends to the earlier value instead of replacing it."""
    return type(_parser()._option_string_actions[given.flag]).__name__ in ("_AppendAction", "_ExtendAction")


_PARSERS: list[argparse.ArgumentParser] = []


def _parser() -> argparse.ArgumentParser:
    """Megatron's real parser, built once per process; forks inherit it."""
    if not _PARSERS:
        build: Callable[[argparse.ArgumentParser], argparse.ArgumentParser]
        build = importlib.import_module(MODULE).add_megatron_arguments
        _PARSERS.append(build(argparse.ArgumentParser(prog="megatron", allow_abbrev=False)))
    return _PARSERS[0]


def prepare() -> None:
    """Import and build what every reading needs, so that forks inherit it."""
    _parser()


def _texts(fields: object) -> Values:
    return {} if fields is None else {name: as_text(value) for name, value in vars(fields).items()}


def as_text(value: object) -> str:
    """A value as text, equal in every process. A list of one element becomes the element, as Megatron reads it."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return as_text(value[0]) if len(value) == 1 else f"[{', '.join(map(as_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{as_text(key)}: {as_text(item)}' for key, item in value.items())}}}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value)
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
    text = str(value)
    return type(value).__name__ if " at 0x" in text else shown(text) if len(text) > 120 else text
