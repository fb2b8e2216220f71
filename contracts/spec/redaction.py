"""Redaction: removes secrets from text before it enters a receipt, a record, a report or a log.

A secret is recognised by its name (`HF_TOKEN`, `--api-key`), by its form (`hf_…`, `AKIA…`, a private key), or by its
context (a URL's password, a bearer header). The value of a variable with a secret's name is also redacted everywhere
else: as it is, escaped, encoded, coloured, or broken over two lines. Redaction is idempotent and does not change other
text.

It takes time linear in the text, whatever the text: no pattern begins with a run that it may cut in many ways, and no
two patterns scan one run from each of its characters. A line of dots once held the log of a launch for half a minute.

The forms of tokens follow the prefixes that their issuers publish. The lists that scanners for secrets keep are in
another dialect of regular expressions (RE2, flags inside a pattern) and are not used as they are.
"""

import base64
import bisect
import functools
import html
import itertools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"
SHORTEST_KNOWN = 6
"""Characters. A shorter value of a secret's variable (`1`, `true`) would also be redacted in unrelated text."""
SHORTEST_ENCODED = 8
"""Characters of the base64 of a value, or of one that is broken over two lines."""
HELD = 8192
"""Characters at the end of an unfinished line, which wait for the next part: a secret may stand across the cut."""

_WORDS = frozenset({"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PAT", "APIKEY", "KEY", "CREDENTIAL",
                    "CREDENTIALS", "CREDS", "CRED", "SECRETS", "AUTH", "COOKIE"})  # fmt: skip
_ANYWHERE = frozenset({"SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "CREDENTIAL", "CREDENTIALS"})
_VOCABULARY = frozenset({"EOS", "BOS", "PAD", "UNK", "MASK", "SEP", "CLS"})
"""Tokens of a vocabulary, such as `--eos-token`, are not secrets."""

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----.*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)", re.S
)
_USERINFO = re.compile(r"(?<=://)[^\s/?#'\"<>]+(?=@)")
_HEADER = re.compile(r"(?i)(\bauthorization[\"']?\s{0,20}[:=]\s{0,20}[\"']?)(?:[a-z]{1,20}\s{1,20})?[^\s\"',;]+")
_COOKIE = re.compile(r"(?i)(\bcookie[\"']?\s{0,20}:\s{0,20}[\"']?)[^\s\"'][^\"'\r\n]*")
_BEARER = re.compile(r"(?i)(\bbearer\s{1,20})[\w.~+/=-]{6,}")
_SIGNED = re.compile(  # the part of a URL that lets whoever has it in
    r"(?i)((?:[?&;]|\\u0026)(?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token)|awsaccesskeyid)=)"
    r"[^&\s\"'<>\\]+"
)
_HOOK = re.compile(
    r"(\bhooks\.slack\.com/(?:services|workflows|triggers)/|\bdiscord(?:app)?\.com/api/webhooks/)[\w/+-]+"
)
_NETRC = re.compile(r"(?i)(\bmachine\s\S{1,200}\s{1,9}login\s\S{1,200}\s{1,9}password\s{1,9})\S+")
_WANDB = re.compile(r"(?i)(\bwandb[^\n]{0,60}?(?:login|key|password|token)\W{1,8})[0-9a-f]{40}\b")
_FORMS = re.compile(  # each begins with one of a few letters: to try no other place takes a third of the time
    r"\b(?=[AESadeghnprswxy\d])(?:"
    r"hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|gl(?:pat|rt|cbt|dt|ft|soat|agent|imt|oas|ptt)-[\w-]{16,}|sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{16,}"
    r"|nvapi-[\w-]{16,}|xox[abeprs]-[\w-]{8,}|xapp-[\w-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}\b|AIza[\w-]{30,}"
    r"|ya29\.[\w-]{16,}|npm_[A-Za-z0-9]{16,}|pypi-[\w-]{16,}|dckr_[po]at_[\w-]{16,}|hvs\.[\w-]{16,}"
    r"|SG\.[\w-]{8,}\.[\w-]{8,}|do[opr]_v1_[0-9a-f]{32,}|dapi[0-9a-f]{32}|r8_\w{30,}|shp(?:at|ss|ca|pa)_\w{16,}"
    r"|wandb_v\d_\w{16,}|\d{8,10}:AA[\w-]{30,}|AGE-SECRET-KEY-1[0-9A-Z]{16,}"
    r"|(?<!-)eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"  # at the start of a run alone: else each `-eyJ` scans it
)
_KEYWORD = (
    r"token|secret|password|passwd|passphrase|passcode|api[_-]?key|(?:secret[_-])?access[_-]?key(?:[_-]id)?"
    r"|(?:private|account)[_-]?key|credentials?|creds?"
)
_VALUE = r"""(?: \\+["'][^"'\\]*+(?:\\+["'])? | "(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+' | ["']?[^\s"',;&}]++ )"""
_NAMED = re.compile(
    rf"""(?xs) (?=[TSPACtspac\u017f]) ( (?: (?<![A-Za-z0-9])(?i:{_KEYWORD}|(?<=;)pwd) | (?<![A-Za-z0-9_])[Pp]wd
    | (?<=[a-z0-9])(?:Token|Secret|Password|ApiKey|AccessKey|Credentials?) )
    \\*["']? \s{{0,20}}[=:]\s{{0,20}} ) ({_VALUE})"""
)
_FLAG = re.compile(r"(?<![\w-])(--?[\w-]++)(\s{1,20})(?!-)(\S++)")
_FLAG_NAMES = frozenset({"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "CREDENTIAL", "CREDENTIALS",
                         "CREDS", "CRED", "PWD"})  # fmt: skip
_SHORT_NUMBER = re.compile(r"\d{1,7}")
"""`token: 12` counts tokens."""

_COLOUR = r"(?:\x1b|\\x1b|\\u001b|\\033)\[[0-?]{0,16}[@-~]"
_BREAKS = (re.compile(_COLOUR), re.compile(rf"(?:{_COLOUR}|(?<![ \t])[ \t]*\r?\n[ \t]*)+"))
"""What may stand inside a known value: colours; or colours and the break of a line."""


def names_a_secret(name: str) -> bool:
    """Whether a variable or a flag of this name holds a secret: `HF_TOKEN`, `--wandb-api-key`, `aws_access_key_id`."""
    words = re.split(r"[^A-Z0-9]+", name.strip("-").upper())
    if words[-1:] == ["ID"] and words[-2:-1] == ["KEY"]:
        return True
    if _VOCABULARY & set(words[-2:-1]) and words[-1] == "TOKEN":
        return False
    if words[-1] == "PWD":
        return len(words) > 1 and words[-2] != ""  # `DB_PWD`; PWD alone is where a shell stands
    return words[-1] in _WORDS or bool(_ANYWHERE & set(words))


def secrets_of(env: Mapping[str, str]) -> frozenset[str]:
    """The values of an environment's variables with a secret's name, and the passwords in its URLs."""
    found = {value for name, value in env.items() if names_a_secret(name)}
    for value in env.values():
        for userinfo in _USERINFO.findall(value):
            found.add(userinfo.partition(":")[2] or userinfo)
    return frozenset(each.strip() for each in found if len(each.strip()) >= SHORTEST_KNOWN)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """The text without its secrets; `known` are values that are redacted everywhere, in each of their forms."""
    forms = _forms_of(known if isinstance(known, frozenset) else frozenset(known))
    for form in forms:
        text = text.replace(form, REDACTED)
    for breaks in _BREAKS if forms else ():
        text = _broken(text, forms, breaks)
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _USERINFO.sub(REDACTED, text)
    for context in (_HEADER, _COOKIE, _BEARER, _SIGNED, _HOOK, _NETRC, _WANDB):
        text = context.sub(rf"\1{REDACTED}", text)
    text = _FORMS.sub(REDACTED, text)
    text = _NAMED.sub(_unless_a_number, text)
    return _FLAG.sub(_if_secret, text)


def _unless_a_number(found: re.Match[str]) -> str:
    counted = _SHORT_NUMBER.fullmatch(found[2]) and "token" in found[1].lower()
    return found[0] if counted else f"{found[1]}{REDACTED}"


def _if_secret(found: re.Match[str]) -> str:
    words = re.split(r"[_-]", found[1][-64:].strip("-").upper())
    named = words[-1] in _FLAG_NAMES or words[-2:] in (["API", "KEY"], ["ACCESS", "KEY"])
    counted = words[-1] == "TOKEN" and (_VOCABULARY & set(words[-2:-1]) or _SHORT_NUMBER.fullmatch(found[3]))
    return f"{found[1]}{found[2]}{REDACTED}" if named and not counted else found[0]


@functools.lru_cache(maxsize=8)
def _forms_of(known: frozenset[str]) -> tuple[str, ...]:
    """Every form of some values, the longest first."""
    forms = {form for value in known for form in _forms(value) if form and form not in REDACTED}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _forms(value: str) -> Iterator[str]:
    yield value
    raw = value.encode("utf-8", "surrogatepass")
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield from (once, json.dumps(once)[1:-1])
    yield from (repr(value)[1:-1], html.escape(value), value.replace("'", "'\"'\"'"))
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield from (quoted, re.sub("%..", lambda each: each[0].lower(), quoted))
    if len(raw) >= SHORTEST_ENCODED:
        yield raw.hex()
    for before in range(3):
        # of a value in the middle of what was encoded, the first and the last digits depend on what stands beside it
        encoded = base64.b64encode(b"\0" * before + raw).rstrip(b"=").decode()
        middle = encoded[(before * 4 + 2) // 3 : (before + len(raw)) * 4 // 3]
        if len(middle) >= SHORTEST_ENCODED:
            yield from (middle, middle.replace("+", "-").replace("/", "_"))


def _broken(text: str, forms: Iterable[str], breaks: re.Pattern[str]) -> str:
    """The text without the values that stand across a break: found in the text without breaks, cut from the text."""
    found = list(breaks.finditer(text))
    if not found:
        return text
    starts = [0, *(each.end() for each in found)]
    parts = [text[start:end] for start, end in zip(starts, [*(each.start() for each in found), len(text)], strict=True)]
    whole = "".join(parts)
    begins = [0, *itertools.accumulate(map(len, parts))][:-1]  # of each part, in the whole

    def place(index: int) -> int:
        part = bisect.bisect_right(begins, index) - 1
        return starts[part] + index - begins[part]

    spans = []
    for form in forms:
        at = whole.find(form) if len(form) >= SHORTEST_ENCODED else -1
        while at >= 0:
            spans.append((place(at), place(at + len(form) - 1) + 1))
            at = whole.find(form, at + len(form))
    clean, last = [], 0
    for start, end in sorted(spans):
        if start >= last:
            clean += [text[last:start], REDACTED]
        last = max(last, end)
    return "".join([*clean, text[last:]])


def secrets_in(words: Iterable[str]) -> frozenset[str]:
    """The values that a command passes under a secret's name."""
    found = set()
    for word, following in itertools.pairwise((*words, "")):
        flag, equals, value = word.partition("=")
        if flag.startswith("-") and names_a_secret(flag):
            found.add(value if equals else following)
    return frozenset(each for each in found if len(each) >= SHORTEST_KNOWN and not each.startswith("--"))


def secrets_here(env: Mapping[str, str], command: Iterable[str]) -> frozenset[str]:
    """The secrets that a process was given: by its environment, and by its command, also inside a word that is itself a
    command (`--stack 'launched:… --password …'`)."""
    inside: list[str] = []
    for word in command:
        try:
            inside += shlex.split(word) if any(map(str.isspace, word)) else [word]
        except ValueError:  # a quote without its end
            inside.append(word)
    return secrets_of(env) | secrets_in(inside)


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
    """Redacts a log line by line, including private keys that span lines, and secrets across parts of a line."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = frozenset(
            {part for each in known for part in (each, *each.splitlines()) if len(part) >= SHORTEST_KNOWN}
        )
        self._inside = False
        self._held = ""

    def line(self, text: str) -> str:
        """One line, redacted, with its newline if it has one; or a part of a long line, of which the end is held back
        until the next part comes."""
        text, self._held = self._held + text, ""
        if not text.endswith("\n") and len(text) > 4 * HELD:
            cut = self._cut(text)
            text, self._held = text[:cut], text[cut:]
        return self._line(text)

    def rest(self) -> str:
        """What is still held back, at the end of the log."""
        return self.line("") if self._held else ""

    def _cut(self, text: str) -> int:
        """A place near the end of a part at which no secret stands: both sides of it redact as the whole does."""
        end = text[-3 * HELD :]
        whole = redact(end, self._known)
        for back in range(HELD, 2 * HELD, HELD // 8):
            if redact(end[:-back], self._known) + redact(end[-back:], self._known) == whole:
                return len(text) - back
        return len(text) - HELD

    def _line(self, text: str) -> str:
        begins = re.search(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY", text)
        ends = re.search(r"-----END [A-Z0-9 ]{0,60}-----", text)
        inside, self._inside = self._inside, (self._inside or begins is not None) and ends is None
        if not inside:
            cleaned = redact(text, self._known)
            return cleaned if cleaned.endswith("\n") or not text.endswith("\n") else f"{cleaned}\n"
        return f"{REDACTED}{text[ends.end() :]}" if ends else ""
