"""Stacks whose receipts contain too much, or redact everything."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from contracts.contract import mutant
from contracts.spec import codec
from contracts.spec.receipt import LaunchedRun, Receipt
from contracts.spec.redaction import redact, secrets_of
from contracts.stacks.reference.stack import Reference


def _with_reached(receipt: Receipt, reached: dict[str, str]) -> Receipt:
    return replace(receipt, environment=replace(receipt.environment, reached=reached))


@mutant(of="RCPT-03", case="tokens-of-the-shell", says="is in the receipt")
class DumpsTheEnvironment(Reference):
    """Stores `dict(os.environ)`, including the token of the hub."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return _with_reached(super().receipt(facts), dict(facts.lane.inherited))


@mutant(of="RCPT-03", case="inside-a-recorded-variable", says="is in the receipt")
class TrustsThePrefix(Reference):
    """Assumes that a variable with a runtime prefix holds no secret, and keeps its value unchanged."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        names = receipt.environment.reached
        return _with_reached(receipt, {name: facts.lane.inherited.get(name, names[name]) for name in names})


@mutant(of="RCPT-03", case="flag-and-word", says="is in the receipt")
class KeepsTheLineVerbatim(Reference):
    """Stores the launch flags word for word, including the token."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return replace(super().receipt(facts), command=facts.launch.command)


@mutant(of="RCPT-03", case="flag-with-equals", says="is in the receipt")
class SplitsNoFlag(Reference):
    """Looks for `--key VALUE` and not for `--key=VALUE`."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        kept = tuple(
            ours if "=" in ours else clean for ours, clean in zip(facts.launch.command, receipt.command, strict=True)
        )
        return replace(receipt, command=kept)


@mutant(of="RCPT-03", case="override-by-its-name", says="is in the receipt")
class LooksAtValuesOfOverridesAlone(Reference):
    """Redacts what looks like a secret, and keeps a plain word under a secret's name."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        kept = {name: redact(text) for name, text in facts.lane.overrides.items()}
        return replace(receipt, lane=replace(receipt.lane, overrides=kept))


@mutant(of="RCPT-03", case="short-values-by-their-names", says="q7#Z is in the receipt")
class LooksForValuesThatAreLongEnough(Reference):
    """Knows the secrets by their names and looks for them everywhere, but not for those that are short words."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt, known = super().receipt(facts), secrets_of(facts.lane.overrides)
        kept = {name: redact(text, known) for name, text in facts.lane.overrides.items()}
        return replace(receipt, lane=replace(receipt.lane, overrides=kept))


@mutant(of="RCPT-03", case="repeated-by-an-error", says="is in the receipt")
class ForgetsWhatErrorsQuote(Reference):
    """Redacts variables and flags but copies the end of the log, where a client that cannot log in quotes its key."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return replace(super().receipt(facts), failure=facts.failure)


@mutant(of="RCPT-03", case="build-of-a-package", says="is in the receipt")
class KeepsOriginsVerbatim(Reference):
    """Stores a package's origin as pip wrote it, with the token in its URL."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return replace(super().receipt(facts), provenance=facts.provenance)


@mutant(of="RCPT-03a", case="customers-variable", says="'northern-grain-board' of CUSTOMER is in the receipt")
class RecordsAllThatIsNotSecret(Reference):
    """Drops what looks like a secret and stores the rest of the shell."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        return _with_reached(receipt, {**facts.lane.inherited, **receipt.environment.reached})


@mutant(of="RCPT-03a", case="prefix-inside-a-name", says="is in the receipt")
class LooksAnywhereForThePrefix(Reference):
    """Looks for a runtime prefix anywhere in the variable's name."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        more = {name: value for name, value in facts.lane.inherited.items() if "NCCL_" in name}
        return _with_reached(receipt, {**receipt.environment.reached, **more})


@mutant(of="RCPT-03b", case="interface", says="NCCL_SOCKET_IFNAME is kept as '[redacted]'", bugs=("PRV-01",))
class StrikesOutEveryValue(Reference):
    """Over-correction: keeps only names, so the stale variable that explains the run is no longer in its receipt."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        return _with_reached(receipt, dict.fromkeys(receipt.environment.reached, "[redacted]"))


@mutant(of="RCPT-03b", case="tokens-are-counted-too", says="TORCH_TOKENS_PER_BATCH is kept as '[redacted]'")
class TakesEveryTokenForASecret(Reference):
    """Looks for TOKEN in the name, though many variables of a language model count tokens."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        receipt = super().receipt(facts)
        reached = {
            name: "[redacted]" if "TOKEN" in name else value for name, value in receipt.environment.reached.items()
        }
        return _with_reached(receipt, reached)


@mutant(of="RCPT-03b", case="switch-of-a-parser", says="TORCH_SHOW_CPP_STACKTRACES is kept as '[redacted]'")
class StrikesOutWhateverASecretSays(Reference):
    """Redacts every occurrence of every secret's value, and one secret was `1`."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        body: Any = codec.encode(super().receipt(facts))
        secrets = {value for name, value in facts.lane.inherited.items() if name.endswith("_KEY")}
        reached = body["environment"]["reached"]
        for name, value in reached.items():
            for secret in secrets:
                reached[name] = value.replace(secret, "[redacted]")
        return self.read_receipt(json.dumps(body))
