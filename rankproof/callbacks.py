"""Callbacks that observe a Trainer's training, of transformers, Lightning and OLMo-core: `rankproof.observing` from its
first batch to its last.

>>> from rankproof.callbacks import transformers_callback
>>> Trainer(..., callbacks=[transformers_callback("runs/x")])  # doctest: +SKIP
"""

import atexit
import functools
import importlib
from contextlib import ExitStack
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any


def transformers_callback(out: Path | str, **options: Any) -> Any:
    """A callback for `transformers.Trainer`; `options` are as for `rankproof.observing`."""
    return _made("transformers", "TrainerCallback", "on_train_begin", "on_train_end")(str(out), options)


def lightning_callback(out: Path | str, **options: Any) -> Any:
    """A callback for Lightning's `Trainer`, whatever has started its ranks; `options` as above."""
    return _made("lightning.pytorch", "Callback", "on_train_start", "on_train_end", "on_exception")(str(out), options)


def olmo_core_callback(out: Path | str, **options: Any) -> Any:
    """A callback for OLMo-core's `Trainer` or its configuration; `options` as above."""
    return __getattr__("OLMoCoreCallback")(str(out), options)


def __getattr__(name: str) -> Any:
    """OLMo-core writes a callback of a configuration as the name and the fields of its class, and makes it anew."""
    if name != "OLMoCoreCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made("olmo_core.train.callbacks", "Callback", "pre_train", "post_train", "on_error", name=name)


@functools.cache
def _made(package: str, base: str, begins: str, *ends: str, name: str = "Observes") -> Any:
    """A callback that observes from one of its methods to another; nobody calls that if the training fails."""

    def begin(self: Any, *_: Any, **__: Any) -> None:
        from rankproof import observing

        self.observed = ExitStack()
        atexit.register(self.observed.close)
        self.observed.enter_context(observing(self.out, **self.options))

    def end(self: Any, *_: Any, **__: Any) -> None:
        self.observed.close()

    fields: list[Any] = [("out", str), ("options", dict[str, Any], field(default_factory=dict))]
    methods = {begins: begin, **dict.fromkeys(ends, end), "__module__": __name__}
    return make_dataclass(name, fields, bases=(getattr(importlib.import_module(package), base),), namespace=methods)
