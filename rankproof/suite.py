"""Finds the package `contracts` of this distribution, which others may have too."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PLACE = Path(__file__).resolve().parents[1] / "contracts"
_OURS = '"""rankproof: '


class Clash(ImportError):
    """Another package has the name `contracts`, and both are needed here."""


def inside(folder: str) -> bool:
    """Whether a folder is our package's, or below it."""
    return Path(folder).resolve().is_relative_to(PLACE)


def load() -> None:
    """Make `contracts` this distribution's, whatever has that name in the current folder or on PYTHONPATH.

    Raises:
        Clash: where another one is imported already, or was installed over this one.
    """
    there = sys.modules.get("contracts")
    if there is not None:
        if PLACE not in [Path(each).resolve() for each in getattr(there, "__path__", ())]:
            raise Clash(_words(getattr(there, "__file__", None) or "without a file"))
        return
    file = PLACE / "__init__.py"
    if not file.is_file() or not file.read_text(encoding="utf-8", errors="replace").startswith(_OURS):
        from importlib import metadata

        others = {*metadata.packages_distributions().get("contracts", ())} - {"rankproof"}
        of = f" of {', '.join(sorted(others))}" if others else ""
        raise Clash(f"{file} is not rankproof's: a distribution{of} was installed over it; install each in an "
                    "environment of its own")  # fmt: skip
    spec = spec_from_file_location("contracts", file, submodule_search_locations=[str(PLACE)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["contracts"] = module_from_spec(spec)
    spec.loader.exec_module(module)


def load_alone() -> None:
    """The same for a process that runs code of somebody else as well, which would be given the wrong one.

    Raises:
        Clash: where `import contracts` means another package.
    """
    if "contracts" not in sys.modules:
        found = PathFinder.find_spec("contracts")
        places = [Path(each).resolve() for each in (found and found.submodule_search_locations) or ()]
        if places and PLACE not in places:
            raise Clash(_words(str(places[0])))
    load()


def _words(other: str) -> str:
    return (
        f"`contracts` is {other} here, and rankproof's is {PLACE}: one process cannot have both. Judge the stack by "
        "`rankproof check`, in a process of its own"
    )
