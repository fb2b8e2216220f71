"""The ranks package stands by itself: pytest and torch.distributed are all that it knows."""

import pkgutil

import contracts.ranks
from contracts.instruments.import_probe import modules_after

MODULES = [name for _, name, _ in pkgutil.iter_modules(contracts.ranks.__path__, f"{contracts.ranks.__name__}.")]


def test_the_ranks_package_imports_nothing_of_this_project() -> None:
    brought = modules_after("; ".join(f"import {name}" for name in MODULES))
    assert {name for name in brought if name.startswith("contracts.")} <= {"contracts.ranks", *MODULES}


def test_the_ranks_package_loads_torch_only_if_there_are_ranks() -> None:
    brought = modules_after("; ".join(f"import {name}" for name in MODULES))
    assert not {"torch", "hypothesis", "numpy"} & {name.split(".")[0] for name in brought}
