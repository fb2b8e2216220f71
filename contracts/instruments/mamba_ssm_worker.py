"""Runs mamba-ssm's own Triton kernels on a CPU, in float32. It is run as a file by an interpreter with mamba-ssm.

    python -O mamba_ssm_worker.py REQUEST ANSWER

Both are files of `torch.save`: a list of requests, and one answer to each. A request without `dy` has no backward pass.
Triton's interpreter replaces the GPU; `on_the_cpu` says what else is replaced, and why. The algorithm and the gradients
are the package's own. The code that a compiler makes of them for a GPU is not tested. `-O` disables assertions that a
tensor is on a GPU.
"""

import contextlib
import gc
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class _WideTorch(ModuleType):
    """torch, but the name bfloat16 means float32."""

    bfloat16 = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def on_the_cpu() -> None:
    """Make mamba-ssm's kernels run without a GPU.

    - torch.cuda must name a device and its number of processors;
    - autotuners would time hundreds of configurations, so each takes its first;
    - four functions are PTX, which the interpreter lacks; the exact functions replace them;
    - Mamba-3 casts its inputs and saved states to bfloat16, whose arithmetic is wrong in the interpreter (it adds the
      bits as integers), so in those two modules bfloat16 means float32.
    """
    torch.cuda.device = lambda *_: contextlib.nullcontext()  # type: ignore[assignment,misc]
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=1)  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so before these
    import mamba_ssm.modules.mamba2
    import mamba_ssm.modules.mamba3  # noqa: F401
    import triton
    import triton.language as tl

    for each in gc.get_objects():
        if isinstance(each, triton.runtime.autotuner.Autotuner):
            each.configs, each.early_config_prune = each.configs[:1], None
    replaced = {  # lambdas, because the interpreter replaces the functions of tl while a kernel runs
        "cos_approx": lambda x: tl.cos(x),  # noqa: PLW0108
        "sin_approx": lambda x: tl.sin(x),  # noqa: PLW0108
        "tanh_approx": lambda x: 2 * tl.sigmoid(2 * x) - 1,
        "sech2_approx": lambda x: 4 * tl.sigmoid(2 * x) * (1 - tl.sigmoid(2 * x)),
    }
    for name, module in list(sys.modules.items()):
        if name.startswith("mamba_ssm.ops.triton.mamba3"):
            for function in replaced.keys() & vars(module).keys():
                setattr(module, function, replaced[function])
        if name.endswith(("mamba3_siso_fwd", "mamba3_siso_combined")):
            setattr(module, "torch", _WideTorch("torch"))  # noqa: B010


def block(request: dict[str, Any]) -> dict[str, Any]:
    """A whole module: `module`, its `arguments`, `weights`, `u` and `dy` → `y` and `gradients` by weight and by `u`.

    `passed` holds what a Mamba-3 module gave its kernel: A dt, dt and trap.
    """
    from mamba_ssm.modules import mamba2, mamba3

    passed: dict[str, Tensor] = {}
    kernel = mamba3.mamba3_siso_combined

    def recorded(**inputs: Any) -> Any:
        passed.update({name: inputs[name].detach().clone() for name in ("ADT", "DT", "Trap")})
        return kernel(**inputs)

    module = {"Mamba2": mamba2.Mamba2, "Mamba3": mamba3.Mamba3}[request["module"]](**request["arguments"])
    module.load_state_dict(request["weights"])
    u = request["u"].requires_grad_()
    mamba3.mamba3_siso_combined = recorded
    try:
        y = module(u)
    finally:
        mamba3.mamba3_siso_combined = kernel
    leaves = dict(module.named_parameters()) | {"u": u}
    return {"y": y.detach(), "gradients": _gradients(y, request.get("dy"), leaves), "passed": passed}


def ssd(request: dict[str, Any]) -> dict[str, Any]:
    """The scan of Mamba-2: x, dt, A, B, C, D, dt_bias, `initial_states` → y and its last state."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    inputs = {name: each.requires_grad_() for name, each in request["inputs"].items()}
    y, state = mamba_chunk_scan_combined(
        **inputs,
        chunk_size=request["chunk"],
        seq_idx=request.get("seq_idx"),
        dt_softplus=True,
        return_final_states=True,
    )
    return {"y": y.detach(), "state": state.detach(), "gradients": _gradients(y, request.get("dy"), inputs)}


def siso(request: dict[str, Any]) -> dict[str, Any]:
    """The scan of Mamba-3: Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D, Z; `states` angle, ssm, k and v."""
    from mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined

    inputs = {name: each.requires_grad_() for name, each in request["inputs"].items()}
    given = {name: each.requires_grad_() for name, each in request.get("states", {}).items()}
    names = ("angle", "ssm", "k", "v")
    y, *states = mamba3_siso_combined(
        **inputs, Input_States=tuple(given[name] for name in names) if given else None, chunk_size=request["chunk"],
        return_final_states=True,
    )  # fmt: skip
    leaves = inputs | {f"states.{name}": each for name, each in given.items()}
    return {
        "y": y.detach(),
        "states": {name: each.detach() for name, each in zip(names, states, strict=True)},
        "gradients": _gradients(y, request.get("dy"), leaves),
    }


def _gradients(y: Tensor, dy: Tensor | None, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    if dy is None:
        return {}
    found = torch.autograd.grad((y * dy).sum(), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def main(request: str, answer: str) -> None:
    torch.set_num_threads(1)
    on_the_cpu()
    ask = {"block": block, "ssd": ssd, "siso": siso}
    torch.save([ask[each["kernel"]](each) for each in torch.load(request, weights_only=True)], answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
