"""Imports go down only. Proved by importing each module in a fresh interpreter, not by reading it."""

import importlib
import importlib.util
import inspect
import json
import pkgutil
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import contracts
from contracts.contract import LAW
from contracts.harness import families
from contracts.instruments.import_probe import modules_after
from contracts.spec import codec, conventions, errors, ladder, needs, tolerance, violations

families.read_checks()

FLOORS: dict[str, tuple[str, ...]] = {  # floor → the floors it stands on
    "contracts.spec": (),
    "contracts.ranks": (),
    "contracts.contract": ("contracts.spec",),
    "contracts.instruments": ("contracts.spec", "contracts.contract"),
    "contracts.observe": ("contracts.spec", "contracts.instruments"),
    "contracts.law": ("contracts.spec", "contracts.contract", "contracts.instruments", "contracts.observe"),
    "contracts.stacks": ("contracts.spec", "contracts.instruments", "contracts.observe"),
    "contracts.court": ("contracts.spec", "contracts.contract", "contracts.instruments"),
    "contracts.law bugs": ("contracts.spec", "contracts.contract", "contracts.instruments", "contracts.stacks"),
    "contracts.harness": (
        "contracts.spec", "contracts.contract", "contracts.instruments", "contracts.stacks", "contracts.court",
        "contracts.law", "contracts.law bugs", "contracts.observe", "contracts.ranks",
    ),
    "contracts.bringup.law": ("contracts.spec", "contracts.contract", "contracts.instruments", "contracts.law"),
    "contracts.bringup.law bugs": (
        "contracts.spec", "contracts.contract", "contracts.instruments", "contracts.stacks", "contracts.law bugs",
    ),
    "contracts.bringup.instruments": ("contracts.spec", "contracts.instruments"),
    "contracts.bringup.commands": (
        "contracts.spec", "contracts.contract", "contracts.instruments", "contracts.stacks", "contracts.court",
        "contracts.observe", "contracts.ranks", "contracts.harness", "contracts.bringup.instruments",
    ),
}  # fmt: skip

HEAVY = {"torch", "numpy", "megatron", "transformer_engine", "torchtitan", "transformers", "accelerate", "triton"}
TENSORS = (  # what is made of tensors, and imported only where numbers are judged or a model is run
    "contracts.instruments.fixtures", "contracts.instruments.graphs", "contracts.instruments.inductor_indexing",
    "contracts.instruments.mamba_ssm", "contracts.instruments.memory", "contracts.instruments.point_to_point",
    "contracts.instruments.reorder", "contracts.instruments.staged_copies", "contracts.instruments.staged_group",
    "contracts.instruments.numerics", "contracts.instruments.oracles.", "contracts.instruments.half_precision",
    "contracts.instruments.dry_run", "contracts.instruments.traffic", "contracts.instruments.work",
    "contracts.observe.applied", "contracts.observe.around", "contracts.observe.consumed", "contracts.observe.cut",
    "contracts.observe.device", "contracts.observe.diff", "contracts.observe.kernels", "contracts.observe.outputs",
    "contracts.observe.phases", "contracts.observe.placement", "contracts.observe.power",
    "contracts.observe.readers", "contracts.observe.recorder",
    "contracts.observe.routing", "contracts.observe.sketch", "contracts.observe.source",
    "contracts.observe.walked",
    "contracts.harness.ab.answer", "contracts.harness.ab.page", "contracts.harness.ab.trial",
    "contracts.stacks.reference.training.small_script", "contracts.stacks.rewritten",
    "contracts.stacks.cuda_on_cpu",
    "contracts.stacks.kit.adapter", "contracts.stacks.kit.checkpoints", "contracts.stacks.kit.delta_rule",
    "contracts.stacks.kit.links",
    "contracts.stacks.kit.runs", "contracts.stacks.kit.worlds",
    "contracts.stacks.megatron.block_base", "contracts.stacks.megatron.blends", "contracts.stacks.megatron.blocks",
    "contracts.stacks.megatron.built_model", "contracts.stacks.megatron.checkpoint",
    "contracts.stacks.megatron.distributed_optimizer",
    "contracts.stacks.megatron.fsdp", "contracts.stacks.megatron.muon",
    "contracts.stacks.megatron.losses",
    "contracts.stacks.megatron.hybrid_model", "contracts.stacks.megatron.mamba_block",
    "contracts.stacks.megatron.mamba_kernels", "contracts.stacks.megatron.model",
    "contracts.stacks.megatron.numeric_answers", "contracts.stacks.megatron.optimizer",
    "contracts.stacks.megatron.process_groups", "contracts.stacks.megatron.rank_tensors",
    "contracts.stacks.megatron.shims", "contracts.stacks.megatron.training",
    "contracts.stacks.megatron.validation",
    "contracts.stacks.megatron.weight_mapping", "contracts.stacks.reference.answers.allocator_probe",
    "contracts.stacks.reference.answers.cold_compile", "contracts.stacks.reference.checkpoint.async_save",
    "contracts.stacks.reference.checkpoint.checkpoint", "contracts.stacks.reference.checkpoint.coordination",
    "contracts.stacks.reference.checkpoint.crash_during_save", "contracts.stacks.reference.checkpoint.dcp_storage",
    "contracts.stacks.forked_ranks", "contracts.stacks.reference.checkpoint.rng_state",
    "contracts.stacks.reference.checkpoint.weight_names", "contracts.stacks.reference.kernels.",
    "contracts.stacks.reference.model.blocks", "contracts.stacks.reference.model.build",
    "contracts.stacks.reference.model.compile", "contracts.stacks.reference.model.hybrid_model",
    "contracts.stacks.reference.model.init", "contracts.stacks.reference.model.mtp",
    "contracts.stacks.reference.model.parts", "contracts.stacks.reference.optim.optimizer",
    "contracts.stacks.reference.parallel.collectives", "contracts.stacks.reference.parallel.context_parallel",
    "contracts.stacks.reference.parallel.dry_run", "contracts.stacks.reference.parallel.expert_parallel",
    "contracts.stacks.reference.parallel.fsdp",
    "contracts.stacks.reference.parallel.parallel", "contracts.stacks.reference.parallel.pipeline",
    "contracts.stacks.reference.parallel.placements", "contracts.stacks.reference.parallel.tensor_parallel",
    "contracts.stacks.reference.training.trainer", "contracts.stacks.torchtitan.blocks",
    "contracts.stacks.torchtitan.built_model", "contracts.stacks.torchtitan.checkpoints",
    "contracts.stacks.torchtitan.configuration", "contracts.stacks.torchtitan.layer_symbols",
    "contracts.stacks.torchtitan.model", "contracts.stacks.torchtitan.observed_trainer",
    "contracts.stacks.torchtitan.recorded_step", "contracts.stacks.torchtitan.renaming",
    "contracts.stacks.torchtitan.release_0_2.trainer",
    "contracts.stacks.torchtitan.release_0_2.training", "contracts.stacks.torchtitan.symbols",
    "contracts.stacks.torchtitan.template", "contracts.stacks.torchtitan.training",
    "contracts.stacks.torchtitan.weight_mapping",
    "contracts.stacks.transformers.blocks", "contracts.stacks.transformers.checkpoints",
    "contracts.stacks.transformers.shims",
    "contracts.stacks.transformers.training", "contracts.stacks.transformers.weight_mapping",
)  # fmt: skip
OF_A_FRAMEWORK = {
    "contracts.observe.kernels": "triton",
    "contracts.stacks.torchtitan.checkpoints": "torchtitan",
    "contracts.stacks.torchtitan.observed_trainer": "torchtitan",
    "contracts.stacks.torchtitan.recorded_step": "torchtitan",
    "contracts.stacks.torchtitan.renaming": "torchtitan",
    "contracts.stacks.torchtitan.release_0_2.trainer": "torchtitan",
    "contracts.stacks.transformers.checkpoints": "transformers",
    "contracts.stacks.transformers.data_order": "transformers",
    "contracts.stacks.transformers.process_groups": "transformers",
    "contracts.stacks.transformers.training": "transformers",
}
ELSEWHERE = tuple(module for module, name in OF_A_FRAMEWORK.items() if importlib.util.find_spec(name) is None)
"""What only the environment of a framework can import."""


def _modules(floor: str) -> list[str]:
    name, _, bugs = floor.partition(" ")
    package = importlib.import_module(name)
    if not hasattr(package, "__path__"):
        return [floor]
    found = [module.name for module in pkgutil.walk_packages(package.__path__, f"{name}.")]
    return [name, *(module for module in found if module not in ELSEWHERE and ("_bugs" in module) == bool(bugs))]


def _floor(module: str) -> str:
    """The floor of a module; empty for the folders of the law, where checks and bugs stand."""
    names = module.split(".")
    depth = 3 if names[1] == "bringup" else 2
    floor = ".".join(names[:depth])
    if not floor.endswith(".law"):
        return floor
    return f"{floor} bugs" if "_bugs" in module else floor if len(names) > depth + 1 else ""


@pytest.fixture(scope="module")
def brought() -> dict[str, frozenset[str]]:
    """Floor → what importing every module of it brings."""
    together = {floor: "; ".join(f"import {module}" for module in _modules(floor)) for floor in FLOORS}
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(together, pool.map(modules_after, together.values()), strict=True))


@pytest.mark.parametrize("floor", FLOORS)
def test_each_layer_imports_only_the_layers_below_it(floor: str, brought: dict[str, frozenset[str]]) -> None:
    ours = {_floor(module) for module in brought[floor] if module.startswith("contracts.")}
    assert ours - {floor, "", "contracts.bringup"} <= set(FLOORS[floor])


@pytest.mark.parametrize("floor", FLOORS)
def test_only_modules_about_tensors_import_a_framework(floor: str) -> None:
    pure = [module for module in _modules(floor) if not module.startswith(TENSORS) and "_bugs" not in module]
    modules = modules_after("; ".join(f"import {module}" for module in pure))
    assert not {module.split(".")[0] for module in modules} & HEAVY


def test_only_the_harness_and_the_ranks_know_pytest(brought: dict[str, frozenset[str]]) -> None:
    knows = {floor for floor, modules in brought.items() if "pytest" in modules}
    assert knows == {"contracts.harness", "contracts.ranks"}


def test_a_served_stack_imports_the_standard_library_only() -> None:
    """The answering side runs in environments where nothing but the standard library can be assumed."""
    outside = modules_after("import contracts.stacks.serve, contracts.stacks.reference.stack")
    installed = {"click", "rich", "jinja2", "pytest", "pluggy", "hypothesis"}
    assert not {module.split(".")[0] for module in outside} & installed


def test_a_check_without_tensors_does_not_import_torch(tmp_path: Path) -> None:
    # a side of the law leaves out what is about numbers, which ids by their beginning do not
    out = str(tmp_path / "out")
    words = ["check", "--profile", "launch", "--with", "flag-table", "--report", out, "--form", "json"]
    # run in the process that is looked at: a supervised check leaves no trace in its parent
    modules = modules_after(
        "from contracts.court import record; from contracts.harness.commands import check; "
        "check.supervised = lambda work, *_, **__: (record.let_go(), work())[1]; "
        f"from contracts.harness.cli import main; main({words!r})"
    )
    assert (tmp_path / "out/run.jsonl").exists()
    assert "contracts.stacks.megatron.flag_table" in modules
    assert not {module.split(".")[0] for module in modules} & HEAVY


TELLING = (
    codec.dumps, codec.loads, conventions.chosen, errors.shown, ladder.rung_of, ladder.rungs, ladder.stepped_down,
    needs.features, tolerance.element_bytes, tolerance.here, tolerance.within, violations.compared,
    violations.require_none,
)  # fmt: skip
"""What says how a thing is asked, called, kept or reported, and computes nothing that is expected of a stack."""


def _borrowed(module: types.ModuleType) -> set[str]:
    """Functions of the spec that stand in a module under any name."""
    return {
        f"{value.__module__}.{value.__qualname__}"
        for value in vars(module).values()
        if inspect.isfunction(inspect.unwrap(value) if callable(value) else value)
        and getattr(value, "__module__", "").startswith("contracts.spec")
        and value not in TELLING
    }


def test_a_check_that_uses_a_computing_function_of_spec_is_found_under_any_name() -> None:
    from contracts.spec import pattern, topology

    module = types.ModuleType("borrower")
    vars(module).update(mine=pattern.parse, cached=codec.hints, value=topology.Degrees, said=errors.shown)
    assert _borrowed(module) == {"contracts.spec.pattern.parse", "contracts.spec.codec.hints"}


_ADDED = """
import json, sys
from contracts.contract import LAW
from contracts.harness import families

added = {}

def note(id):
    frame = sys._getframe(2)
    while frame.f_code.co_name != "<module>":
        frame = frame.f_back
    added.setdefault(frame.f_globals["__name__"], []).append(id)

class Noted(list):
    def append(self, each):
        note(each.of)
        super().append(each)

add, LAW.mutants = LAW.add, Noted()
LAW.add = lambda entry: (note(entry.id), add(entry))
families.read_checks()
families.read_mutants()
print(json.dumps(added))
"""


def test_every_contract_and_mutant_is_found_in_the_text_of_its_file() -> None:
    """A contract that is not found in the text is judged by nobody, and a mutant that is not found proves nothing."""
    done = subprocess.run([sys.executable, "-c", _ADDED], capture_output=True, text=True, check=True, timeout=300)
    added = {module: {*ids} for module, ids in json.loads(done.stdout).items()}
    assert {each: {*ids} for each, ids in families.checks().items()} == {
        each: ids for each, ids in added.items() if not each.endswith("_bugs")
    }
    unnamed = {each: ids - {*families.mutants().get(each, ())} for each, ids in added.items()
               if each.endswith("_bugs")}  # fmt: skip
    assert len(unnamed) > 100
    assert {each: ids for each, ids in unnamed.items() if ids} == {}


def test_judging_one_family_imports_no_other_family() -> None:
    seen = modules_after("from contracts.harness.families import read_checks; read_checks('PAT-01')")
    read = {name for name in seen if name.startswith(("contracts.law.", "contracts.bringup.law."))}
    assert {name for name in read if "._support" not in name} == {
        "contracts.law.pattern", "contracts.law.pattern.layers"
    }  # fmt: skip


def test_observing_reads_only_the_words_that_it_needs() -> None:
    """It starts in every rank: all words take four times as long as the rest of its entry."""
    seen = {name for name in modules_after("import contracts.observe.entry") if name.startswith("contracts.spec.")}
    assert seen == {"contracts.spec.errors", "contracts.spec.launchers"}
    seen = modules_after("from contracts.spec import launchers, pattern, Refused; assert pattern.parse and Refused")
    assert "contracts.spec.words" in seen


def test_without_torch_the_mutants_that_do_not_need_it_are_read() -> None:
    read = "from contracts.harness.families import read_mutants; read_mutants()"
    without = modules_after(f"import sys; sys.modules['torch'] = None; {read}")
    assert "contracts.law.pattern.layers_bugs" in without
    assert not {each for each in without if each.startswith("contracts.law.blocks.")}


def test_an_ids_family_gives_its_folder_and_every_file_of_checks_has_its_bugs_file() -> None:
    """Who has a red id finds its check, and its mutants beside it, without a search."""
    rooms: dict[str, set[str]] = {}
    for contract in LAW.contracts.values():
        rooms.setdefault(contract.family, set()).add(contract.check.__module__.split(".")[-2])
    assert rooms == {family: {folder} for family, folder in families.FAMILIES.items()}
    folders = {*families.FAMILIES.values()}
    assert len(folders) == len(families.FAMILIES), "two families share a folder"
    root = Path(contracts.__file__).parent
    files = {path.with_suffix("").as_posix() for path in root.glob("**/law/[a-z]*/[a-z]*.py")}
    bugs = {each.removesuffix("_bugs") for each in files if each.endswith("_bugs")}
    assert len(bugs) > len(folders)
    assert bugs == {each for each in files if not each.endswith("_bugs")}


CHECKS = [name for law in ("contracts.law", "contracts.bringup.law") for name in _modules(law) if name != law]


@pytest.mark.parametrize("name", CHECKS)
def test_checks_compute_nothing_with_the_code_under_test(name: str) -> None:
    module = importlib.import_module(name)
    assert _borrowed(module) == set(), "work the expected value out by hand, or enumerate it in the check"
    lent = {value.__name__ for value in vars(module).values() if inspect.ismodule(value)}
    assert not {each for each in lent if each.startswith("contracts.spec")}, "a module lends all its functions"


def test_the_test_of_layers_sees_indirect_imports() -> None:
    assert "json.decoder" in modules_after("import json")
    assert "json.decoder" not in modules_after("import math")
    assert "colorsys" in modules_after("import colorsys, sys; sys.exit(3)")
    with pytest.raises(ImportError, match="no_such_module: ModuleNotFoundError: No module named 'no_such_module'"):
        modules_after("import no_such_module")
