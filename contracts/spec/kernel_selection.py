"""What is asked where somebody else's kernel may run in place of the stack's own, and what runs in FP8 (KRN-01, PREC).

A site is a place in a model at which there is a choice: `attention` (the projections of A), `mlp` (dense and shared
MLPs), `experts`, `scan` (of M), `recurrence` (of R). `native` is the stack's own code and runs everywhere. What was
asked for, what runs and why they differ is one row, a `Seam`. Facts about the machine are a value, so that every
fallback can be judged on a machine that has nothing installed; `kernel_facts` gives those of this one.

FP8 is a definition too, and a stack that emulates it has the same numbers as one that has the tensor cores, up to the
order of sums:

- Both factors of y = x wᵀ are quantised, and both factors of dx = dy w and of dw = dyᵀ x; products are added up in
  float32 at least. Format e4m3 (largest 448) is for all three tensors; hybrid has e5m2 (57344) for dy.
- Quantised is round(clamp(t · scale)) / scale: the clamp to the largest of the format comes first, always, and the
  rounding is to the nearest, ties to even, from float32. Nothing else is: a weight is quantised as it is held.
- tensorwise: scale = largest / amax of this tensor, 1 where amax is 0. blockwise (arXiv 2412.19437, section 3.3): the
  same for 1 x 128 elements of x and dy along the dim that the product sums over, and for 128 x 128 of w.
  mxfp8 (OCP MX 1.0; arXiv 2506.08027): for 32 elements of any of them along that dim, the scale being the greatest
  power of two at which amax is not clamped. The last block may be short.
- delayed (arXiv 2209.05433): the scale is that of the steps before. Beside the weight, under the name of its matrix,
  stand the buffers `fp8.amax_history` (length, 3, matrices) and `fp8.scale` (3, matrices): input, weight and gradient;
  experts have one column each and `experts.fp8.w1.` before the names, other matrices one. A pass raises row 0 to the
  amax that it met and changes no scale. The step's end sets scale = largest / the greatest of the ring (as it was where
  that is 0), moves the ring one row on and clears row 0. Rings begin at 0, scales at 1.
- An expert is a matrix of its own, quantised with its own tokens.
- Router, norms, embeddings, head, convolutions, biases, the parameters of recurrences (A_log, D, dt_bias, W) and the
  maps of hyper-connections stay out. Everything else is the stack's to decide, and to declare: `precision_plan`.
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
    """What became of looking for a package: `broken` is installed and cannot be imported, `words` say why."""

    state: Literal["absent", "broken", "importable"]
    version: str | None = None
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A machine, as far as a choice of kernels depends on it.

    `capability` is what the driver says (`sm_90`), None without a device that has one. A package that is not named is
    absent.
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
    """What a parameter takes part in a step with; `fp8` means that its product is one of FP8 factors."""

    name: str
    compute: Compute


class Seams(Party, Protocol):
    """Whose kernels run, and in which precision."""

    def kernel_facts(self) -> Facts:
        """The facts of the machine that answers. Packages are imported in a process of their own."""
        ...

    def seams(self, recipe: Recipe, mode: Mode, requested: Mapping[Site, Wish], facts: Facts) -> tuple[Seam, ...]:
        """What would run at every site that the recipe has, each once. A site without a wish has the stack's default.

        Refuses a kernel that does not exist for its site, and a required one that cannot run.
        """
        ...

    def precision_plan(self, recipe: Recipe, mode: Mode) -> tuple[Computed, ...]:
        """Every parameter of the model with the precision it computes in, read off the model that was built."""
        ...
