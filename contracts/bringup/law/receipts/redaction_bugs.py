"""Stacks whose receipts contain too much, or redact everything."""

import json
from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import codec
from contracts.spec.redaction import redact, secrets_of
from contracts.stacks.reference.stack import Reference


def _with_reached(receipt, reached):
    return replace(receipt, environment=replace(receipt.environment, reached=reached))


@broken(Reference, "receipt", "RCPT-03[tokens-of-the-shell]: is in the receipt")
def dumps_the_environment(receipt, self, facts):
    """Stores `dict(os.environ)`, including the token of the hub."""
    return _with_reached(receipt(self, facts), dict(facts.lane.inherited))


@broken(Reference, "receipt", "RCPT-03[inside-a-recorded-variable]: is in the receipt")
def trusts_the_prefix(former, self, facts):
    """Assumes that a variable with a runtime prefix holds no secret, and keeps its value unchanged."""
    receipt = former(self, facts)
    names = receipt.environment.reached
    return _with_reached(receipt, {name: facts.lane.inherited.get(name, names[name]) for name in names})


@broken(Reference, "receipt", "RCPT-03[flag-and-word]: is in the receipt")
def keeps_the_line_verbatim(receipt, self, facts):
    """Stores the launch flags word for word, including the token."""
    return replace(receipt(self, facts), command=facts.launch.command)


@broken(Reference, "receipt", "RCPT-03[flag-with-equals]: is in the receipt")
def splits_no_flag(former, self, facts):
    """Looks for `--key VALUE` and not for `--key=VALUE`."""
    receipt = former(self, facts)
    kept = tuple(
        ours if "=" in ours else clean for ours, clean in zip(facts.launch.command, receipt.command, strict=True)
    )
    return replace(receipt, command=kept)


@broken(Reference, "receipt", "RCPT-03[override-by-its-name]: is in the receipt")
def looks_at_values_of_overrides_alone(former, self, facts):
    """Redacts what looks like a secret, and keeps a plain word under a secret's name."""
    receipt = former(self, facts)
    kept = {name: redact(text) for name, text in facts.lane.overrides.items()}
    return replace(receipt, lane=replace(receipt.lane, overrides=kept))


@broken(Reference, "receipt", "RCPT-03[short-values-by-their-names]: q7#Z is in the receipt")
def looks_for_values_that_are_long_enough(former, self, facts):
    """Knows the secrets by their names and looks for them everywhere, but not for those that are short words."""
    receipt, known = former(self, facts), secrets_of(facts.lane.overrides)
    kept = {name: redact(text, known) for name, text in facts.lane.overrides.items()}
    return replace(receipt, lane=replace(receipt.lane, overrides=kept))


@broken(Reference, "receipt", "RCPT-03[repeated-by-an-error]: is in the receipt")
def forgets_what_errors_quote(receipt, self, facts):
    """Redacts variables and flags but copies the end of the log, where a client that cannot log in quotes its key."""
    return replace(receipt(self, facts), failure=facts.failure)


@broken(Reference, "receipt", "RCPT-03[override-and-variable-repeated-by-an-error]: marmalade-orchard-77 is in")
def knows_only_what_it_inherited(receipt, self, facts):
    """Looks in the error for the values of the shell's variables, and not for those of overrides."""
    known = secrets_of(facts.lane.inherited)
    return replace(receipt(self, facts), failure=facts.failure and redact(facts.failure, known))


@broken(Reference, "receipt", "RCPT-03[build-of-a-package]: is in the receipt")
def keeps_origins_verbatim(receipt, self, facts):
    """Stores a package's origin as pip wrote it, with the token in its URL."""
    return replace(receipt(self, facts), provenance=facts.provenance)


@broken(Reference, "receipt", "RCPT-03a[customers-variable]: 'northern-grain-board' of CUSTOMER is in the receipt")
def records_all_that_is_not_secret(former, self, facts):
    """Drops what looks like a secret and stores the rest of the shell."""
    receipt = former(self, facts)
    return _with_reached(receipt, {**facts.lane.inherited, **receipt.environment.reached})


@broken(Reference, "receipt", "RCPT-03a[prefix-inside-a-name]: is in the receipt")
def looks_anywhere_for_the_prefix(former, self, facts):
    """Looks for a runtime prefix anywhere in the variable's name."""
    receipt = former(self, facts)
    more = {name: value for name, value in facts.lane.inherited.items() if "NCCL_" in name}
    return _with_reached(receipt, {**receipt.environment.reached, **more})


@broken(Reference, "receipt", "RCPT-03b[interface]: NCCL_SOCKET_IFNAME is kept as '[redacted]'", bugs=("PRV-01",))
def strikes_out_every_value(former, self, facts):
    """Over-correction: keeps only names, so the stale variable that explains the run is no longer in its receipt."""
    receipt = former(self, facts)
    return _with_reached(receipt, dict.fromkeys(receipt.environment.reached, "[redacted]"))


@broken(Reference, "receipt", "RCPT-03b[tokens-are-counted-too]: TORCH_TOKENS_PER_BATCH is kept as '[redacted]'")
def takes_every_token_for_a_secret(former, self, facts):
    """Looks for TOKEN in the name, though many variables of a language model count tokens."""
    receipt = former(self, facts)
    reached = {name: "[redacted]" if "TOKEN" in name else value for name, value in receipt.environment.reached.items()}
    return _with_reached(receipt, reached)


@broken(Reference, "receipt", "RCPT-03b[switch-of-a-parser]: TORCH_SHOW_CPP_STACKTRACES is kept as '[redacted]'")
def strikes_out_whatever_a_secret_says(receipt, self, facts):
    """Redacts every occurrence of every secret's value, and one secret was `1`."""
    body = codec.encode(receipt(self, facts))
    secrets = {value for name, value in facts.lane.inherited.items() if name.endswith("_KEY")}
    reached = body["environment"]["reached"]
    for name, value in reached.items():
        for secret in secrets:
            reached[name] = value.replace(secret, "[redacted]")
    return self.read_receipt(json.dumps(body))


@broken(Reference, "receipt", "RCPT-03b[unset-by-the-lane]: is kept as '8', expected None")
def records_what_was_inherited(receipt, self, facts):
    """Records the shell's variables and the lane's, and not which of the shell's the lane took out."""
    return receipt(self, replace(facts, launch=replace(facts.launch, unset=())))
