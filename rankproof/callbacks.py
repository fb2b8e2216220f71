"""Callbacks that observe a Trainer's training, of transformers, Lightning and OLMo-core: `rankproof.observing` from its
first batch to its last.

>>> from rankproof.callbacks import transformers_callback
>>> Trainer(..., callbacks=[transformers_callback("runs/x")])  # doctest: +SKIP
"""

import atexit
import importlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any


def transformers_callback(out: Path | str, **options: Any) -> Any:
    """A callback for `transformers.Trainer`; `options` are as for `rankproof.observing`."""
    return _callback("transformers", "TrainerCallback", out, options, "on_train_begin", "on_train_end")


def lightning_callback(out: Path | str, **options: Any) -> Any:
    """A callback for Lightning's `Trainer`, whatever has started its ranks; `options` as above."""
    return _callback("lightning.pytorch", "Callback", out, options, "on_train_start", "on_train_end", "on_exception")


def olmo_core_callback(out: Path | str, **options: Any) -> Any:
    """A callback for OLMo-core's `Trainer`; `options` as above."""
    return _callback("olmo_core.train.callbacks", "Callback", out, options, "pre_train", "post_train", "on_error")


def _callback(package: str, base: str, out: Path | str, options: dict[str, Any], begins: str, *ends: str) -> Any:
    """A callback that observes from one of its methods to another; nobody calls that if the training fails."""
    from rankproof import observing

    observed = ExitStack()
    atexit.register(observed.close)

    def begin(*_: Any, **__: Any) -> None:
        observed.enter_context(observing(out, **options))

    def end(*_: Any, **__: Any) -> None:
        observed.close()

    methods = {begins: begin, **dict.fromkeys(ends, end)}
    return type("Observes", (getattr(importlib.import_module(package), base),), methods)()
