"""Stacks that print wrong or unproved figures."""

import json
import math
from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.stacks.reference.receipts import metrics
from contracts.stacks.reference.stack import Reference


@broken(
    Reference,
    "receipt",
    "RCPT-04[nan-gradients-finite-loss]: 65536.0 tokens/s are reported for steps",
    bugs=("PRV-29",),
)
def looks_at_the_loss(receipt, self, facts):
    """Checks only that the loss is finite, while the gradient norm is NaN in every step and no weight moves."""
    return receipt(self, replace(facts, steps=tuple(replace(step, grad_norm=1.0) for step in facts.steps)))


@broken(Reference, "receipt", "RCPT-04[no-step]: 268.0 tokens/s are reported for steps", bugs=("PRV-08",))
def cites_the_label(former, self, facts):
    """A log that crashed in initialisation is labelled with the figure of another run."""
    receipt = former(self, facts)
    return receipt if facts.steps else replace(receipt, tokens_per_second=268.0)


@broken(
    Reference, "receipt", "RCPT-04[nan-gradient-after-the-window]: tokens/s are reported for steps", bugs=("PRV-29",)
)
def stops_looking_after_the_window(receipt, self, facts):
    """The witness covers only the window, so a run that dies one step later has a record figure."""
    return receipt(self, replace(facts, steps=facts.steps[: facts.warmup + facts.bounded]))


@broken(Reference, "receipt", "RCPT-04[gradients-not-measured]: tokens/s are reported for steps", bugs=("PRV-29",))
def takes_silence_for_health(receipt, self, facts):
    """Finds no NaN because nothing was measured."""
    steps = tuple(replace(step, grad_norm=step.grad_norm or 0.0) for step in facts.steps)
    return receipt(self, replace(facts, steps=steps))


@broken(
    Reference, "receipt", "RCPT-04[skipped-steps]: tokens/s are reported for steps",
    "RCPT-04b[scaler-searching]: tokens/s is None, expected 65536.0",
)  # fmt: skip
def counts_skipped_steps(receipt, self, facts):
    """Counts skipped steps: a step that updates nothing is the fastest of all. And one overflow while a loss scaler
    searches withholds the figure, so no fp16 run has one.
    """
    return receipt(self, replace(facts, steps=tuple(replace(step, skipped=False) for step in facts.steps)))


def _only(facts, numbers, **changes):
    """The run with some of its steps changed."""
    return replace(facts, steps=tuple(replace(s, **changes) if s.number in numbers else s for s in facts.steps))


@broken(Reference, "receipt", "RCPT-04[skipped-in-the-window-alone]: tokens/s are reported for steps")
def asks_the_first_step_of_the_window(receipt, self, facts):
    """Looks at the step with which the window begins: a later one that was skipped is counted, and its norm passed."""
    return receipt(self, _only(facts, {2}, skipped=False, grad_norm=1.0))


@broken(
    Reference,
    "receipt",
    "RCPT-04[nan-in-the-window-alone]: tokens/s are reported for steps",
    "RCPT-04[nan-gradient-in-the-window-alone]: tokens/s are reported for steps",
)
def asks_the_last_step(receipt, self, facts):
    """Takes the last loss and the last gradient norm for those of the run."""
    last = facts.steps[-1] if facts.steps else None
    wrong = {} if last is None else {"loss": last.loss, "grad_norm": last.grad_norm}
    return receipt(self, _only(facts, {0, 1, 2}, **wrong))


@broken(Reference, "receipt", "RCPT-04[no-time]: tokens/s are reported for steps")
def divides_by_a_little(receipt, self, facts):
    """A window that took no time is divided by a nanosecond, so that nothing is divided by 0."""
    steps = tuple(replace(step, seconds=step.seconds or 1e-9) for step in facts.steps)
    return receipt(self, replace(facts, steps=steps))


@broken(Reference, "receipt", "RCPT-04[nan-loss]: is withheld without a reason")
def withholds_in_silence(receipt, self, facts):
    """Withholds the figure without a reason, so somebody runs the job again."""
    return replace(receipt(self, facts), withheld=None)


@broken(Reference, "write_receipt", "RCPT-04a[no-witness]: was accepted, expected a refusal", bugs=("PRV-08",))
def writes_what_it_is_given(write_receipt, self, receipt):
    """The writer checks nothing and leaves the witness to the reader."""
    figure = receipt.tokens_per_second
    body = json.loads(write_receipt(self, replace(receipt, tokens_per_second=None)))
    return json.dumps({**body, "tokens_per_second": figure})


@broken(Reference, "read_receipt", "RCPT-04a[gradients-not-finite]: was accepted, expected a refusal", bugs=("PRV-29",))
def reads_what_it_is_given(read_receipt, self, text):
    """Refuses to write such a receipt but reads one that was edited, or written elsewhere."""
    figure = json.loads(text)["tokens_per_second"]
    receipt = read_receipt(self, json.dumps({**json.loads(text), "tokens_per_second": None}))
    return replace(receipt, tokens_per_second=figure)


def _scaled(figures, factor):
    return replace(figures, mfu=figures.mfu * factor)


@broken(Reference, "figures", "RCPT-05[h200-bf16]: MFU is 0.059", bugs=("PRV-13",))
def divides_by_the_sparse_peak(figures, self, work):
    """Copies the peak from the data sheet, which states it with sparsity, so every MFU is half."""
    return _scaled(figures(self, work), 0.5)


@broken(Reference, "figures", "RCPT-05[h200-full-name]: MFU is 0.375", bugs=("PRV-13",))
def falls_back_to_a100(figures, self, work):
    """Uses the A100's peak for every device name that it does not know exactly."""
    exact = work.device in ("NVIDIA H200", "NVIDIA A100")
    return figures(self, work if exact else replace(work, device="NVIDIA A100"))


@broken(Reference, "figures", "RCPT-05[h200-fp8]: MFU is 0.118")
def knows_one_dtype(figures, self, work):
    """Divides FP8 work by the bf16 peak, which doubles the utilisation at equal speed."""
    return figures(self, replace(work, dtype="bf16"))


@broken(Reference, "figures", "RCPT-05[h200-bf16]: FLOPs per token are 5290089984", bugs=("PRV-13",))
def counts_one_stage(figures, self, work):
    """Counts parameters after the pipeline split: four stages, and the FLOPs of one."""
    return figures(self, replace(work, parameters=work.parameters // 4))


@broken(Reference, "figures", "RCPT-05[sixteen-gpus]: tokens/s is 4096.0, expected 65536.0")
def gives_a_rate(former, self, work):
    """Prints the tokens/s of one GPU as those of the world."""
    figures = former(self, work)
    return replace(figures, tokens_per_second=figures.tokens_per_second / work.world)


@broken(Reference, "figures", "RCPT-05[16k-tokens]: FLOPs per token are 12000000000")
def leaves_attention_out(figures, self, work):
    """Counts only 6 N: at 16 384 tokens two fifths of the work are missing."""
    return figures(self, replace(work, attention_layers=0))


@broken(Reference, "figures", "RCPT-05a[unknown-device]: was accepted, expected a refusal", bugs=("PRV-13",))
def guesses_a_peak(figures, self, work):
    """Gives an unknown card the peak of the developer's own card."""
    known = work.device.startswith("NVIDIA")
    return figures(self, work if known else replace(work, device="NVIDIA H100"))


@broken(
    metrics, "_peak", "RCPT-05c[h100-pcie]: MFU on NVIDIA H100 PCIe is 0.118307, expected 0.154745",
    "RCPT-05c[h100-nvl]: MFU on NVIDIA H100 NVL is 0.118307", "RCPT-05c[a-slice]: is 0.118307, expected 0.268",
    bugs=("PRV-13",),
)  # fmt: skip
def takes_every_form_for_sxm(_peak, device, dtype):
    """Reads how the name begins: a PCIe card and a slice have the peak of a whole SXM module."""
    return _peak(" ".join(device.split()[:2]), dtype)


@broken(
    metrics, "_peak", "RCPT-05c[h20]: MFU on NVIDIA H20 is 0.118307", "RCPT-05c[gb200]: is 0.052029", bugs=("PRV-13",)
)
def looks_for_a_name_within_a_name(_peak, device, dtype):
    """Finds a card by letters that its name shares with another: H20 stands in H200, B200 in GB200."""
    return _peak({"NVIDIA H20": "NVIDIA H200", "NVIDIA GB200": "NVIDIA B200"}.get(device, device), dtype)


@broken(metrics, "_peak", "RCPT-05c[l40s]: MFU on NVIDIA L40S is 0.161669")
def takes_the_second_figure_of_a_line(_peak, device, dtype):
    """Takes the figure with sparsity from a line of the data sheet that has both."""
    peak = _peak(device, dtype)
    return peak * 2 if peak and "L40S" in device else peak


@broken(Reference, "figures", "RCPT-05a[no-time]: was accepted, expected a refusal")
def divides_by_almost_nothing(figures, self, work):
    """Adds a small number to avoid a division by zero, so a window that never ran has a record rate."""
    return figures(self, replace(work, seconds=max(work.seconds, 1e-9)))


@broken(Reference, "count_weights", "RCPT-05b[tied]: the counts are (287552")
def counts_tied_tensors_twice(count_weights, self, weights, experts, top_k):
    """Sums over names, so an embedding and an output projection that share storage count twice."""
    apart = tuple(replace(weight, same_as=None) for weight in weights)
    return count_weights(self, apart, experts, top_k)


@broken(Reference, "count_weights", "RCPT-05b[untied]: the counts are (287552, 287552")
def calls_every_expert_active(count_weights, self, weights, experts, top_k):
    """Counts all twelve experts as active though a token uses two, so the MFU of a sparse model exceeds 1."""
    return count_weights(self, weights, experts, experts)


@broken(Reference, "count_weights", "RCPT-05b[an-expert-a-tensor]: the counts are (137728, 82432, 82432)")
def multiplies_the_table(count_weights, self, weights, experts, top_k):
    """Counts an embedding lookup as a matrix product with its table."""
    count = count_weights(self, weights, experts, top_k)
    return replace(count, matmul=count.active)


@broken(Reference, "count_weights", "RCPT-05b[tied]: 100672, 36672)")
def never_multiplies_the_table(count_weights, self, weights, experts, top_k):
    """Over-correction: omits a tied table, though the output projection multiplies by it."""
    count = count_weights(self, weights, experts, top_k)
    tables = sum(math.prod(weight.shape) for weight in weights if weight.lookup)
    return replace(count, matmul=count.active - tables)
