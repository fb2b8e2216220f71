"""The repository in which a command runs: CI places its annotations by paths from there."""

from pathlib import Path


def root() -> Path:
    """The nearest folder with `.git` in or above the working directory; the working directory where there is none."""
    here = Path.cwd()
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), here)


def told(file: Path) -> str:
    """A file as a report names it: from the root of the repository, where it lies in it."""
    top = root()
    return str(file.relative_to(top)) if file.is_relative_to(top) else str(file)
