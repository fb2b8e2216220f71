"""Mutants of the suite's own pure code, by cosmic-ray, drawn by seed, each put before the tests about its file.

    python -m benchmarks.mutate --tool .venv-mutate/bin/cosmic-ray --of court --count 40 --seed 1

The court judges, and the spec has the arithmetic that stacks and checks share. Words in capitals beside tests are
beginnings of ids: the reference is asked those contracts. The files are changed in a copy, never here. A survivor is
printed with its change. The exit code is 1 where fewer than nine in ten are killed.
"""

import argparse
import json
import os
import random
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_S = 600  # a mutant whose tests take longer is killed; `mutate-and-test` itself knows no limit
LEAST = 0.9
TESTS: Mapping[str, Mapping[str, str]] = {  # a file of `contracts/court` or `contracts/spec` → the tests about it
    "court": {
        "baseline": "gate/test_baseline.py",
        "causes": "gate/test_reports.py",
        "coverage": "gate/test_coverage.py",
        "deviations": "gate/test_deviations.py",
        "fitness": "gate/test_fitness.py",
        "judge": "gate/test_judge.py gate/test_ladder.py",
        "narrowing": "gate/test_float32.py",
        "pairs": "gate/test_pairs.py",
        "plain_text": "gate/test_plain_text.py gate/test_reports.py",
        "profiles": "gate/test_profiles.py gate/test_ladder.py",
        "sources": "test_docs.py",
        "wording": "gate/test_reports.py",
        "verdict": "gate/test_verdict.py gate/test_deviations.py",
    },
    "spec": {
        "allocator": "memory/test_allocator.py",
        "codec": "test_codec.py",
        "divisibility": "recipe/test_recipe.py REC-0 TOPO",
        "goodput": "goodput/test_goodput.py GOOD",
        "ladder": "gate/test_ladder.py",
        "manifest": "manifest/test_manifest.py MANI",
        "memory": "memory/test_budget.py MEM-02",
        "parameters": "memory/test_budget.py MEM-02",
        "pattern": "pattern/test_pattern.py PAT-0 PAT-10 PAT-11",
        "presets": "names/test_presets.py test_snapshots.py NAME",
        "redaction": "receipts/test_redaction.py",
        "storage": "storage/test_storage.py STOR",
        "tolerance": "gate/test_tolerances.py",
        "topology": "topology/test_topology.py TOPO",
        "triage": "manifest/test_triage.py",
        "violations": "gate/test_deviations.py",
    },
}
EQUIVALENT: Mapping[tuple[str, str, str], str] = {  # file, beginning of the operator, line → why it changes no answer
    ("topology", "ReplaceComparisonOperator_Eq_LtE", 'tensor = "etp" if layout == "borrowed" else "tp"'):
        "of the two layouts own-axis sorts after borrowed",
    ("storage", "ReplaceComparisonOperator_Eq_LtE", 'return mount.point == "/" or mount.device == self.root.device'):
        "no absolute path sorts before /",
    ("storage", "ReplaceComparisonOperator_Eq_LtE", 'how = "is" if real[inner] == real[outer] else "lies in"'):
        "a path within another one is longer, and sorts after it",
    ("topology", "ReplaceComparisonOperator_Gt_NotEq", "return self.ep > 1"): "a degree below 1 is refused",
    ("codec", "NumberReplacer",
     'return {"type": "array", "items": _schema(arguments[0], definitions), "uniqueItems": True}'):
        "a set has one argument, so that the last is the first",
    ("baseline", "ReplaceComparisonOperator_LtE_Lt",
     "if {each.outcome, was.outcome} <= JUDGED and each.seconds >= was.seconds * RATIO"):
        "two outcomes are not all three",
    ("causes", "RemoveDecorator", "@lru_cache(maxsize=65536)"): "with the cache or without it words have one skeleton",
    ("causes", "NumberReplacer", "@lru_cache(maxsize=65536)"): "with the cache or without it words have one skeleton",
    ("causes", "ReplaceUnaryOperator_USub_Invert",
     "return sorted(told, key=lambda cause: (order.index(cause.outcome), -len(cause.results)))"):
        "one less than each number keeps their order",
    ("coverage", "ReplaceComparisonOperator_Lt_LtE",
     "if item not in best or _ORDER.index(became) < _ORDER.index(best[item]):"):
        "what stands at the same place is the same",
    ("coverage", "NumberReplacer",
     "widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]"):
        "each row has as many columns",
    ("deviations", "RemoveDecorator", "@functools.cache"): "a pattern that is made anew is the same",
    ("judge", "ReplaceComparisonOperator_Eq_GtE",
     'found = violations_of(error, comparisons) if outcome == "violated" else ()'):
        "no outcome sorts after violated",
    ("judge", "ReplaceComparisonOperator_Eq_GtE", 'if result.outcome == "violated":'):
        "no outcome sorts after violated",
    ("judge", "ReplaceComparisonOperator_Eq_LtE", 'if result.outcome == "broken":'): "no outcome sorts before broken",
    ("judge", "ReplaceComparisonOperator_Is_Eq", "case Refused() if error is stand.declined:"):
        "an exception equals only itself",
    ("judge", "ReplaceComparisonOperator_NotEq_Gt", 'if absence and absence.kind != "adapter":'):
        "no kind of lack sorts before adapter",
    ("narrowing", "ReplaceComparisonOperator_Eq_GtE",
     'if isinstance(value, Execution) and value.precision == "float64":'):
        "no precision sorts after float64",
    ("narrowing", "ReplaceComparisonOperator_IsNot_NotEq",
     "return found if any(found[key] is not value[key] for key in found) else value"):
        "what was narrowed is unequal, and all else is the same",
    ("narrowing", "ReplaceComparisonOperator_IsNot_NotEq",
     "return tuple(parts) if any(new is not old for new, old in zip(parts, value, strict=True)) else value"):
        "what was narrowed is unequal, and all else is the same",
    ("narrowing", "ReplaceComparisonOperator_IsNot_NotEq",
     "each.name: new for each in fields(value) if (new := narrowed(old := getattr(value, each.name))) is not old"):
        "what was narrowed is unequal, and all else is the same",
    ("plain_text", "ReplaceComparisonOperator",
     "return (_short_text if len(value) <= _SHORT else _text)(value, known, many, ours)"):
        "with the cache or without it a text comes out the same",
    ("plain_text", "AddNot", "return (_short_text if len(value) <= _SHORT else _text)(value, known, many, ours)"):
        "with the cache or without it a text comes out the same",
    ("plain_text", "NumberReplacer", "_SHORT = 1_000  # characters"):
        "with the cache or without it a text comes out the same",
    ("plain_text", "NumberReplacer", "_short_text = functools.lru_cache(maxsize=32_768)(_text)"):
        "with the cache or without it a text comes out the same",
    ("plain_text", "ReplaceComparisonOperator_IsNot_NotEq",
     "changed = {name: each for name, each in clean.items() if each is not held[name]}"):
        "what is put in place of an equal value changes nothing",
    ("plain_text", "AddNot", "if text.isascii() and text.isprintable():"):
        "a text of which each character is printable has nothing to escape, in ASCII or beyond",
    ("plain_text", "ReplaceComparisonOperator_Lt_LtE",
     'return f"\\\\x{number:02x}" if number < 0x100 else f"\\\\u{number:04x}"'):
        "neither U+00FF nor U+0100 is ever escaped",
    ("plain_text", "NumberReplacer", 'return f"\\\\x{number:02x}" if number < 0x100 else f"\\\\u{number:04x}"'):
        "neither U+00FF nor U+0100 is ever escaped",
    ("profiles", "ReplaceComparisonOperator_NotEq_Lt",
     'if not isinstance(entry, Contract) or entry.tier != "unit":'):
        "no tier sorts after unit",
    ("profiles", "ReplaceComparisonOperator_NotEq_Lt",
     'if not isinstance(entry, Contract) or entry.tier != "unit" or "read_pattern" in entry.asks:'):
        "no tier sorts after unit",
    ("sources", "ReplaceComparisonOperator_Eq_GtE", "if len(found) == len(known):"): "what was found is part of it",
    ("sources", "ReplaceComparisonOperator_NotEq_Lt",
     'return f"bug {word}: {BUGS[letters]}" if letters != word else f"bugs {word}: {BUGS[word]}", "bug-ids"'):
        "the letters of a longer word sort before it",
    ("wording", "ReplaceComparisonOperator_Eq_LtE",
     'number = "1 contract is" if len(verdict.unfit) == 1 else f"{len(verdict.unfit)} contracts are"'):
        "where there is none, the line is not reached",
    ("verdict", "ReplaceComparisonOperator_NotEq_Lt", 'if result.outcome != "violated":'):
        "no outcome sorts after violated",
    ("verdict", "ReplaceComparisonOperator_Eq_GtE",
     'parts = result.parts if result.outcome == "violated" else ()'):
        "no outcome sorts after violated",
    ("verdict", "ReplaceComparisonOperator_Eq_GtE",
     'failing = [result for result in matched if result.outcome == "violated"]'):
        "no outcome sorts after violated",
    ("verdict", "ReplaceComparisonOperator_Eq_GtE", "if not failing and kept and len(kept) == len(matched):"):
        "what is kept is part of what matched",
    ("verdict", "ReplaceComparisonOperator_Eq_LtE", 'if any(result.outcome == "holds" for result in kept):'):
        "of the two outcomes that are kept, not offered sorts after holds",
    ("verdict", "ReplaceComparisonOperator_Eq_LtE",
     "told = \", \".join(f\"{each.case} {'holds' if each.outcome == 'holds' else 'is not offered'}\" "
     "for each in kept)"):
        "of the two outcomes that are kept, not offered sorts after holds",
    ("verdict", "ReplaceComparisonOperator_LtE_Lt",
     "return same and {result.item.rung, item.rung} <= {*rungs} "
     "and rungs.index(result.item.rung) < rungs.index(item.rung)"):
        "two rungs are not all that there are",
    ("verdict", "ReplaceComparisonOperator_Lt_LtE",
     "return same and {result.item.rung, item.rung} <= {*rungs} "
     "and rungs.index(result.item.rung) < rungs.index(item.rung)"):
        "the same case on the same rung is the item itself, which did not come",
    ("verdict", "ReplaceComparisonOperator_Lt_NotEq",
     'return len(others) < len(declined) and all(each.lack == "case" for each in others)'):
        "the others are part of what was declined",
    ("verdict", "ReplaceComparisonOperator_Gt_NotEq", "if len(answers) > 1:"):
        "where there is none, no fault is reached",
    ("verdict", "ReplaceComparisonOperator_Gt_NotEq", "if n > 1]  # fmt: skip"):
        "what is counted is there once at least",
    ("redaction", "ReplaceBinaryOperator_Mul_BitXor", 'if not text.endswith("\\n") and len(text) > 4 * HELD:'):
        "from which length on a part is cut says how much is held; both sides of a cut redact as the whole does",
}  # fmt: skip
Spec = tuple[str, str, int, int]
"""File, operator, the how manieth place where it applies, its line."""


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--tool", required=True, type=Path, help="the cosmic-ray of an environment of its own")
    words.add_argument("--of", choices=sorted(TESTS), default="court")
    words.add_argument("--count", type=int, default=40)
    words.add_argument("--seed", type=int, default=1)
    asked = words.parse_args()
    of, tests = asked.of, TESTS[asked.of]
    tool, tree = asked.tool.absolute(), _copied(Path(f"reports/mutate-{of}").absolute())
    drawn = _drawn(tool, tree, of, sorted(tests), asked.seed)[: asked.count]
    for subject in sorted({spec[0] for spec in drawn}):
        if _tested(tree, tests[subject]).returncode:  # every mutant would be killed
            sys.exit(f"the tests about {subject}.py fail in {tree} without a mutant")
    fates = Counter[str]()
    for spec in drawn:
        fate, change = _tried(tool, tree, of, spec)
        removed = next((line[1:].strip() for line in change.split("\n    ") if re.match(r"-\s*\S", line)), "")
        if fate == "survived" and any(
            (spec[0], removed) == (subject, line) and spec[1].startswith(f"core/{operator}")
            for subject, operator, line in EQUIVALENT
        ):
            fate = "equivalent"
        fates[fate] += 1
        print(f"{fate:<9} {spec[0]}.py:{spec[3]} {spec[1]}{change if fate == 'survived' else ''}", flush=True)  # noqa: T201
    tried = fates.total() - fates["equivalent"]
    killed = tried - fates["survived"]  # what does not even import is incompetent, and was noticed
    print(f"{killed} of {tried} killed by the tests about their file")  # noqa: T201
    return int(not tried or killed < LEAST * tried)


def _copied(out: Path) -> Path:
    """The tracked files in a folder of their own."""
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tree = out / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in (name for name in listed.split("\0") if name and (ROOT / name).is_file()):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    return tree


def _drawn(tool: Path, tree: Path, of: str, subjects: list[str], seed: int) -> list[Spec]:
    """Every mutant of some files, in an order that the seed gives."""
    found: list[Spec] = []
    for subject in subjects:
        session, config = tree / f"{subject}.sqlite", tree / f"{subject}.toml"
        config.write_text(
            f'[cosmic-ray]\nmodule-path = "contracts/{of}/{subject}.py"\ntimeout = {LIMIT_S}\n'
            'excluded-modules = []\ntest-command = "true"\n[cosmic-ray.distributor]\nname = "local"\n'
        )
        subprocess.run((tool, "init", config.name, session.name), cwd=tree, check=True)
        with sqlite3.connect(session) as held:
            rows = held.execute("SELECT operator_name, occurrence, start_pos_row FROM mutation_specs ORDER BY 1, 2")
            # `|` stands in annotations mostly, where a change changes nothing that runs; frozen=False changes nothing,
            # and neither does what stands in place of a signature's bare `*`, where it is Python at all.
            code = (tree / f"contracts/{of}/{subject}.py").read_text(encoding="utf-8").splitlines()
            found += [
                (subject, str(name), int(nth), int(line)) for name, nth, line in rows
                if "BitOr" not in name and not code[line - 1].startswith("@dataclass")
                and not ("BinaryOperator_Mul" in name and re.search(r"[(,] ?\*, ", code[line - 1]))
            ]  # fmt: skip
    return random.Random(seed).sample(found, len(found))


def _tried(tool: Path, tree: Path, of: str, spec: Spec) -> tuple[str, str]:
    """Whether the tests about a file see one mutant of it, and the change."""
    subject, operator, nth, _ = spec
    command = shlex.join(_command(TESTS[of][subject]))
    words = (tool, "mutate-and-test", f"contracts/{of}/{subject}.py", operator, str(nth), command)
    done = subprocess.run(words, cwd=tree, env=_environment(tree), capture_output=True, text=True, check=False)
    told = json.loads(done.stdout[done.stdout.index("{") :])
    changed = [line for line in told["diff"].splitlines() if re.match(r"[-+](?![-+])", line)]
    return str(told["test_outcome"]), "".join(f"\n    {line}" for line in changed)


def _tested(tree: Path, tests: str) -> subprocess.CompletedProcess[bytes]:
    """The tests about a file as it is."""
    return subprocess.run(_command(tests), cwd=tree, env=_environment(tree), check=False)


def _command(tests: str) -> tuple[str, ...]:
    files = [f"tests_unit/{each}" for each in tests.split() if each.endswith(".py")]
    said = shlex.join([sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *files])
    ids = ",".join(each for each in tests.split() if not each.endswith(".py"))
    if ids:  # incomplete, 3, is where an id is of several ranks as well
        check = [sys.executable, "-m", "contracts.harness.cli", "check", "--profile", ids]
        said += f" && {{ {shlex.join(check)} || [ $? = 3 ]; }}"
    return "timeout", str(LIMIT_S), "bash", "-c", said


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree)}


if __name__ == "__main__":
    sys.exit(main())
