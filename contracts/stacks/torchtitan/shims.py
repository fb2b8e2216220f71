"""The changes to torchtitan that let it run on a CPU over gloo: one function per change, each with its reason.

Nothing is changed silently. A function that does not find what it has to change raises `Unreachable`, and the texts in
`SHIMS` are labels of the stack, so every report shows them. Tried with 0.3.0, and with 0.2.2
for its topology and its own trainer.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from contracts.spec import Unreachable, install_by
from contracts.stacks.kit.exact_kernels import exact_kernels

if TYPE_CHECKING:
    import torch

SHIMS = {
    "device": "the device that is asked for in torchtitan.tools.utils, which takes an accelerator if there is one",
    "counts": "torch.histc of whole numbers, which a CPU has not, as that of floating ones",
    "shares": "up to April 2026, a shared expert of any width: how many experts it is as wide as need not be whole",
    "lengths": "its seq_len, which sizes rope's table, at the next multiple of 2 TP, which 0.2.2 asserts of it",
    "heads": "attention on each rank's own heads: DTensor has no rule for the kernel of CPUs, which is the same",
    "permutes": "its permutation of tokens by its own use_cpu, in place of its triton kernel",
    "kernels": "empty modules for kernels where triton is missing: of minimal_async_ep, whose dispatcher is not used",
    "experts": "experts' products in the dtype of their input; GroupedExperts.forward rounds to bfloat16",
    "sums": "fully_shard adds and does not scale: gloo has no PREMUL_SUM, and the factor is 1",
    "stages": "microbatches are joined before torch's pipeline schedules cut them: step() of torch 2.13 takes no list",
    "attention": "its ScaledDotProductAttention in place of flex_attention, which wants a compiler, one row at a time "
    "where its layers take all rows as one",
    "wide": "in float64, experts' products one expert at a time, for torch._grouped_mm has no float64, and gates and "
    "outputs multiplied, rope's angles and turns and the loss in float64, which it rounds to float32",
    "compiled": "under a compiler, torch's meta kernel of the grouped product takes float32, where it takes bfloat16 "
    "alone: one name in its code is another",
    "muon": "DistMuon takes tensors on a CPU, where it asks for a CUDA device: one constant in its code is another",
    "gate": "under bfloat16 the router's product in float32, as its autocast asks: autocast of a CPU knows no float32",
}
"""Every shim, by its name in the labels."""

ON_CPU = frozenset({"counts", "permutes", "muon", "gate"})
"""Those without effect on an accelerator."""


def label(*names: str) -> str:
    """What a report says of the shims of an answer."""
    every = [name for name in names if name not in ON_CPU]
    here = [SHIMS[name] for name in names if name in ON_CPU]
    return f"shimmed: {'; '.join(SHIMS[name] for name in every)}{'; on a CPU also ' if here else ''}{'; '.join(here)}"


def set_device_type(device: str = "cpu") -> None:
    """Set the device type, in what has copied it too: 0.2.2 imports half of itself with its first module.

    Raises:
        Unreachable: if `torchtitan.tools.utils` has no such name.
    """
    import torch

    utils = _module("torchtitan.tools.utils")
    for name, value in (("device_type", device), ("device_module", torch.get_device_module(device))):
        if not hasattr(utils, name):
            raise Unreachable(
                f"could not reach torchtitan.tools.utils.{name}: the device type of this version is elsewhere"
            )
        for module in [each for path, each in sys.modules.items() if path.startswith("torchtitan.")]:
            if name in vars(module):
                setattr(module, name, value)


@contextlib.contextmanager
def computing_on(device: str) -> Iterator[None]:
    """Inside, torchtitan computes on that device, and its kernels give equal bits; afterwards on the CPU again.

    Its trainer takes the device with the number LOCAL_RANK. Ranks may share one, and have chosen it before.
    """
    import torch

    here = os.environ.get("LOCAL_RANK", "0") if device == "cpu" else torch.get_device_module(device).current_device()
    set_device_type(device)
    try:
        with exact_kernels(device), patch.dict(os.environ, LOCAL_RANK=str(here)):
            yield
    finally:
        set_device_type()


KERNELS = (
    "torchtitan.distributed.minimal_async_ep.kernels", "torchtitan.models.moe.kernels",
    "torchtitan.models.common.moe.kernels",
)  # fmt: skip
"""Modules of 0.3.0, of 0.2.2 and of main in March and April 2026 that import triton when they are imported."""


INSTALL = install_by("make titan", "pip install torchtitan")


def without_triton() -> None:
    """Replace the modules of triton kernels by modules whose functions refuse to be called."""
    if importlib.util.find_spec("triton") is not None:
        return
    found = importlib.util.find_spec("torchtitan")  # does not import it: 0.2.2 needs triton at its first line
    if found is None or found.origin is None:
        raise Unreachable(f"could not reach torchtitan; `{INSTALL}` installs it")
    root = Path(found.origin).parent.parent
    for name in KERNELS:
        source = root / f"{name.replace('.', '/')}.py"
        if name in sys.modules or not source.exists():
            continue
        stub = ModuleType(name)
        tree = ast.parse(source.read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                setattr(stub, node.name, _absent)
        if name.endswith("moe.kernels"):
            _permutes_on_a_cpu(stub, tree)
        sys.modules[name] = stub


def _permutes_on_a_cpu(stub: ModuleType, tree: ast.Module) -> None:
    """Give `generate_permute_indices` of 0.2.2 back, with its own argument `use_cpu`."""
    import torch

    own = ("generate_permute_indices", "fill_indices_cpu")
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in own]
    stub.__dict__["torch"] = torch
    exec(compile(tree, stub.__name__, "exec"), stub.__dict__)  # the functions of the installed package
    stub.__dict__[own[0]] = functools.partial(stub.__dict__[own[0]], use_cpu=True)


def whole_numbers_are_counted() -> None:
    """Let `torch.histc` take whole numbers, of which its router counts experts; a CPU counts only floating ones."""
    import torch

    histc = torch.histc
    if getattr(histc, "counts_whole_numbers", False):
        return

    def counted(given: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        whole = given.device.type == "cpu" and not given.is_floating_point()
        return histc(given.float(), *rest, **named).to(given.dtype) if whole else histc(given, *rest, **named)

    setattr(counted, "counts_whole_numbers", True)  # noqa: B010  # a function has no such field
    setattr(torch, "histc", counted)  # noqa: B010  # its stub has named arguments


def attention_of_own_heads() -> None:
    """Run attention up to March 2026 on the heads that a rank has, as DTensor's rule for kernels of accelerators does.

    Raises:
        Unreachable: where its queries are cut by something else than heads.
    """
    from torch.distributed.tensor import DTensor, Shard

    from contracts.stacks.torchtitan.layer_symbols import wrapped_attention

    wrapper = wrapped_attention()
    if wrapper is None or getattr(wrapper.forward, "has_own_heads", False):
        return
    whole = wrapper.forward

    def forward(self: Any, *qkv_BNTH: Any, **named: Any) -> Any:
        q_BNTH = qkv_BNTH[0]
        if not isinstance(q_BNTH, DTensor):
            return whole(self, *qkv_BNTH, **named)
        if any(not each.is_replicate() and each != Shard(1) for given in qkv_BNTH for each in given.placements):
            raise Unreachable(f"could not reach its attention: its queries are placed {q_BNTH.placements}")
        own_BNTH = whole(self, *(each.to_local() for each in qkv_BNTH), **named)
        return DTensor.from_local(own_BNTH, q_BNTH.device_mesh, q_BNTH.placements)

    setattr(forward, "has_own_heads", True)  # noqa: B010  # a function has no such field
    wrapper.forward = forward


def _absent(*_: Any, **__: Any) -> None:
    raise NotImplementedError("a kernel of torchtitan's was called, and triton is not installed")


def experts_keep_their_dtype() -> None:
    """Make the call of `bfloat16` in `GroupedExperts.forward` a call without effect; the code itself is unchanged.

    Raises:
        Unreachable: if the forward pass has no such call.
    """
    from contracts.stacks.torchtitan.layer_symbols import of_experts

    forward = of_experts()
    names = forward.__code__.co_names
    if {"float", "double"} & {*names} and "bfloat16" not in names:
        return  # already done
    if "bfloat16" not in names:
        raise Unreachable("could not reach the rounding of GroupedExperts.forward: it calls no bfloat16")
    forward.__code__ = forward.__code__.replace(
        co_names=tuple("float" if name == "bfloat16" else name for name in names)
    )


ROUNDS = {"torch.bfloat16": "bfloat16", "torch.float32": "float", "torch.float64": "double"}
"""The method that rounds a tensor to a dtype."""
WIDER = {"float": "double", "float32": "float64"}
"""What names a rounding to float32, and the other name."""


@contextlib.contextmanager
def block_in(dtype: torch.dtype) -> Iterator[None]:
    """Inside, experts compute in the dtype of the call, and a call in float64 rounds nowhere.

    Raises:
        Unreachable: if this version rounds somewhere else.
    """
    from contracts.stacks.torchtitan import layer_symbols

    wide = str(dtype) == "torch.float64"
    experts_keep_their_dtype()
    functions = [(layer_symbols.of_experts(), {"float": ROUNDS[str(dtype)]})]
    if wide:
        functions += [(each, WIDER) for each in layer_symbols.roundings()]
    with contextlib.ExitStack() as undone:
        for function, others in functions:
            undone.callback(setattr, function, "__code__", function.__code__)
            _renamed(function, others)
        if wide:
            undone.enter_context(layer_symbols.products_by(_one_by_one))
        yield


def _renamed(function: FunctionType, others: Mapping[str, str]) -> None:
    """Replace names of attributes in a function's code; the code itself is unchanged."""
    names, wanted = function.__code__.co_names, " or ".join(others)
    loaded = {each.argval for each in dis.get_instructions(function) if each.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    others = {name: other for name, other in others.items() if name in loaded}  # `float` may be an annotation's
    if not others:
        raise Unreachable(f"could not reach the rounding of {function.__qualname__}: it names no {wanted}")
    function.__code__ = function.__code__.replace(co_names=tuple(others.get(each, each) for each in names))


@contextlib.contextmanager
def compiled_in_float32() -> Iterator[None]:
    """Let torch's meta kernel of the grouped product, which gives compilers shapes, accept what the kernel accepts.

    Raises:
        Unreachable: if torch 2.13's check is somewhere else.
    """
    from torch import _meta_registrations as meta

    check = getattr(meta, "_meta_grouped_mm_common", None)
    if check is None:
        raise Unreachable("could not reach the meta kernel of the grouped product: this torch has another")
    code = check.__code__
    _renamed(check, {"bfloat16": "float32"})
    try:
        yield
    finally:
        check.__code__ = code


@contextlib.contextmanager
def muon_on_a_cpu() -> Iterator[None]:
    """Let DistMuon, which asks for tensors on a CUDA device, take those of a CPU: one constant in its code is another.

    Raises:
        NotOffered: where it has no Muon. Unreachable: if the question about its device is somewhere else.
    """
    from contracts.stacks.torchtitan import symbols

    check = symbols.muon().DistMuon._validate_parameter_storage
    code = check.__code__
    if "cuda" not in code.co_consts:
        raise Unreachable(f"could not reach the device of {check.__qualname__}: it names no cuda")
    check.__code__ = code.replace(co_consts=tuple("cpu" if each == "cuda" else each for each in code.co_consts))
    try:
        yield
    finally:
        check.__code__ = code


def _one_by_one(*given: Any, offs: Any, **named: Any) -> Any:
    """Replaces `GroupedExperts._grouped_mm`, a hook of torchtitan's own, or torch's, by one product per expert."""
    import torch

    A, B_t = (named["A"], named["B_t"]) if named else given
    ends = offs.tolist()
    starts = [0, *ends[:-1]]
    return torch.cat([A[start:end] @ B_t[e] for e, (start, end) in enumerate(zip(starts, ends, strict=True))])


def wide_gate(router: Any, dtype: torch.dtype) -> None:
    """Like `autocast(dtype=float32)` on a GPU: the product in float32, from the weight as it is given."""
    from torch.nn.functional import linear

    from contracts.stacks.torchtitan.layer_symbols import gates_in_float32

    if str(dtype) == "torch.bfloat16" and gates_in_float32():
        gate = router.gate
        gate.forward = lambda x_BTD: linear(x_BTD.float(), gate.weight.float())


def sums_alone(modules: Iterable[Any]) -> None:
    """Make every FSDP unit sum gradients, with public torch; torchtitan has already set the factor to 1."""
    from torch.distributed.fsdp import FSDPModule

    for root in modules:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


def whole_batches(schedule: Any) -> None:
    """Pass a schedule the whole batch if its `step` has no `arg_mbs`; torchtitan 0.3.0 expects a newer torch's."""
    import torch

    whole = schedule.step
    if "arg_mbs" in inspect.signature(whole).parameters:
        return

    def step(*, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, **rest: Any) -> Any:
        names = kwarg_mbs[0] if kwarg_mbs else ()
        kwargs = {name: torch.cat([each[name] for each in kwarg_mbs]) for name in names}
        args = [torch.cat(each) for each in zip(*arg_mbs, strict=True)] if arg_mbs else []
        return whole(*args, target=torch.cat(target_mbs) if target_mbs else None, **kwargs, **rest)

    schedule.step = step


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unreachable(f"could not reach {name}: {error}; `{INSTALL}` installs torchtitan") from None


def apply() -> None:
    """Apply every shim that must precede the import of torchtitan, and the one on its experts."""
    without_triton()
    set_device_type()
    experts_keep_their_dtype()


@contextlib.contextmanager
def quiet() -> Any:
    """Ignore warnings of torchtitan and torch on a CPU. Each has occurred, and none is about numbers."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
