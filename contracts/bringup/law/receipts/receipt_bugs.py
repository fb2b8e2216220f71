"""Stacks whose receipts do not say what ran, or are incomplete."""

import json
from dataclasses import replace
from pathlib import Path

from contracts.contract import mutant
from contracts.law._bugs.broken import broken
from contracts.spec import codec
from contracts.spec.receipt import Peak, Preflight, Receipt, Window
from contracts.stacks.reference.stack import Reference


@broken(Reference, "receipt", "RCPT-01[overlay]: environment.overlay is {}", bugs=("PRV-01",))
def keeps_no_overlay(former, self, facts):
    """Records no environment overlay, so a slow run and a fast one leave the same receipt."""
    receipt = former(self, facts)
    return replace(receipt, environment=replace(receipt.environment, overlay={}))


@broken(Reference, "receipt", "RCPT-01[rank-map-and-nics]: nic=None", bugs=("PRV-01",))
def forgets_the_nics(receipt, self, facts):
    """Maps ranks to devices without the NIC each one uses, so a slow link reads as a slow GPU."""
    return receipt(self, replace(facts, places=tuple(replace(place, nic=None) for place in facts.places)))


@broken(Reference, "receipt", "RCPT-01[degrees-that-ran]: lane.degrees is Degrees(pp=1, tp=1")
def keeps_the_degrees_that_were_asked(receipt, self, facts):
    """Copies the recipe's degrees and omits those that the mode made of them."""
    return receipt(self, replace(facts, launch=replace(facts.launch, degrees=facts.recipe.degrees)))


@broken(Reference, "receipt", "RCPT-01[preflight]: ran=False, findings=()", bugs=("PRV-24",))
def leaves_preflight_to_the_runbook(receipt, self, facts):
    """Preflight is only a page in a runbook, so no receipt says whether it ran."""
    return receipt(self, replace(facts, preflight=Preflight(ran=False)))


@broken(Reference, "receipt", "RCPT-01[mode]: lane.mode is None", bugs=("PRV-04",))
def names_the_recipe_alone(former, self, facts):
    """Uses one nickname for two lanes: the receipt says nam56r, and not whose mixers ran."""
    receipt = former(self, facts)
    return replace(receipt, lane=replace(receipt.lane, mode=None))


@broken(Reference, "receipt", "RCPT-01[runtime]: build=None", bugs=("PRV-31",))
def records_version_strings(receipt, self, facts):
    """Records `megatron-core 0.19.2` without a commit, so nobody can show which checkout ran."""
    unproven = tuple(replace(each, build=None) for each in facts.provenance.components)
    return receipt(self, replace(facts, provenance=replace(facts.provenance, components=unproven)))


@broken(Reference, "receipt", "RCPT-01b[dirty]: dirty is None, expected True", bugs=("PRV-02",))
def asks_for_the_revision_only(receipt, self, facts):
    """Runs `git rev-parse HEAD` and no `git status`."""
    source = replace(facts.provenance.source, dirty=None, changed=())
    return receipt(self, replace(facts, provenance=replace(facts.provenance, source=source)))


@broken(Reference, "receipt", "RCPT-01b[unknown]: dirty is False, expected None")
def unknown_means_clean(receipt, self, facts):
    """Without git no change is listed, so the tree is called clean."""
    source = replace(facts.provenance.source, dirty=bool(facts.provenance.source.changed))
    return receipt(self, replace(facts, provenance=replace(facts.provenance, source=source)))


@broken(Reference, "receipt", "RCPT-01c[torch-and-triton]: was accepted, expected a refusal")
def collects_at_the_end(receipt, self, facts):
    """Collects provenance when the receipt is written, without checking when it should have been collected."""
    return receipt(self, replace(facts, provenance=replace(facts.provenance, loaded=())))


@broken(Reference, "receipt", "RCPT-01d[two-of-four]: the window is (0, 1", bugs=("PRV-25",))
def counts_the_warm_up(receipt, self, facts):
    """Measures from step 0, so the step time includes five minutes of compilation."""
    return receipt(self, replace(facts, warmup=0))


@broken(Reference, "receipt", "RCPT-01d[the-first-of-many]: the window is (1, 5")
def measures_to_the_end(receipt, self, facts):
    """The window has no end, so its figure depends on how long the run lasted."""
    return receipt(self, replace(facts, bounded=len(facts.steps)))


@broken(Reference, "receipt", "RCPT-01d[two-of-four]: tokens/s is 87381")
def averages_the_rates(former, self, facts):
    """Averages the steps' rates, so a fast step outweighs the slow one that took longer."""
    receipt = former(self, facts)
    rates = [step.tokens / float(step.seconds) for step in facts.steps[1:3]]
    return replace(receipt, tokens_per_second=sum(rates) / len(rates))


@broken(Reference, "receipt", "RCPT-01e[not-on-one-rank]: the peaks are (88, 97)")
def asks_rank_zero(receipt, self, facts):
    """Reads rank 0's peaks, but another rank runs out first."""
    return receipt(self, replace(facts, memory=facts.memory[:1]))


@broken(Reference, "receipt", "RCPT-01e[last-rank]: the peaks are (5, 5)", bugs=("PRV-23",))
def reports_one_number(former, self, facts):
    """Uses `max_memory_allocated` for both, so the gap that shows fragmentation is always 0."""
    receipt = former(self, facts)
    peak = receipt.peak
    return replace(receipt, peak=peak and Peak(allocated=peak.allocated, reserved=peak.allocated))


@broken(Reference, "receipt", "RCPT-01f[lane-over-alias]: PYTORCH_CUDA_ALLOC_CONF", bugs=("ARG-16",))
def believes_the_alias(former, self, facts):
    """Looks for the old spelling first, so the receipt has a setting that CUDA never saw."""
    receipt = former(self, facts)
    name = "PYTORCH_CUDA_ALLOC_CONF"
    alias = facts.lane.inherited.get(name)
    allocator = (name, alias) if alias else receipt.environment.allocator
    return replace(receipt, environment=replace(receipt.environment, allocator=allocator))


@broken(Reference, "receipt", "RCPT-01f[alias-only]: the allocator is None", bugs=("ARG-16",))
def knows_one_spelling(former, self, facts):
    """Looks only for the new name, so a shell that exports the alias runs another allocator unseen."""
    receipt = former(self, facts)
    kept = receipt.environment.allocator
    known = kept if kept and kept[0] == "PYTORCH_ALLOC_CONF" else None
    return replace(receipt, environment=replace(receipt.environment, allocator=known))


@broken(Reference, "receipt", "RCPT-01g[replaced]: was accepted, expected a refusal")
def falls_back_in_silence(receipt, self, facts):
    """Records the kernel that ran without requiring a reason."""
    said = tuple(replace(each, reason=each.reason or "fallback") for each in facts.backends)
    return receipt(self, replace(facts, backends=said))


@broken(Reference, "receipt", "RCPT-02[failed-in-init]: (None, None, 0.0, Peak(allocated=0")
def fills_with_zeros(former, self, facts):
    """Records 0 tokens/s and 0 bytes for a run that died in its first import, as if they had been measured."""
    receipt = former(self, facts)
    nothing = receipt.peak or Peak(allocated=0, reserved=0)
    return replace(receipt, peak=nothing, tokens_per_second=receipt.tokens_per_second or 0.0)


@mutant(of="RCPT-02", case="terminated", says="was accepted, expected a refusal")
class MendsWhatWasCutOff(Reference):
    """Reads a truncated file as far as possible and fills the rest from the previous receipt."""

    last: Receipt

    def write_receipt(self, receipt: Receipt) -> str:
        self.last = receipt
        return super().write_receipt(receipt)

    def read_receipt(self, text: str) -> Receipt:
        return super().read_receipt(text) if text.rstrip().endswith("}") and text.endswith("\n") else self.last


@broken(Reference, "receipt", "RCPT-02[terminated]: the ending is 'failed', expected 'terminated'")
def knows_two_endings(receipt, self, facts):
    """Calls every exit code but 0 a failure: a run that its operator stopped is blamed on the machine."""
    return receipt(self, replace(facts, ending="ok" if facts.ending == "ok" else "failed"))


@broken(Reference, "write_receipt", "RCPT-02a[nan]: the last loss is 0.0, expected 'NaN'")
def writes_zero_for_nan(write_receipt, self, receipt):
    """Writes 0 because JSON has no NaN, so the run that diverged has the best loss of the table."""
    witness = receipt.witness
    mended = witness and replace(witness, last_loss=0.0 if witness.last_loss == "NaN" else witness.last_loss)
    return write_receipt(self, replace(receipt, witness=mended))


@broken(Reference, "write_receipt", "RCPT-02a[infinite]: which is not JSON")
def writes_pythons_nan(write_receipt, self, receipt):
    """Uses the default of `json.dumps`: a bare Infinity, which no other reader accepts."""
    return write_receipt(self, receipt).replace('"Infinity"', "Infinity")


@broken(Reference, "write_receipt", "RCPT-02a[minus]: the last loss is None, expected '-Infinity'")
def drops_what_is_not_finite(write_receipt, self, receipt):
    """Omits what cannot be plotted, so an overflowed loss reads as one that was not measured."""
    return write_receipt(self, receipt).replace('"-Infinity"', "null")


@broken(Reference, "read_receipt", "RCPT-02b[unknown-field-inside]: was accepted, expected a refusal")
def skips_unknown_fields(read_receipt, self, text):
    """Reads only the fields it knows, so a new meaning of the window goes unnoticed."""
    body = json.loads(text)
    known = codec.encode(read_receipt(self, json.dumps({**body, "window": None, "tokens_per_second": None})))
    window = {key: body["window"][key] for key in body["window"] if key in Window.__dataclass_fields__}
    return read_receipt(self, json.dumps({**known, "window": window}))


@broken(Reference, "read_receipt", "RCPT-02b[newer-schema]: was accepted, expected a refusal")
def reads_every_version(read_receipt, self, text):
    """Ignores the schema version, and reads changed fields with their old meaning."""
    return read_receipt(self, text.replace("rankproof.receipt/2", "rankproof.receipt/1"))


@broken(Reference, "publish_receipt", "RCPT-02c[shorter]: a reader that had opened the old receipt reads")
def writes_in_place(publish_receipt, self, receipt, path):
    """Writes into the existing file, so a polling collector reads half a receipt."""
    Path(path).write_text(self.write_receipt(receipt), encoding="utf-8")
    return path


@broken(Reference, "publish_receipt", "RCPT-02c[longer]: the folder holds")
def leaves_its_scratch_file(publish_receipt, self, receipt, path):
    """Leaves its temporary file in the folder, where a collector takes it for a second receipt."""
    Path(f"{path}.tmp").write_text(self.write_receipt(receipt), encoding="utf-8")
    return publish_receipt(self, receipt, path)


@broken(Reference, "receipt", "RCPT-01h[data]: are in the receipt as {'optim.lr': '1e-4'}", bugs=("PRV-07",))
def lists_its_sections(former, self, facts):
    """Goes through a list of sections that has no data and no checkpoint."""
    receipt = former(self, facts)
    known = ("optim", "moe", "batch", "degrees", "seed")
    kept = {key: text for key, text in receipt.lane.overrides.items() if key.partition(".")[0] in known}
    return replace(receipt, lane=replace(receipt.lane, overrides=kept))


@broken(Reference, "receipt", "RCPT-01h[tokenizer]: 'tokenizer': 'HuggingFaceTokenizer'")
def drops_the_section(former, self, facts):
    """Records the last word of a key, so `data.path` and a `path` elsewhere are one."""
    receipt = former(self, facts)
    kept = {key.rpartition(".")[2]: text for key, text in receipt.lane.overrides.items()}
    return replace(receipt, lane=replace(receipt.lane, overrides=kept))
