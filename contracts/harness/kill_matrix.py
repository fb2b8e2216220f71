"""The kill matrix on disk: what it was made from, where, and which contracts are unfit by it.

A proof belongs to a content: the files of `contracts/`. An interpreter with the same files may use it; other
differences (packages, CPU, settings) are reported, not refused. Only where all of them agree is a second self-test
spared. A release carries the proof of its own content in `contracts/proof/`, which is no part of that content; git
ignores it, so that no commit carries the proof of another one. Nothing here loads torch: to ask whether there is a
proof takes less than a second.
"""

import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import contracts
from contracts.contract import Contract, Law, Tier
from contracts.harness.selftest import Matrix
from contracts.spec import codec, interpreter, refuse

FILE = "kills.json"
SHIPPED = Path(contracts.__file__).parent / "proof"
"""Where `make proof` puts the proof that a wheel, or a cache of CI, carries."""
SETTINGS = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS", "OPENBLAS_CORETYPE",
)  # fmt: skip
"""Variables by which the same CPU rounds in another order."""
_VECTORS = {"avx512": ("avx512f", "avx512vl", "avx512bw", "avx512dq"), "avx2": ("avx2", "fma")}


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The conditions of a self-test. `threads` is how many torch takes, `helping` names the assistants of the
    reference."""

    python: str
    packages: Mapping[str, str]
    cpu: str
    capability: str
    threads: int
    settings: Mapping[str, str]
    helping: tuple[str, ...]
    interpreter: tuple[str, ...] = ()

    @property
    def torch(self) -> str:
        return self.packages.get("torch", "none")


@dataclass(frozen=True, kw_only=True)
class About:
    """The subject of a self-test: `content` is the SHA-256 of the files of `contracts/`, `only` beginnings of ids."""

    content: str
    tier: Tier
    only: str
    surroundings: Surroundings


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A finished self-test."""

    about: About
    matrix: Matrix

    def unfit(self, law: Law) -> Mapping[str, str]:
        """Id → reason, of the unfit contracts of its tier; it says nothing about another tier."""
        known = {result.id for result in self.matrix.baseline} | {*self.matrix.unfit}
        left = [each for each in law.contracts.values() if each.tier == self.about.tier and each.id not in known]
        return {**{each.id: self._left_out(each) for each in left}, **self.matrix.unfit}

    def _left_out(self, contract: Contract) -> str:
        asked = f"--only {self.about.only}" if self.about.only else "of other contracts"
        return f"the self-test that was given ({asked}) did not try {contract.id}"

    def words(self) -> str:
        """Its content, its result, and what is different here; one line."""
        killed = sum(kill.fate == "killed" for kill in self.matrix.kills)
        told = f"content {self.about.content[:12]}, {killed} of {len(self.matrix.kills)} mutants killed, made with "
        told += _shown(self.about.surroundings)
        other = differences(self.about.surroundings, here(threads=threads(), helping=self.about.surroundings.helping))
        return f"{told}; other here: {', '.join(other)}" if other else told


def write(folder: Path, proof: Proof) -> None:
    """Write a proof into a folder, atomically."""
    part = folder / f"{FILE}.part"
    data = {"about": codec.encode(proof.about), **codec.encode(proof.matrix)}
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / FILE)


def load(path: Path) -> Proof:
    """The proof in a file or a folder, of the content that runs here; `shipped` is the one beside the contracts.

    Raises:
        Refused: where there is none, where it is damaged, or where it is of another content.
    """
    path = SHIPPED if path == Path("shipped") and not path.exists() else path
    file = path / FILE if path.is_dir() else path
    again = "run `rankproof selftest --once --report FOLDER` and give that folder"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise refuse("proof", str(file), f"{error.strerror}: no self-test has finished there", again) from None
    except (ValueError, RecursionError):
        raise refuse("proof", str(file), "is not JSON", again) from None
    if not isinstance(data, dict) or "about" not in data:
        raise refuse("proof", str(file), "does not say what it is about", again)
    about = codec.decode(About, data.pop("about"), name="proof.about")
    proof = Proof(about=about, matrix=codec.decode(Matrix, data, name="proof"))
    if proof.about.content != content():
        problem = f"is of the suite with digest {proof.about.content[:12]}, and the suite here has {content()[:12]}"
        raise refuse("proof", str(file), problem, again)
    return proof


def here(*, threads: int, helping: tuple[str, ...]) -> Surroundings:
    """Where this runs."""
    model, flags = _cpu()
    return Surroundings(
        python=platform.python_version(),
        packages=_packages(),
        cpu=model,
        capability=os.environ.get("ATEN_CPU_CAPABILITY") or _capability(flags),
        threads=threads,
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        helping=helping,
        interpreter=interpreter.settings(),
    )


def threads() -> int:
    """The threads that torch takes in each process that judges: one, unless the environment says otherwise."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() else 1


def helping(named: Sequence[str]) -> tuple[str, ...]:
    """The assistants of the reference, by name and version, without starting them."""
    if named:
        return tuple(named)
    from contracts.stacks.megatron.stack import installed, of_this_interpreter

    versions = {*installed(), *filter(None, [of_this_interpreter()])}
    return tuple(f"megatron {version}" for version in sorted(versions))


def differences(theirs: Surroundings, ours: Surroundings) -> list[str]:
    """The differences between two surroundings, in words."""
    found = []
    for name in ("torch", "cpu", "capability", "threads", "python"):
        a, b = getattr(theirs, name), getattr(ours, name)
        if a != b:
            found.append(f"{name} {b} instead of {a}")
    changed = {name for name, _ in {*theirs.packages.items()} ^ {*ours.packages.items()}} - {"torch"}
    if changed:
        found.append(f"{len(changed)} packages ({', '.join(sorted(changed)[:3])}{', …' if len(changed) > 3 else ''})")
    found += [
        f"{name} {ours.settings.get(name, 'unset')} instead of {theirs.settings.get(name, 'unset')}"
        for name in SETTINGS
        if ours.settings.get(name) != theirs.settings.get(name)
    ]
    if theirs.interpreter != ours.interpreter:
        started = [" ".join(each.interpreter) or "no option" for each in (ours, theirs)]
        found.append(f"started with {started[0]} instead of {started[1]}")
    if theirs.helping != ours.helping:
        found.append(
            f"helped by {' '.join(ours.helping) or 'nobody'} instead of {' '.join(theirs.helping) or 'nobody'}"
        )
    return found


def _shown(where: Surroundings) -> str:
    threads = "1 thread" if where.threads == 1 else f"{where.threads} threads"
    return f"torch {where.torch}, Python {where.python}, {where.cpu} ({where.capability}), {threads}"


@functools.cache
def content() -> str:
    """SHA-256 over the names and bytes of the files of `contracts/`, as they are here."""
    root = Path(contracts.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
        if path.is_file() and "__pycache__" not in path.parts and SHIPPED not in path.parents:
            name = path.relative_to(root).as_posix()
            found.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def _packages() -> dict[str, str]:
    named = ((each.metadata["Name"], each.version) for each in metadata.distributions())
    return dict(sorted((name.lower().replace("_", "-"), version) for name, version in named if name))


def _cpu() -> tuple[str, frozenset[str]]:
    """Model and flags of the first CPU, as Linux reports them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown", frozenset()
    told: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())
    return told.get("model name") or platform.machine(), frozenset(told.get("flags", "").split())


def _capability(flags: frozenset[str]) -> str:
    """What torch's own kernels would choose on such a CPU."""
    return next((name for name, needed in _VECTORS.items() if flags.issuperset(needed)), "default")
