"""The words of the questions: values and arithmetic, from the standard library only.

`from contracts.spec import Array, Recipe` reaches what most checks and adapters use. Names of one subject only
(receipts, storage, the node, …) are imported from its file.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contracts.spec.words import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Read the words when the first is asked for: the recorder starts in every rank, and needs three of 50 files."""
    if name.startswith("__") or find_spec(f"{__name__}.{name}"):
        raise AttributeError(name)
    from contracts.spec import words

    globals().update({word: value for word, value in vars(words).items() if not word.startswith("__")})
    return getattr(words, name)
