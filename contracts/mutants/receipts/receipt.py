"""Stacks whose receipts do not say what ran, or are incomplete."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from contracts.contract import mutant
from contracts.spec import codec
from contracts.spec.receipt import LaunchedRun, Peak, Preflight, Receipt, Window
from contracts.stacks.reference.stack import Reference


@mutant(of="RCPT-01", case="overlay", says="environment.overlay is {}", bugs=("PRV-01",))
class KeepsNoOverlay(Reference):
    """Records no environment overlay, so a slow run and a fast one leave the same receipt."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        return replace(receipt, environment=replace(receipt.environment, overlay={}))


@mutant(of="RCPT-01", case="rank-map-and-nics", says="nic=None", bugs=("PRV-01",))
class ForgetsTheNics(Reference):
    """Maps ranks to devices without the NIC each one uses, so a slow link reads as a slow GPU."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, places=tuple(replace(place, nic=None) for place in facts.places)))


@mutant(of="RCPT-01", case="degrees-that-ran", says="lane.degrees is Degrees(pp=1, tp=1")
class KeepsTheDegreesThatWereAsked(Reference):
    """Copies the recipe's degrees and omits those that the mode made of them."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, launch=replace(facts.launch, degrees=facts.recipe.degrees)))


@mutant(of="RCPT-01", case="preflight", says="ran=False, findings=()", bugs=("PRV-24",))
class LeavesPreflightToTheRunbook(Reference):
    """Preflight is only a page in a runbook, so no receipt says whether it ran."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, preflight=Preflight(ran=False)))


@mutant(of="RCPT-01", case="mode", says="lane.mode is None", bugs=("PRV-04",))
class NamesTheRecipeAlone(Reference):
    """Uses one nickname for two lanes: the receipt says nam56r, and not whose mixers ran."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        return replace(receipt, lane=replace(receipt.lane, mode=None))


@mutant(of="RCPT-01", case="runtime", says="build=None", bugs=("PRV-31",))
class RecordsVersionStrings(Reference):
    """Records `megatron-core 0.19.2` without a commit, so nobody can show which checkout ran."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        unproven = tuple(replace(each, build=None) for each in facts.provenance.components)
        return super().receipt(replace(facts, provenance=replace(facts.provenance, components=unproven)))


@mutant(of="RCPT-01b", case="dirty", says="dirty is None, expected True", bugs=("PRV-02",))
class AsksForTheRevisionOnly(Reference):
    """Runs `git rev-parse HEAD` and no `git status`."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        source = replace(facts.provenance.source, dirty=None, changed=())
        return super().receipt(replace(facts, provenance=replace(facts.provenance, source=source)))


@mutant(of="RCPT-01b", case="unknown", says="dirty is False, expected None")
class UnknownMeansClean(Reference):
    """Where git is not available no change is listed, so the tree is called clean."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        source = replace(facts.provenance.source, dirty=bool(facts.provenance.source.changed))
        return super().receipt(replace(facts, provenance=replace(facts.provenance, source=source)))


@mutant(of="RCPT-01c", case="torch-and-triton", says="was accepted, expected a refusal")
class CollectsAtTheEnd(Reference):
    """Collects provenance when the receipt is written, without checking when it should have been collected."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, provenance=replace(facts.provenance, loaded=())))


@mutant(of="RCPT-01d", case="two-of-four", says="the window is (0, 1", bugs=("PRV-25",))
class CountsTheWarmUp(Reference):
    """Measures from step 0, so the step time includes five minutes of compilation."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, warmup=0))


@mutant(of="RCPT-01d", case="the-first-of-many", says="the window is (1, 5")
class MeasuresToTheEnd(Reference):
    """The window has no end, so its figure depends on how long the run lasted."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, bounded=len(facts.steps)))


@mutant(of="RCPT-01d", case="two-of-four", says="tokens/s is 87381")
class AveragesTheRates(Reference):
    """Averages the steps' rates, so a fast step outweighs the slow one that took longer."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        rates = [step.tokens / float(step.seconds) for step in facts.steps[1:3]]
        return replace(receipt, tokens_per_second=sum(rates) / len(rates))


@mutant(of="RCPT-01e", case="not-on-one-rank", says="the peaks are (88, 97)")
class AsksRankZero(Reference):
    """Reads rank 0's peaks, but another rank runs out first."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, memory=facts.memory[:1]))


@mutant(of="RCPT-01e", case="last-rank", says="the peaks are (5, 5)", bugs=("PRV-23",))
class ReportsOneNumber(Reference):
    """Uses `max_memory_allocated` for both, so the gap that shows fragmentation is always 0."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        peak = receipt.peak
        return replace(receipt, peak=peak and Peak(allocated=peak.allocated, reserved=peak.allocated))


@mutant(of="RCPT-01f", case="lane-over-alias", says="PYTORCH_CUDA_ALLOC_CONF", bugs=("ARG-16",))
class BelievesTheAlias(Reference):
    """Looks for the old spelling first, so the receipt has a setting that CUDA never saw."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        name = "PYTORCH_CUDA_ALLOC_CONF"
        alias = facts.lane.inherited.get(name)
        allocator = (name, alias) if alias else receipt.environment.allocator
        return replace(receipt, environment=replace(receipt.environment, allocator=allocator))


@mutant(of="RCPT-01f", case="alias-only", says="the allocator is None", bugs=("ARG-16",))
class KnowsOneSpelling(Reference):
    """Looks only for the new name, so a shell that exports the alias runs another allocator unseen."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        kept = receipt.environment.allocator
        known = kept if kept and kept[0] == "PYTORCH_ALLOC_CONF" else None
        return replace(receipt, environment=replace(receipt.environment, allocator=known))


@mutant(of="RCPT-01g", case="replaced", says="was accepted, expected a refusal")
class FallsBackInSilence(Reference):
    """Records the kernel that ran without requiring a reason."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        said = tuple(replace(each, reason=each.reason or "fallback") for each in facts.backends)
        return super().receipt(replace(facts, backends=said))


@mutant(of="RCPT-02", case="failed-in-init", says="(None, None, 0.0, Peak(allocated=0")
class FillsWithZeros(Reference):
    """Records 0 tokens/s and 0 bytes for a run that died in its first import, as if they had been measured."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
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


@mutant(of="RCPT-02", case="terminated", says="the ending is 'failed', expected 'terminated'")
class KnowsTwoEndings(Reference):
    """Calls every exit code but 0 a failure: a run that its operator stopped is blamed on the machine."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return super().receipt(replace(facts, ending="ok" if facts.ending == "ok" else "failed"))


@mutant(of="RCPT-02a", case="nan", says="the last loss is 0.0, expected 'NaN'")
class WritesZeroForNan(Reference):
    """Writes 0 because JSON has no NaN, so the run that diverged has the best loss of the table."""

    def write_receipt(self, receipt: Receipt) -> str:
        witness = receipt.witness
        mended = witness and replace(witness, last_loss=0.0 if witness.last_loss == "NaN" else witness.last_loss)
        return super().write_receipt(replace(receipt, witness=mended))


@mutant(of="RCPT-02a", case="infinite", says="which is not JSON")
class WritesPythonsNan(Reference):
    """Uses the default of `json.dumps`: a bare Infinity, which no other reader accepts."""

    def write_receipt(self, receipt: Receipt) -> str:
        return super().write_receipt(receipt).replace('"Infinity"', "Infinity")


@mutant(of="RCPT-02a", case="minus", says="the last loss is None, expected '-Infinity'")
class DropsWhatIsNotFinite(Reference):
    """Omits what cannot be plotted, so an overflowed loss reads as one that was not measured."""

    def write_receipt(self, receipt: Receipt) -> str:
        return super().write_receipt(receipt).replace('"-Infinity"', "null")


@mutant(of="RCPT-02b", case="unknown-field-inside", says="was accepted, expected a refusal")
class SkipsUnknownFields(Reference):
    """Reads only the fields it knows, so a new meaning of the window goes unnoticed."""

    def read_receipt(self, text: str) -> Receipt:
        body = json.loads(text)
        known = codec.encode(super().read_receipt(json.dumps({**body, "window": None, "tokens_per_second": None})))
        window = {key: body["window"][key] for key in body["window"] if key in Window.__dataclass_fields__}
        return super().read_receipt(json.dumps({**known, "window": window}))


@mutant(of="RCPT-02b", case="newer-schema", says="was accepted, expected a refusal")
class ReadsEveryVersion(Reference):
    """Ignores the schema version, and reads changed fields with their old meaning."""

    def read_receipt(self, text: str) -> Receipt:
        return super().read_receipt(text.replace("rankproof.receipt/2", "rankproof.receipt/1"))


@mutant(of="RCPT-02c", case="shorter", says="a reader that had opened the old receipt reads")
class WritesInPlace(Reference):
    """Writes into the existing file, so a polling collector reads half a receipt."""

    def publish_receipt(self, receipt: Receipt, path: str) -> str:
        Path(path).write_text(self.write_receipt(receipt), encoding="utf-8")
        return path


@mutant(of="RCPT-02c", case="longer", says="the folder holds")
class LeavesItsScratchFile(Reference):
    """Leaves its temporary file in the folder, where a collector takes it for a second receipt."""

    def publish_receipt(self, receipt: Receipt, path: str) -> str:
        Path(f"{path}.tmp").write_text(self.write_receipt(receipt), encoding="utf-8")
        return super().publish_receipt(receipt, path)


@mutant(of="RCPT-01h", case="data", says="are in the receipt as {'optim.lr': '1e-4'}", bugs=("PRV-07",))
class ListsItsSections(Reference):
    """Goes through a list of sections that has no data and no checkpoint."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        known = ("optim", "moe", "batch", "degrees", "seed")
        kept = {key: text for key, text in receipt.lane.overrides.items() if key.partition(".")[0] in known}
        return replace(receipt, lane=replace(receipt.lane, overrides=kept))


@mutant(of="RCPT-01h", case="tokenizer", says="'tokenizer': 'HuggingFaceTokenizer'")
class DropsTheSection(Reference):
    """Records the last word of a key, so `data.path` and a `path` elsewhere are one."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        kept = {key.rpartition(".")[2]: text for key, text in receipt.lane.overrides.items()}
        return replace(receipt, lane=replace(receipt.lane, overrides=kept))
