"""Blocks that run another kernel than their rows state."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.model.blocks import Experts
from contracts.stacks.reference.stack import Reference


@broken(Experts, "backend", "KRN-01g[experts]: experts ran as native, but its row says torch-grouped")
def loops_where_it_says_grouped(backend, self, x):
    """The grouped kernel is switched off inside the block, below the place where the choice is recorded."""
    return "loop"


@broken(Reference, "closed_to_grouped", "KRN-01g[experts]: experts ran as torch-grouped, but its row says native")
def forgets_the_grouped_kernel(closed_to_grouped, self, recipe, facts):
    """The rows have no grouped kernel, but it runs."""
    return ["no grouped kernel is built in"]


@broken(
    Reference,
    "closed_to_grouped",
    "KRN-01g[experts-fp32]: experts ran as native, but its row says torch-grouped",
    "KRN-01g[experts-fp8]: experts ran as native, but its row says torch-grouped",
)
def says_grouped_of_everything(closed_to_grouped, self, recipe, facts):
    """Records the choice before checking dtype and FP8."""
    return []


@broken(
    Reference,
    "run_block",
    "KRN-01g[scan]: sites that ran are [], expected ['scan']",
    "PREC-03a[projections]: attention ran as None, expected native",
)
def notes_nothing(run_block, self, call):
    """Does not record what ran."""
    return replace(run_block(self, call), kernels={})


@broken(
    Reference,
    "run_block",
    "KRN-01g[attention]: attention ran as transformer-engine, but its row says native",
    "PREC-03a[dense]: mlp ran as transformer-engine, expected native",
)
def notes_the_wish(run_block, self, call):
    """Records the requested kernel as the one that ran: the receipt claims a kernel that is not installed."""
    run = run_block(self, call)
    wished = {site: wish.kernel for site, wish in call.kernels.items() if site in run.kernels}
    return replace(run, kernels={**run.kernels, **wished})


@broken(
    Reference,
    "run_block",
    "KRN-03d[experts-fp32]: torch-grouped is named at experts, and of its launches on cpu a profiler saw none",
    "KRN-03c[experts-fp32]: torch-grouped is named at experts, and of its launches on cuda a profiler saw none",
)
def notes_the_default(run_block, self, call):
    """Experts are grouped by default, so the note is a constant."""
    run = run_block(self, call)
    return replace(
        run, kernels={site: "torch-grouped" if site == "experts" else ran for site, ran in run.kernels.items()}
    )


@broken(
    Reference,
    "run_block",
    "KRN-03d[experts]: torch-grouped is named at no site, and of its launches on cpu a profiler saw aten::_grouped_mm",
    "KRN-03c[experts]: torch-grouped is named at no site, and of its launches on cuda a profiler saw",
)
def calls_everything_native(run_block, self, call):
    """Whatever torch has built in counts as the stack's own code."""
    run = run_block(self, call)
    return replace(run, kernels=dict.fromkeys(run.kernels, "native"))
