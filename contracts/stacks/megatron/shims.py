"""The shims that let Megatron-Core run on a CPU over gloo, or on a CUDA device beside no other package, with reasons.

A shim changes where something runs or supplies what this machine lacks. It never changes what is computed; if it does
more, it is labelled as substituted. Those that stand for CUDA itself are left out on a device, which has it. Every
replaced name is looked up first: a version without it raises `Unreachable` with that name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import logging
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from contracts.spec import Unreachable
from contracts.stacks.kit.exact_kernels import exact_kernels
from contracts.stacks.megatron.abilities import VERSIONS


def mcore(module: str) -> Any:
    """A module of the installed Megatron-Core."""
    return importlib.import_module(f"megatron.core.{module}")


@functools.cache
def older() -> bool:
    """Whether the installed version has a Mamba model with other letters instead of the hybrid model: up to 0.17."""
    return importlib.util.find_spec("megatron.core.models.hybrid") is None


@functools.cache
def has_convolution_module() -> bool:
    """Whether the Mamba mixer holds its convolution as a module; from 0.19 on its tensors are the mixer's own."""
    mixer = mcore("ssm.mamba_mixer").MambaMixer
    return "nn.Conv1d(" in inspect.getsource(mixer.__init__)


@functools.cache
def layer_of_a_head() -> str:
    """The name of the layer inside a prediction head, which up to 0.16 is another."""
    submodules = mcore("transformer.multi_token_prediction").MultiTokenPredictionLayerSubmodules
    names = inspect.signature(submodules).parameters
    return next(name for name in ("mtp_model_layer", "transformer_layer") if name in names)


@dataclass(frozen=True, kw_only=True)
class Shim:
    """One replaced name.

    Args:
        at: module and attribute, separated by a colon.
        put: the replacement, while a question is answered.
        why: what this machine lacks.
        optional: whether a version may lack the name, in which case nothing calls it.
        later: whether versions before the one that is named in `why` lack it, and are left as they are.
        cuda: whether it stands for CUDA, which a CPU lacks and a device has.
    """

    at: str
    put: Any
    why: str
    optional: bool = False
    later: bool = False
    cuda: bool = False

    def owner(self) -> tuple[Any, str]:
        """The object that holds the name, and the name.

        Raises:
            Unreachable: when there is no such name.
        """
        module, _, path = self.at.partition(":")
        *parents, name = path.split(".")
        try:
            found = importlib.import_module(module)
            for parent in parents:
                found = getattr(found, parent)
        except (ImportError, AttributeError) as error:
            raise Unreachable(f"{self.at}, which is replaced for {self.why}, cannot be reached: {error}") from None
        if not hasattr(found, name) and not (self.optional or self.later):
            raise Unreachable(
                f"{module} has no {path}, which is replaced for {self.why}; tried on {', '.join(VERSIONS)}"
            )
        return found, name


class Nowhere:
    """A stream or an event on a machine without them: work is done immediately."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self

    def __enter__(self) -> Nowhere:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Asked(TorchFunctionMode):
    """Answers Megatron's calls of torch as it is given here.

    Args:
        host: whether the CPU stands for a device: `device="cuda"` means the CPU, `.cuda()` does nothing, and a tensor's
            type has the name of the CUDA type.
        wide: whether float64 stays float64 when the code casts to float32, so that a run in float64 is completely so.
    """

    def __init__(self, *, host: bool, wide: bool) -> None:
        super().__init__()
        self.host, self.wide = host, wide

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "type" and len(args) == 1 and not given:
            named = func(*args).replace("torch.", "torch.cuda." if self.host else "torch.")
            return named.replace("Double", "Float") if self.wide else named
        if self.host:
            if name == "cuda":
                return args[0]
            if str(given.get("device", "")).startswith("cuda") or isinstance(given.get("device"), int):
                given["device"] = "cpu"
            given.pop("pin_memory", None)
        if name == "backward":
            with self:
                return _backward(*args, **given)
        if not self.wide:
            return func(*args, **given)
        if name == "float" and args[0].dtype is torch.float64:
            return args[0]
        if given.get("dtype") is torch.float32:
            given["dtype"] = torch.float64
        return func(*(torch.float64 if each is torch.float32 else each for each in args), **given)


def _backward(tensors: Any, gradient: Any = None, *_: Any, **named: Any) -> None:
    """`backward` without dispatch: a mode is off while it handles a call, and Megatron's own backward functions need
    it on.

    `_execution_engine` is what torch.autograd.backward calls, and Megatron's pipeline too, from torch 1 to 2.13.
    """
    several = tensors if isinstance(tensors, tuple | list) else (tensors,)
    given = named.get("grad_tensors", gradient)
    given = given if isinstance(given, tuple | list) else (given,)
    grads = tuple(torch.ones_like(each) if grad is None else grad for each, grad in zip(several, given, strict=True))
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward(
        tuple(several), grads, bool(named.get("retain_graph")), False, (), allow_unreachable=True, accumulate_grad=True
    )


def local_norm(cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> torch.nn.Module:
    """The torch norm that the local specification asks for, sequence parallel included.

    Under sequence parallel Megatron refuses torch's norm, because its weight lacks the mark that makes Megatron sum its
    gradient over the ranks. This function sets the mark, as Megatron's own norms do.
    """
    kind = {"LayerNorm": torch.nn.LayerNorm, "RMSNorm": torch.nn.RMSNorm}[config.normalization]
    made: torch.nn.Module = kind(normalized_shape=hidden_size, eps=eps, dtype=config.params_dtype)
    for weight in made.parameters():
        weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # Megatron's mark
    return made


def _splits(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """A tensor that is already on the host, in the form that callers expect after a copy to the host."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


_STREAMS = "torch.cuda streams, which a CPU does not have"
_GENERATORS = "the generators of CUDA, which a recomputed layer sets back: those of the CPU"
SHIMS: tuple[Shim, ...] = (
    Shim(at="torch:cuda.current_device", put=lambda: torch.device("cpu"), cuda=True, why="the current CUDA device"),
    Shim(at="torch:cuda.current_stream", put=Nowhere, cuda=True, why=_STREAMS),
    Shim(at="torch:cuda.Stream", put=Nowhere, cuda=True, why=_STREAMS),
    Shim(at="torch:cuda.Event", put=Nowhere, cuda=True, why=_STREAMS),
    Shim(at="torch:cuda.stream", put=Nowhere, cuda=True, why=_STREAMS),
    Shim(at="torch:cuda.synchronize", put=lambda *_: None, cuda=True, why=_STREAMS),
    Shim(
        at="megatron.core.tensor_parallel.random:CudaRNGStatesTracker.fork",
        put=lambda self, *_: contextlib.nullcontext(),
        cuda=True,
        why="the generators of CUDA: dropout is 0, and the generator of the CPU draws the weights of one rank",
    ),
    Shim(
        at="megatron.core.tensor_parallel.random:_get_cuda_rng_state",
        put=lambda *_, **__: torch.get_rng_state(),
        cuda=True,
        why=_GENERATORS,
    ),
    Shim(
        at="megatron.core.tensor_parallel.random:_set_cuda_rng_state",
        put=lambda state, *_, **__: torch.set_rng_state(state),
        cuda=True,
        why=_GENERATORS,
    ),
    Shim(
        at="megatron.core.transformer.torch_norm:WrappedTorchNorm.__new__",
        put=staticmethod(local_norm),
        why="the norms of Transformer Engine and Apex: torch's norm instead, under sequence parallel too",
    ),
    Shim(
        at="megatron.core.transformer.moe.token_dispatcher:maybe_move_tensor_to_cpu",
        put=_splits,
        cuda=True,
        why="the copy of the dispatcher's splits to the host: they are there",
    ),
    Shim(
        at="megatron.core.transformer.moe.token_dispatcher:MoEAlltoAllTokenDispatcher.cuda_dtoh_stream",
        put=None,
        why="a stream that it keeps for the process, of the CPU or of a device",
    ),
    Shim(
        at="megatron.core.transformer.moe.moe_utils:te_general_gemm",
        put=None,
        why="Transformer Engine: 0.16.1 names its matrix product without having imported it",
        optional=True,
    ),
    Shim(
        at="megatron.core.transformer.multi_latent_attention:HAVE_TE",
        put=False,
        why="Transformer Engine: 0.16.1 takes it for installed there",
    ),
    Shim(
        at="megatron.core.transformer.multi_token_prediction:is_inference_column_parallel_linear",
        put=lambda _: False,
        why="Transformer Engine: 0.20 asks for two classes that there are only with it",
        later=True,
    ),
    Shim(
        at="megatron.core.dist_checkpointing.strategies.filesystem_async:_results_queue",
        put=queue.SimpleQueue(),
        why="a queue in a process of its own, which outlives a run that is ended: writers report their files here",
    ),
)
LABEL = (
    "shimmed: on a CPU, CUDA's device, streams and generators are the CPU's, and splits of the dispatcher are on the "
    "host; norms are torch's (marked for sequence parallel), nothing is compiled, te_general_gemm is none, no layer is "
    "one of Transformer Engine for inference, writers of a checkpoint report their files in the same process; on a "
    "device the groups of one process are staged through host memory"
)


def _reduced(given: torch.Tensor, **named: Any) -> torch.Tensor:
    """The sum over tensor-parallel ranks; of a single one the tensor itself, and not a view of it."""
    group = named.get("group")
    if group is not None and group.size() == 1:
        return given
    summed: torch.Tensor = mcore("tensor_parallel.mappings").reduce_from_tensor_model_parallel_region(given, **named)
    return summed


EXPERT_BIASES = Shim(
    at="megatron.core.tensor_parallel.layers:reduce_from_tensor_model_parallel_region",
    put=_reduced,
    why="experts with biases where neither tp nor ep cuts them: they add to a view, which autograd refuses",
)
"""Only for a run, so that several ranks have one to be compared with. A block is asked without it, and raises."""
BIASED = "; experts with biases that nothing cuts sum over one rank without a view, which would raise"
WIDE = "; in float64 what asks for float32 by name is given float64"


@contextlib.contextmanager
def running_on(device: str = "cpu", *, wide: bool = False, besides: tuple[Shim, ...] = ()) -> Iterator[None]:
    """Megatron-Core on this CPU or a CUDA device, while a question is answered; `besides` are additional shims.

    Raises:
        Unreachable: when a name that must be replaced is missing.
    """
    with contextlib.ExitStack() as undone:
        for shim in (*SHIMS, *besides):
            if device == "cpu" or not shim.cuda:
                _put(shim, undone)
        undone.enter_context(exact_kernels(device))
        undone.enter_context(torch.compiler.set_stance("force_eager"))
        undone.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64 if wide else torch.float32)
        log = logging.getLogger("megatron")
        undone.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)  # it warns for every model that GPTModel is deprecated
        if device == "cpu" or wide:
            undone.enter_context(Asked(host=device == "cpu", wide=wide))
        yield


def _put(shim: Shim, undone: contextlib.ExitStack) -> None:
    owner, name = shim.owner()
    there = hasattr(owner, name)
    if (shim.optional and there) or (shim.later and not there):
        return
    if name in vars(owner):
        undone.callback(setattr, owner, name, vars(owner)[name])  # from vars(), so that a descriptor stays one
    else:
        undone.callback(delattr, owner, name)
    setattr(owner, name, shim.put)
