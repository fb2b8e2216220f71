"""Redaction: removes secrets from text before it enters a receipt or a log.

A secret is recognised by its name (`HF_TOKEN`, `--api-key`), by its form (`hf_…`, `AKIA…`, a private key), or by its
context (a URL's password, a bearer header). The value of a variable with a secret's name is also redacted everywhere
else. Redaction is idempotent and does not change other text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REDACTED = "[redacted]"
SHORTEST_KNOWN = 6
"""Characters. A shorter value of a secret's variable (`1`, `true`) would also be redacted in unrelated text."""

_WORDS = frozenset({"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PAT", "APIKEY", "KEY", "CREDENTIAL",
                    "CREDENTIALS", "SECRETS", "AUTH"})  # fmt: skip
_ANYWHERE = frozenset({"SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "CREDENTIAL", "CREDENTIALS"})
_VOCABULARY = frozenset({"EOS", "BOS", "PAD", "UNK", "MASK", "SEP", "CLS"})
"""Tokens of a vocabulary, such as `--eos-token`, are not secrets."""

_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.S)
_USERINFO = re.compile(r"(?<=://)[^\s/?#'\"<>]+(?=@)")
_HEADER = re.compile(r"(?i)(\bauthorization[\"']?\s*[:=]\s*[\"']?)(?:[a-z]+\s+)?[^\s\"',;]+")
_BEARER = re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{6,}")
_FORMS = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}|\bsk-[\w-]{16,}"
    r"|\bnvapi-[\w-]{16,}|\bxox[abeprs]-[\w-]{8,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
)
_NAMED = re.compile(
    r"(?ix) ((?<![\w-]) -{0,2} [\w.-]*? (?<![a-z0-9]) "  # one lazy run: two nested ones take 2^n on n underscores
    r"(?:token|secret|password|passwd|passphrase|api[_-]?key|(?:secret[_-])?access[_-]?key(?:[_-]id)?|credentials?)"
    r"[\"']? \s*[=:]\s*) (?:\"[^\"]*\" | '[^']*' | [^\s\"',;&}]+)"
)

_FLAG = re.compile(
    r"(?i)((?<![\w-])--?(?:\w+-)*(?:token|secret|password|passwd|passphrase|api-?key|credentials?)\s+)(?!-)\S+"
)


def names_a_secret(name: str) -> bool:
    """Whether a variable or a flag of this name holds a secret: `HF_TOKEN`, `--wandb-api-key`, `aws_access_key_id`."""
    words = re.split(r"[^A-Z0-9]+", name.strip("-").upper())
    if words[-1:] == ["ID"] and words[-2:-1] == ["KEY"]:
        return True
    if _VOCABULARY & set(words[-2:-1]) and words[-1] == "TOKEN":
        return False
    return words[-1] in _WORDS or bool(_ANYWHERE & set(words))


def secrets_of(env: Mapping[str, str]) -> frozenset[str]:
    """The values of an environment's variables with a secret's name, and the passwords in its URLs."""
    found = {value for name, value in env.items() if names_a_secret(name)}
    for value in env.values():
        for userinfo in _USERINFO.findall(value):
            found.add(userinfo.partition(":")[2] or userinfo)
    return frozenset(each.strip() for each in found if len(each.strip()) >= SHORTEST_KNOWN)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """The text without its secrets; `known` are values that are redacted everywhere."""
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _USERINFO.sub(REDACTED, text)
    text = _HEADER.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _FORMS.sub(REDACTED, text)
    text = _NAMED.sub(rf"\1{REDACTED}", text)
    return _FLAG.sub(rf"\1{REDACTED}", text)


def secrets_in(words: Iterable[str]) -> frozenset[str]:
    """The values that a command passes under a secret's name."""
    words = tuple(words)
    found = set()
    for word, following in zip(words, (*words[1:], ""), strict=True):
        flag, equals, value = word.partition("=")
        if flag.startswith("-") and names_a_secret(flag):
            found.add(value if equals else following)
    return frozenset(each for each in found if len(each) >= SHORTEST_KNOWN and not each.startswith("--"))


def redact_variable(name: str, value: str, known: Iterable[str] = ()) -> str:
    """The value of a variable, without its secrets."""
    return REDACTED if names_a_secret(name) else redact(value, known)


def redact_words(words: Iterable[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """A command without the values of `--token VALUE` and `--token=VALUE`, and without what `redact` finds."""
    known = tuple(known)
    kept: list[str] = []
    after_secret = False
    for word in words:
        flag, equals, value = word.partition("=")
        named = names_a_secret(flag) and (flag.startswith("-") or bool(equals))
        if after_secret and not word.startswith("--"):
            kept.append(REDACTED)
        elif named and equals and value:
            kept.append(f"{flag}={REDACTED}")
        else:
            kept.append(redact(word, known))
        after_secret = named and not equals
    return tuple(kept)


class LineRedactor:
    """Redacts a log line by line, including private keys that span lines."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = tuple(
            {part for each in known for part in (each, *each.splitlines()) if len(part) >= SHORTEST_KNOWN}
        )
        self._inside = False

    def line(self, text: str) -> str:
        """One line, redacted, with its newline if it has one."""
        begins = re.search(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY", text)
        ends = re.search(r"-----END [A-Z0-9 ]*-----", text)
        inside, self._inside = self._inside, (self._inside or begins is not None) and ends is None
        if not inside:
            cleaned = redact(text, self._known)
            return cleaned if cleaned.endswith("\n") or not text.endswith("\n") else f"{cleaned}\n"
        return f"{REDACTED}{text[ends.end() :]}" if ends else ""
