"""Callbacks that observe a Trainer's training, of transformers and of Lightning: `rankproof.observing` from its first
batch to its last.

>>> from rankproof.callbacks import transformers_callback
>>> Trainer(..., callbacks=[transformers_callback("runs/x")])  # doctest: +SKIP
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from pathlib import Path
from typing import Any


class _Observed:
    """Observes from `begin` to `end`, which nobody calls where the training fails."""

    def __init__(self, out: Path | str, options: dict[str, Any]) -> None:
        self.out, self.options, self.open = out, options, ExitStack()
        atexit.register(self.open.close)

    def begin(self) -> None:
        from rankproof import observing

        self.open.enter_context(observing(self.out, **self.options))

    def end(self) -> None:
        self.open.close()


def transformers_callback(out: Path | str, **options: Any) -> Any:
    """A callback for `transformers.Trainer`; `options` are as for `rankproof.observing`."""
    from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

    observed = _Observed(out, options)

    class Observes(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            observed.begin()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            observed.end()

    return Observes()


def lightning_callback(out: Path | str, **options: Any) -> Any:
    """A callback for Lightning's `Trainer`, whatever has started its ranks; `options` as above."""
    from lightning.pytorch import Callback  # type: ignore[import-not-found, unused-ignore]

    observed = _Observed(out, options)

    class Observes(Callback):  # type: ignore[misc, unused-ignore]
        def on_train_start(self, *_: Any, **__: Any) -> None:
            observed.begin()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            observed.end()

        def on_exception(self, *_: Any, **__: Any) -> None:
            observed.end()

    return Observes()
