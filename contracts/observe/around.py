"""A root module whose `forward` a script calls by name: torch's hooks see only its parts, its frame is on the stack."""

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from torch import nn

_ARGS, _KWARGS = 4, 8  # flags of a code object that takes *args, **kwargs


def around(part: nn.Module) -> tuple[FrameType | None, nn.Module | None]:
    """The outermost `forward` that is running of a module that has `part`, with that module; the recorder calls this
    from its hook, in front of which is the call of `part` itself."""
    found: tuple[FrameType | None, nn.Module | None] = (None, None)
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "forward" and frame.f_code.co_argcount:
            owner = frame.f_locals.get(frame.f_code.co_varnames[0])
            if isinstance(owner, nn.Module) and owner is not part and any(each is part for each in owner.modules()):
                found = frame, owner
        frame = frame.f_back
    return found


def given(frame: FrameType) -> Mapping[str, Any]:
    """The arguments of a `forward`, without the module: as they are now, which is before its first part runs."""
    code, known = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[1 : count + bool(code.co_flags & _ARGS)]
    more = code.co_varnames[count + bool(code.co_flags & _ARGS)] if code.co_flags & _KWARGS else ""
    return {name: known[name] for name in names if name in known} | dict(known.get(more) or {})
