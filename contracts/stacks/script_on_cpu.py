"""A script of a stack that knows only accelerators, on this CPU over gloo, by the shims of its adapter."""

import contextlib
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


@contextlib.contextmanager
def on_cpu(stack: str) -> Iterator[str]:
    """The shims for a whole script of `stack`, megatron or torchtitan, or for any that knows cuda; gives the label that
    its trace must show.

    Raises:
        Unreachable: where the stack is not installed, or a version lacks what has to be replaced.
    """
    import torch  # `rankproof --help` does not need it
    import torch.distributed as dist

    with contextlib.ExitStack() as undone:
        if stack == "cuda":
            from contracts.stacks.cuda_on_cpu import cuda_is_the_cpu

            yield undone.enter_context(cuda_is_the_cpu())
            return
        if stack == "torchtitan":
            from torch.distributed.fsdp import FSDPModule

            from contracts.stacks.torchtitan import shims

            shims.apply()
            scale = FSDPModule.set_gradient_divide_factor

            def sums(module: FSDPModule, factor: float) -> None:
                scale(module, factor)
                module.set_force_sum_reduction_for_comms(True)

            undone.callback(setattr, FSDPModule, "set_gradient_divide_factor", scale)
            setattr(FSDPModule, "set_gradient_divide_factor", sums)  # noqa: B010  # a method of another type
            lacks: dict[str, Any] = {"get_device_name": lambda *_: "cpu",
                     "get_device_properties": lambda *_: SimpleNamespace(total_memory=1),
                     "reset_peak_memory_stats": lambda: None, "empty_cache": lambda: None,
                     "memory_stats": lambda *_: {}}  # fmt: skip
            for name, put in lacks.items():  # of torch.cpu, which its logger asks as if it were torch.cuda
                setattr(torch.cpu, name, put)
                undone.callback(delattr, torch.cpu, name)
            utils: Any = importlib.import_module("torchtitan.distributed.utils")
            undone.callback(setattr, utils, "set_pg_timeouts", utils.set_pg_timeouts)
            utils.set_pg_timeouts = lambda *_, **__: None  # it begins with a barrier on a device, which gloo refuses
            used = ("device", "kernels", "experts", "sums")
            said = [*(shims.SHIMS[each] for each in used), "no memory is reported", "no timeout is set"]
            yield f"shimmed: {'; '.join(said)}"
            return
        from contracts.stacks.megatron import shims as megatron

        class Moved(torch.overrides.TorchFunctionMode):
            """`.to("cuda")` stays here."""

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                moves = getattr(func, "__name__", "") == "to" and len(args) > 1 and str(args[1]).startswith("cuda")
                return func(*((args[0], "cpu", *args[2:]) if moves else args), **(kwargs or {}))

        undone.enter_context(megatron.running_on())
        undone.enter_context(Moved())
        begin = dist.init_process_group
        for owner, name, put in (
            (dist, "init_process_group", lambda *_, backend=None, **named: begin("gloo", **named)),
            (importlib.import_module("megatron.core.datasets.utils"), "compile_helpers", lambda: None),  # in the wheel
            (torch.cuda, "set_device", lambda *_: None),
            (torch.cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state()),
            (torch.cuda, "set_rng_state", lambda *_, **__: None),
        ):
            undone.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, put)
        yield megatron.LABEL + ', "cuda" is the CPU, nccl is gloo, random states of CUDA are the CPU\'s'
