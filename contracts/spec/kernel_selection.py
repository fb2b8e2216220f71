"""Questions about kernel selection (whose kernel runs at each site) and about FP8 (KRN-01, PREC).

A site is a place in a model where several kernels may run: `attention` (the projections of A), `mlp` (dense and shared
MLPs), `experts`, `scan` (of M), `recurrence` (of R). `native` is the stack's own code and runs everywhere. A `Seam` is
one row: the kernel that was requested, the kernel that runs, and why they differ. Facts about the machine are a value,
so every fallback can be judged on a machine that has nothing installed; `kernel_facts` returns those of this machine.

FP8 is defined here. A stack that emulates it and a stack on tensor cores have the same numbers, up to the order of
sums:

- Both factors of y = x wᵀ are quantised, and both factors of dx = dy w and of dw = dyᵀ x; products accumulate in
  float32 at least. Format e4m3 (largest value 448) is for all three tensors; hybrid has e5m2 (57344) for dy.
- Quantisation is round(clamp(t · scale)) / scale. The clamp to the largest value of the format always comes first; the
  rounding is to nearest, ties to even, from float32. A weight is quantised from the dtype in which it is stored.
- tensorwise: scale = largest / amax of this tensor, 1 where amax is 0. blockwise (arXiv 2412.19437, section 3.3): the
  same for 1 x 128 elements of x and dy along the dim that the product sums over, and for 128 x 128 of w.
  mxfp8 (OCP MX 1.0; arXiv 2506.08027): for 32 elements of any of them along that dim, the scale being the greatest
  power of two at which amax is not clamped. The last block may be short.
- delayed (arXiv 2209.05433): the scale comes from earlier steps. Each matrix has the buffers `fp8.amax_history`
  (length, 3, matrices) and `fp8.scale` (3, matrices) under its name, for input, weight and gradient. Experts have one
  column each, and the prefix `experts.fp8.w1.`; other matrices have one column. A pass raises row 0 of the history to
  the amax that it saw and changes no scale. The end of a step sets scale = largest / maximum of the history (unchanged
  if that is 0), shifts the history by one row and clears row 0. Histories begin at 0, scales at 1.
- Each expert is a matrix of its own, quantised with its own tokens.
- Router, norms, embeddings, head, convolutions, biases, the parameters of recurrences (A_log, D, dt_bias, W) and the
  maps of hyper-connections are never FP8. The stack decides everything else, and declares it in `precision_plan`;
  a scan beside attention is as one in a layer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from contracts.spec.party import Party
from contracts.spec.recipe import Mode, Recipe

Site = Literal["attention", "mlp", "experts", "scan", "recurrence"]
Kernel = Literal["native", "torch-grouped", "mamba-ssm", "transformer-engine"]
Compute = Literal["fp8", "bfloat16", "float16", "float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Package:
    """The state of a package. A `broken` one is installed and cannot be imported; `words` say why."""

    state: Literal["absent", "broken", "importable"]
    version: str | None = None
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of a machine on which the choice of kernels depends.

    `capability` is the driver's answer (`sm_90`); None without a CUDA device. Packages that are not named are absent.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    capability: str | None = None
    packages: Mapping[str, Package] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The kernel that is asked for at a site; `required` forbids a fallback."""

    kernel: Kernel
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class Seam:
    """What runs at a site. `reason` is None exactly when `actual` is what was requested."""

    site: Site
    requested: Kernel
    actual: Kernel
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Computed:
    """The precision in which a step uses a parameter; `fp8` means that its matrix product has FP8 factors."""

    name: str
    compute: Compute


class Seams(Party, Protocol):
    """Which kernel runs at each site, and in which precision."""

    def kernel_facts(self) -> Facts:
        """The facts of the machine that answers. Packages are probed in a separate process."""
        ...

    def seams(self, recipe: Recipe, mode: Mode, requested: Mapping[Site, Wish], facts: Facts) -> tuple[Seam, ...]:
        """What would run at each site of the recipe, each site once. A site without a wish has the stack's default.

        Raises `Refused` for a kernel that does not exist for its site, and for a required kernel that cannot run.
        """
        ...

    def precision_plan(self, recipe: Recipe, mode: Mode) -> tuple[Computed, ...]:
        """Every parameter of the model with its compute precision, read off the built model."""
        ...
