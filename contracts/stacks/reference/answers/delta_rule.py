"""The gated delta rule by itself (spec/delta_rule.py)."""

from __future__ import annotations

from contracts.spec.delta_rule import DeltaCall, DeltaRun


class DeltaRuleAnswers:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset({"run_delta_rule"})

    def run_delta_rule(self, call: DeltaCall) -> DeltaRun:
        import torch

        from contracts.instruments import numerics
        from contracts.stacks.reference.kernels import delta_rule as kernel

        learns = call.dy is not None
        given = {name: each.requires_grad_(learns) for name, each in numerics.tensors(call.tensors).items()}
        rows, tokens = given["g"].shape[:2]
        documents = torch.zeros(rows, tokens, dtype=torch.int64)
        y, state = kernel.gated_delta_rule(
            **given,
            documents=documents if call.documents is None else numerics.tensor(call.documents),
            chunk=call.chunk or kernel.CHUNK,
            unit_keys=call.unit_keys,
        )
        gradients = {}
        if call.dy is not None:
            objective = (y * numerics.tensor(call.dy)).sum()
            if call.dstate is not None:
                objective = objective + (state * numerics.tensor(call.dstate)).sum()
            gradients = dict(zip(given, torch.autograd.grad(objective, list(given.values())), strict=True))
        return DeltaRun(y=numerics.array(y), state=numerics.array(state), gradients=numerics.arrays(gradients))
