"""The gated delta rule by itself (spec/delta_rule.py)."""

from contracts.spec.delta_rule import DeltaCall, DeltaRun


class DeltaRuleAnswers:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset({"run_delta_rule"})

    def run_delta_rule(self, call: DeltaCall) -> DeltaRun:
        import torch

        from contracts.instruments import numerics
        from contracts.stacks.kit.delta_rule import passed
        from contracts.stacks.reference.kernels import delta_rule as kernel

        one = torch.zeros(call.tensors["g"].shape[:2], dtype=torch.int64)
        documents = one if call.documents is None else numerics.tensor(call.documents)
        chunk = call.chunk or kernel.CHUNK
        return passed(
            call,
            lambda given: kernel.gated_delta_rule(**given, documents=documents, chunk=chunk, unit_keys=call.unit_keys),
        )
