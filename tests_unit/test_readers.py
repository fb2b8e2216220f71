"""Every reader of what others wrote ends as it documents, and soon, whatever it is given.

A few hundred inputs each in every run; 100,000 each with `make fuzz`.
"""

import copy
import datetime
import itertools
import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

import contracts.harness
from contracts.bringup.commands.installation import read_plan, read_table
from contracts.bringup.commands.storage import read_map
from contracts.bringup.commands.triage import Clock
from contracts.bringup.law.manifest.run_states import DETACHED
from contracts.contract import LAW
from contracts.court import deviations, profiles, record
from contracts.harness import detection, families, kill_matrix, telemetry
from contracts.harness.operators import trials
from contracts.harness.selftest import Matrix
from contracts.instruments import safetensors_files
from contracts.law._support.recorded_runs import RECEIPT
from contracts.observe import trace
from contracts.observe.merged import Merged
from contracts.ranks.journal import read_journal
from contracts.spec import (
    Abilities,
    Degrees,
    NotOffered,
    Recipe,
    Refused,
    Unreachable,
    codec,
    fabric,
    manifest,
    pattern,
    questions,
    storage,
)
from contracts.spec.records import Kill
from contracts.spec.redaction import LineRedactor, redact
from contracts.spec.stack_table import release
from contracts.stacks.launched import Launched
from contracts.stacks.megatron.flag_table import FlagTable
from contracts.stacks.protocol import PROTOCOL
from contracts.stacks.reference.launch import overrides
from contracts.stacks.reference.stack import Reference
from contracts.stacks.serve import reply
from tests_unit.gate._recorded_run import TODAY, A, B, declared, recorded

FEW, MANY = 150, 100_000
JUNK = (
    "", "-1", "0", "1e999", "NaN", "null", "true", "[]", "{}", '"', "\\", "9" * 5000, "-0", "1_000", "١", "²", "--",
    "=", "\n", "\t", "*", "(", ")", "[" * 3000, "{" * 3000, "\ud800", "\x00", "\x1b", "\u202e", "\u2028", "\ufeff",
    "'''",
)  # fmt: skip
VALUES: tuple[object, ...] = (
    None, True, 0, -1, 2**63, 10**400, 1.5, "", "x", "\ud800", "NaN", [], [[]], {}, {"a": 1}, [1, "2"], ["a"] * 3,
    "9" * 5000, "2026-02-30", "../../x",
)  # fmt: skip


def edited(random: Random, text: str) -> str:
    """A text after a few edits: a piece cut out, doubled, or replaced by something that readers trip over."""
    for _ in range(random.randint(1, 5)):
        start = random.randint(0, len(text))
        end = min(len(text), start + random.randint(0, 40))
        any_other = "".join(chr(random.choice((random.randrange(128), random.randrange(0x110000)))) for _ in range(4))
        new = random.choice((random.choice(JUNK), any_other[: random.randint(0, 4)], text[start:end] * 2))
        text = text[:start] + new + text[end:]
    return text


def altered(random: Random, text: str) -> str:
    """JSON, one value or one a line, after a value or two of it were replaced, dropped or given another name."""
    lines = _values(text)
    number = random.randrange(len(lines))
    whole = json.loads(lines[number])
    for _ in range(random.randint(1, 3)):
        at = whole
        while isinstance(at, (dict, list)) and at:
            key: Any = random.choice(sorted(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], (dict, list)) or not at[key] or random.getrandbits(1):
                if random.randrange(5):
                    at[key] = copy.deepcopy(random.choice(VALUES))
                elif isinstance(at, dict):
                    at[random.choice(("extra", "", "\ud800"))] = at.pop(key)
                else:
                    del at[key]
                break
            at = at[key]
    return "\n".join([*lines[:number], json.dumps(whole), *lines[number + 1 :], ""])


def _values(text: str) -> list[str]:
    try:
        json.loads(text)
    except ValueError:
        return text.splitlines()
    return [text]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """The reader, an example that it takes, the errors that it documents, and whether the example is JSON."""

    read: Callable[[str], object]
    example: str
    errors: tuple[type[Exception], ...] = (Refused,)
    json: bool = False


def _of(file: Path, reader: Callable[[Path], object]) -> Callable[[str], object]:
    """What reads a file, as a function of its text."""

    def read(text: str) -> object:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        return reader(file)

    return read


def _trace(file: Path) -> None:
    """A trace, read and put together as who judges it does; the sketches are no text."""
    merged = Merged(trace.read(file.parent))
    for step in range(merged.steps + 1):
        for kind in ("weight", "gradient", "updated", "moment"):
            assert merged.tensors(kind, step) is not None
        assert [merged.outputs(step), merged.rows(step), merged.loss(step), merged.data_ranks]


def _hello(text: str) -> None:
    party = object.__new__(Launched)
    party.__dict__.update(command=("x",), _number=1, _complaint="", _persistent=False, _running=None)
    party._introduce(party._open(text.encode("utf-8", "surrogatepass")))


def _argv(text: str) -> object:
    words = tuple(text.split())
    return FlagTable().read_argv(words, {}, 8)


_RUN = recorded((A, "violated"), (B, "holds"), deviations=(declared("pp2-tp2"),))
_RECORD = record.write(_RUN, datetime.date.fromisoformat(TODAY))
_PART = "".join(_RECORD.splitlines(keepends=True)[:-1])
_HELLO = {"protocol": PROTOCOL, "id": 1, "answer": {
    "name": "p", "version": "1", "offers": ["blocks"], "layouts": [], "labels": {"blocks": "x"}, "persistent": False,
    "abilities": codec.encode(Abilities(has=frozenset({"experts"}))), "conventions": {"rope-angles": "float32"},
}}  # fmt: skip
_TENSOR = {"name": "w", "shape": [2], "dtype": "float32", "squares": 1.5, "part": "", "partial": False, "bits": "0a",
           "sketch": 0}  # fmt: skip
_TRACE = "".join(
    json.dumps({"e": kind, **more}) + "\n"
    for kind, more in (
        ("begin", {"version": trace.VERSION, "rank": 0, "world": 1, "command": ["x.py"], "run": "r/0", "shims": ""}),
        ("root", {"number": 0, "type": "M", "replicas": [], "data": [0], "trainable": ["w"], "frozen": []}),
        ("input", {"step": 1, "microbatch": 1, "rows": [7, -7], "random": "0a", "tensors": {"x": [[2], "int64"]}}),
        ("forward", {"step": 1, **_TENSOR, "call": 1, "microbatch": 1, "batched": True}),
        ("loss", {"step": 1, "backward": 1, "value": "nan"}),
        ("clip", {"step": 1, "max": 1.0, "partial": False, "first": True, "norm": 2.0, "names": ["w"]}),
        (
            "group",
            {"step": 1, "optimizer": "SGD 1", "number": 0, "names": ["w"], "lr": 0.1, "told": None, "decay": 0.0},
        ),
        *((kind, {"step": 1, **_TENSOR}) for kind in ("weight", "gradient", "updated")),
        ("moment", {"step": 1, **_TENSOR, "moment": "exp_avg"}),
        ("step", {"step": 1, "backward": 1, "microbatches": 1}),
        ("collectives", {"step": 1, "group": "0-1", "said": ["barrier"], "count": 1, "digest": "0a"}),
        ("end", {"error": "", "full": False, "steps": 1, "unseen": {"sparse": 1}}),
    )
)
_PROOF = {
    "about": {"content": kill_matrix.content(), "tier": "unit", "only": "", "surroundings": {
        "python": "3", "packages": {"torch": "2"}, "cpu": "", "capability": "", "threads": 1, "settings": {},
        "helping": []}},
    **codec.encode(Matrix(
        baseline=_RUN.results, kills=(Kill(mutant="M", of="PAT-01", case="a", fate="killed", words="w"),),
        unguarded=())),
}  # fmt: skip
_TRIAL = codec.dumps(trials.Trial(content="c", change="lost-clone@a.py:3:0", fate="crashed"))


def _export(text: str) -> object:
    """A file of safetensors with this header, over 24 bytes of elements."""
    header = text.encode("utf-8", "surrogatepass")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
        return safetensors_files.read(Path(folder))


_HEADER = json.dumps({
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "F64", "shape": [], "data_offsets": [16, 24]},
})  # fmt: skip
_ALARMS = codec.dumps(
    detection.Alarms(content="c", seed=1, cases=12, held=1, judged=2, red=({"item": "x"},), stack="s")
)
_JOURNAL = '{"start": "a::b"}\n{"of": "a::b", "report": {"when": "call"}}\n{"done": "a::b"}\n{"start": "a::c"}\n'
_ASKED = '{"protocol": "rankproof/1", "id": 1, "question": "blocks", "arguments": {"pattern": "AE", "depth": 4}}'
_SAMPLES = Path(contracts.harness.__path__[0], "samples")
_DEVIATION = "[[deviation]]\n" + "".join(f'{name} = "x"\n' for name in ("id", "case", "reason", "issue", "owner"))
_DEVIATION += 'says = "dp is #, expected #"\nexpires = 2027-01-01\n'
_MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tNV18\tPXB\t0-31\nGPU1\tNV18\t X \tSYS\t0-31\nNIC0\tPXB\tSYS\t X \n"
)
_MOUNTS = "19 1 8:1 / / rw - ext4 /dev/root rw\n" + "".join(
    f"{i} 19 8:{i} / /mnt/{i} rw,relatime shared:1 - ext4 /dev/sd{i} rw\n" for i in range(20, 24)
)
_ARGV = ("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 "
         "--micro-batch-size 1 --global-batch-size 8 --tensor-model-parallel-size 2 --lr 1e-4 --bf16")  # fmt: skip
_STEPS = ('{"step": {"number": 1, "seconds": 2.0, "tokens": 262144, "loss": 9.7, "grad_norm": 3.1}}\n'
          '{"memory": {"rank": 3, "allocated": 1, "reserved": 2}}\n')  # fmt: skip
_LOG = "--api-key abc Authorization: Bearer xyzxyz postgres://u:p@h token = x eyJabcdefgh.abcdefgh wandb login sig="


def _readers(folder: Path) -> Mapping[str, Reader]:
    families.read_checks()  # a profile selects among them
    reference = Reference()
    recipe = codec.dumps(reference.preset("nam56r_h200_bf16_v1", ()))
    tiny = reference.preset("tiny-nam56r", ())
    mesh = codec.dumps(reference.topology(Degrees(tp=2, pp=2), 8, "own-axis"))
    return {
        "pattern": Reader(read=lambda text: pattern.parse(text, 8), example="AEM|EA|EMR"),
        "recipe": Reader(read=lambda text: codec.loads(Recipe, text), example=recipe, json=True),
        "answer": Reader(read=lambda text: codec.loads(questions()["topology"].answer, text), example=mesh, json=True),
        "hello": Reader(read=_hello, example=json.dumps(_HELLO), errors=(Unreachable, NotOffered, Refused), json=True),
        "record": Reader(read=record.read, example=_RECORD),
        "part of a record": Reader(read=record.read_part, example=_PART),
        "deviations": Reader(read=_of(folder / "d.toml", deviations.load), example=_DEVIATION),
        "mountinfo": Reader(read=storage.parse_mountinfo, example=_MOUNTS),
        "fabric": Reader(read=fabric.read_fabric, example=_MATRIX),
        "manifest": Reader(read=manifest.loads, example=codec.dumps(DETACHED), json=True),
        "argv": Reader(read=_argv, example=_ARGV, errors=(Refused, NotOffered)),
        "read-back": Reader(
            read=lambda text: Reference().read_back(tuple(text.split())),
            example="--recipe tiny-nam56r --mode author_dp --tp 2 --sp --set seed=4",
            errors=(Refused, NotOffered),
        ),
        "telemetry": Reader(read=_of(folder / "t.jsonl", telemetry.read), example=_STEPS, errors=(), json=True),
        "trace": Reader(read=_of(folder / "rank-00000.jsonl", _trace), example=_TRACE, json=True),
        "receipt": Reader(read=reference.read_receipt, example=reference.write_receipt(RECEIPT), json=True),
        "proof": Reader(read=_of(folder / "kills.json", kill_matrix.load), example=json.dumps(_PROOF), json=True),
        "changes": Reader(
            read=_of(folder / trials.JOURNAL, lambda file: trials.journal(file.parent, "c")),
            example=f"{_TRIAL}\n{_TRIAL}\n",
            json=True,
        ),
        "alarms": Reader(
            read=_of(folder / "figure" / detection.FALSE_ALARMS, lambda file: detection.detection([file.parent])),
            example=f"{_ALARMS}\n",
            json=True,
        ),
        "safetensors": Reader(read=_export, example=_HEADER, errors=(ValueError,), json=True),
        "journal": Reader(read=_of(folder / "journal.jsonl", read_journal), example=_JOURNAL, errors=(), json=True),
        "spans": Reader(read=lambda text: codec.loads(Clock, text), example=_sample("spans.json"), json=True),
        "map": Reader(read=_of(folder / "map.toml", read_map), example=_sample("map.toml")),
        "table": Reader(read=_of(folder / "table.toml", read_table), example=_sample("table.toml")),
        "plan": Reader(read=_of(folder / "plan.toml", read_plan), example=_sample("plan.toml")),
        "profile": Reader(read=lambda text: profiles.plan(LAW, text), example="PAT-01[nam56r],TOPO-0,machine"),
        "overrides": Reader(
            read=lambda text: overrides.apply(tiny, dict(word.partition("=")[::2] for word in text.split())),
            example="seed=4 name=x",
        ),
        "asked": Reader(read=lambda text: json.dumps(reply(reference, text)), example=_ASKED, errors=(), json=True),
        "release": Reader(read=release, example="590.48.01", errors=()),
        "redact": Reader(read=lambda text: redact(text, {"a-known-secret"}), example=_LOG, errors=()),
        "log": Reader(read=lambda text: LineRedactor({"a-known-secret"}).line(text), example=_LOG, errors=()),
    }


def _sample(name: str) -> str:
    return (_SAMPLES / name).read_text(encoding="utf-8")


NAMES = tuple(_readers(Path()))


@pytest.mark.parametrize("name", NAMES)
def test_each_readers_valid_example_is_read(name: str, tmp_path: Path) -> None:
    reader = _readers(tmp_path)[name]
    reader.read(reader.example)


def _put(reader: Reader, text: str) -> None:
    try:
        reader.read(text)
    except reader.errors as error:
        str(error)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(FEW, marks=pytest.mark.unit),
        pytest.param(MANY, marks=[pytest.mark.fuzz, pytest.mark.timeout(3600)]),
    ],
)
def test_a_reader_raises_what_it_documents_and_nothing_else(name: str, examples: int, tmp_path: Path) -> None:
    reader = _readers(tmp_path)[name]
    damage = (edited, altered) if reader.json else (edited,)
    for number in range(examples):
        random = Random(f"{name} {number}")
        text = random.choice(damage)(random, reader.example)
        try:
            _put(reader, text)
        except Exception as error:
            error.add_note(f"input {number} of {name}: {text[:2000]!r}")
            raise


LONG = 1 << 16
PIECES = (
    ".", "a.", "_", "-", " ", "\n", "9", "[", "{", '"', "\\", "(", "A", "=", "eyJ-", "token:", 'token="', "://a@",
    "--a ", "-----BEGIN PRIVATE KEY", "PRIVATE KEY", "a = 1\n", "[[deviation]]\n", "[a.", "1 ", '{"a":',
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param(False, marks=pytest.mark.unit),
        pytest.param(True, marks=[pytest.mark.fuzz, pytest.mark.timeout(3600)]),
    ],
)
def test_a_reader_is_fast_on_long_lines(name: str, pairs: bool, tmp_path: Path) -> None:
    """A second of a quiet machine for 64 KiB; what is quadratic takes minutes. With `pairs`, also one piece many times
    after another, after many of another, and in turn with it."""
    reader = _readers(tmp_path)[name]
    pieces = dict.fromkeys((*PIECES, *re.findall(r"\W", reader.example)))
    texts = (piece * LONG for piece in pieces)
    if pairs:
        texts = (
            text
            for one, two in itertools.product((*pieces, reader.example), pieces)
            for text in (one + two * LONG, (one * LONG)[: LONG // 2] + two * LONG, (one + two) * LONG)
        )
    for text in texts:
        started = time.process_time()
        _put(reader, text[:LONG])
        assert time.process_time() - started < 8, f"{name} takes too long for {text[:80]!r}"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("deviations", "deviation = [1, 2]", "is no list of tables"),
        ("deviations", f"a = {'[' * 5000}", "is not TOML"),
        ("deviations", f"a = {'9' * 5000}", "is not TOML"),
        ("hello", json.dumps(_HELLO).replace('["blocks"]', '[["a"]]'), "did not introduce itself"),
        ("mountinfo", f"{'9' * 5000} 1 8:1 / / rw - ext4 /dev/root rw\n", "is not a mount"),
        ("record", _RECORD.replace('{"result":', '{"result":1,"result":', 1), "is not JSON"),
        ("record", _RECORD.replace("my.stack", "\ud800.stack", 1), "belongs to other lines"),
    ],
)  # fmt: skip
def test_each_input_that_once_crashed_a_reader_is_refused(name: str, text: str, says: str, tmp_path: Path) -> None:
    reader = _readers(tmp_path)[name]
    with pytest.raises(reader.errors, match=says):
        reader.read(text)


@pytest.mark.parametrize(
    ("given", "instead", "says"),
    [
        ("--micro-batch-size 1", "--micro-batch-size 0", "micro batch size * dp (0) must be positive"),
        ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 0", "total_model_size (0) must be positive"),
        ("--bf16", "--unknown " * 5000, "words; a command of a launch has at most"),
    ],
)
def test_an_argv_with_a_zero_divisor_is_rejected_with_a_message(given: str, instead: str, says: str) -> None:
    reading = FlagTable().read_argv(tuple(_ARGV.replace(given, instead).split()), {}, 8)
    assert reading.stage != "accepted"
    assert says in reading.message
