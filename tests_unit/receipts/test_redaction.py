"""Redaction as a function of text: what goes, what stays, and that doing it twice changes nothing."""

import html
import json
import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.spec.redaction import (
    REDACTED,
    LineRedactor,
    names_a_secret,
    redact,
    redact_variable,
    redact_words,
    secrets_here,
    secrets_in,
    secrets_of,
)

NAMES = {
    "HF_TOKEN": True, "hf_token": True, "WANDB_API_KEY": True, "AWS_ACCESS_KEY_ID": True, "AWS_SECRET_ACCESS_KEY": True,
    "NGC_APIKEY": True, "DB_PASSWORD_FILE": True, "--token": True, "--hub-token": True, "GOOGLE_CREDENTIALS": True,
    "TOKENIZERS_PARALLELISM": False, "--tokenizer-type": False, "TOKENS_PER_BATCH": False, "--eos-token": False,
    "PATH": False, "SSH_AUTH_SOCK": False, "XAUTHORITY": False, "--num-query-groups": False, "KEYBOARD": False,
    "GCP_CREDS": True, "DB_PWD": True, "PWD": False, "OLDPWD": False,
    "NCCL_SOCKET_IFNAME": False, "COMPAT": False, "": False, "--": False,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_is_secret_if_a_word_of_its_name_is(name: str) -> None:
    assert names_a_secret(name) is NAMES[name]


GONE = {  # text → what it becomes
    "git+https://user:pa:ss@host/x@v1": f"git+https://{REDACTED}@host/x@v1",
    "https://ghp_0123456789abcdefABCD@host/x": f"https://{REDACTED}@host/x",
    "s3://a:b@c d://e@f": f"s3://{REDACTED}@c d://{REDACTED}@f",
    "-H 'Authorization: Basic dXNlcjpwYXNz'": f"-H 'Authorization: {REDACTED}'",
    '{"authorization": "Bearer abc.def"}': f'{{"authorization": "{REDACTED}"}}',
    "got bearer abcdefgh12": f"got bearer {REDACTED}",
    "url?token=abc&x=1": f"url?token={REDACTED}&x=1",
    '{"api_key": "a b", "x": 1}': f'{{"api_key": {REDACTED}, "x": 1}}',
    "AKIAQYLPMN5HEXAMPLE7 used": f"{REDACTED} used",
    "--wandb-api-key=abc --lr=1": f"--wandb-api-key={REDACTED} --lr=1",
    "train --hub-token abc --lr 1": f"train --hub-token {REDACTED} --lr 1",
    "a -----BEGIN EC PRIVATE KEY-----\nx\n-----END EC PRIVATE KEY----- b": f"a {REDACTED} b",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nx\ncut off": REDACTED,
}
A, B = "0123456789abcdefABCD", "0123456789abcdef" * 2
GONE |= {  # the forms of tokens, and the places that give one away
    f"npm_{A}": REDACTED, f"pypi-{A}": REDACTED, f"dckr_pat_{A}": REDACTED, f"SG.{A}.{A}": REDACTED,
    f"hvs.{A}": REDACTED, f"sk_live_{A}": REDACTED, f"12345678:AA{B}": REDACTED, f"dapi{B}": REDACTED,
    "post https://hooks.slack.com/services/T0/B0/abc now": f"post https://hooks.slack.com/services/{REDACTED} now",
    f"wandb login {B}01234567": f"wandb login {REDACTED}",
    f"machine api.wandb.ai login user password {B}": f"machine api.wandb.ai login user password {REDACTED}",
    "https://h/b?se=1&sig=a%2Bb&x=1": f"https://h/b?se=1&sig={REDACTED}&x=1",
    "https://h/b?X-Amz-Signature=00ff": f"https://h/b?X-Amz-Signature={REDACTED}",
    "Cookie: session=abc; csrf=def\nnext": f"Cookie: {REDACTED}\nnext",
    "train --pwd abc --lr 1": f"train --pwd {REDACTED} --lr 1",
    "server=h;uid=u;pwd=abc": f"server=h;uid=u;pwd={REDACTED}",
    "GCP_CREDS=abc x": f"GCP_CREDS={REDACTED} x",
    '{"accessToken": "a b"}': f'{{"accessToken": {REDACTED}}}',
    '{\\"token\\": \\"abc\\"}': f'{{\\"token\\": {REDACTED}}}',
    'password="a\\"b" x': f"password={REDACTED} x",
}  # fmt: skip
KEPT = (
    "token: 12", "PWD=/home/me", "--eos-token 2", "wandb: run at 0123456789abcdef0123456789abcdef01234567", "a cookie",
    "padding_token=0, loss 4.2",
    "", "plain text", "tokens: 4096", "262144 tokens/s, loss 4.25", "--tokenizer-type NullTokenizer", "mlx5_0@rack7",
    "https://host/path?x=1", "file:///a/b@c", "bench-1@us-west1-c", "expandable_segments:True,gc:0.8", "key: value",
    "sha256:77aa", "max_num_tokens=4096", "the bearer of news", "2026-11-20T10:00:00+00:00", "a:b@c", "secretary=ann",
)  # fmt: skip


@pytest.mark.parametrize("text", GONE)
def test_only_the_secret_in_a_text_is_redacted(text: str) -> None:
    assert redact(text) == GONE[text]


@pytest.mark.parametrize("text", KEPT)
def test_plain_text_stays_as_it_was(text: str) -> None:
    assert redact(text) == text


PIECES = st.one_of(st.sampled_from([*GONE, *KEPT]), st.text(max_size=20))


@given(st.lists(PIECES, max_size=5).map(" ".join))
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


SECRET = st.text(string.ascii_letters + string.digits + "-_/+.", min_size=8, max_size=40)


@given(SECRET, PIECES, PIECES)
def test_a_known_secret_is_redacted_everywhere(secret: str, before: str, after: str) -> None:
    known = secrets_of({"ANY_TOKEN": secret})
    assert secret not in redact(f"{before}{secret}{after}", known).replace(REDACTED, "")
    assert redact_variable("MY_TOKEN", secret) == REDACTED


def test_values_of_secret_variables_are_redacted_in_any_text() -> None:
    env = {
        "HF_TOKEN": "abcdefgh", "X_KEY": "1", "EMPTY_TOKEN": "", "PIP_INDEX_URL": "https://u:longpassword@h/x",
        "PLAIN": "abcdefg", "TOKENIZERS_PARALLELISM": "false-and-long",
    }  # fmt: skip
    assert secrets_of(env) == {"abcdefgh", "longpassword"}


def test_the_words_of_a_command_lose_the_values_of_secret_flags() -> None:
    words = ("torchrun", "--token", "abcdefgh", "--api-key=ijklmnop", "--token", "--lr", "1", "HF_TOKEN=qrstuvwx")
    kept = ("torchrun", "--token", REDACTED, f"--api-key={REDACTED}", "--token", "--lr", "1", f"HF_TOKEN={REDACTED}")
    assert redact_words(words) == kept
    assert secrets_in(words) == {"abcdefgh", "ijklmnop"}


def test_a_private_key_is_redacted_line_by_line() -> None:
    redactor = LineRedactor({"two\nlines of it"})
    lines = (
        "before\n", "key: -----BEGIN RSA PRIVATE KEY-----\n", "AAAA\n", "BBBB\n", "-----END RSA PRIVATE KEY----- x\n",
        "after\n", "lines of it\n",
    )  # fmt: skip
    kept = "".join(map(redactor.line, lines))
    assert kept == f"before\nkey: {REDACTED}\n{REDACTED} x\nafter\n{REDACTED}\n"


FORMS_OF_A_SECRET: dict[str, Callable[[str], str]] = {
    "as it is": lambda secret: secret,
    "in JSON": lambda secret: json.dumps({"x": secret}),
    "in JSON in JSON": lambda secret: json.dumps(json.dumps({"x": secret})),
    "in Python": repr,
    "in a URL": lambda secret: quote(secret, safe=""),
    "in a form": quote_plus,
    "in HTML": html.escape,
    "in base64": lambda secret: b64encode(f"user:{secret}".encode()).decode(),
    "in base64 for URLs": lambda secret: urlsafe_b64encode(f"u:{secret} and more".encode()).decode(),
    "in hexadecimal": lambda secret: secret.encode().hex(),
    "coloured": lambda secret: f"\x1b[1m{secret[:5]}\x1b[0;32m{secret[5:]}\x1b[0m",
    "coloured, in JSON": lambda secret: json.dumps(f"{secret[:5]}\x1b[0m{secret[5:]}"),
    "over two lines": lambda secret: f"{secret[:9]}\n    {secret[9:]}",
}


@pytest.mark.parametrize("form", FORMS_OF_A_SECRET)
@pytest.mark.parametrize("secret", ['q"uo\\te/+=&x y', "plain-secret-0123456789", "sécret-ünïcode-value"])
def test_a_known_secret_is_redacted_in_each_of_its_encodings(form: str, secret: str) -> None:
    text = f"before {FORMS_OF_A_SECRET[form](secret)} after"
    clean = redact(text, {secret})
    assert REDACTED in clean
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    middle = clean.removeprefix("before ").removesuffix(" after").replace(REDACTED, "")
    pieces = {FORMS_OF_A_SECRET[form](secret)[at : at + 6] for at in range(8, len(text) - 30)}
    assert not [each for each in pieces if len(each) == 6 and each in middle]


def test_a_secret_across_the_parts_of_a_long_line_is_found() -> None:
    secret, size = "STRADDLES-0123456789", 1 << 17
    for before in (size - 3, size - 12, size - 19, size - 20_000):
        redactor = LineRedactor({secret})
        whole = "x" * before + secret + "y" * 3000 + "\n"
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert "".join(map(redactor.line, parts)) + redactor.rest() == whole.replace(secret, REDACTED)


def test_secrets_of_the_command_line_and_environment_are_known() -> None:
    command = ("rankproof", "check", "--stack", "launched:serve --password hunter2hunter2", "--api-key", "abcdefgh")
    assert secrets_here({"HF_TOKEN": "ijklmnop"}, command) == {"hunter2hunter2", "abcdefgh", "ijklmnop"}
    assert secrets_here({}, ["/a user's/train.py"]) == secrets_here({}, ["/a user's/train.py", "--password"]) == set()


@pytest.mark.timeout(30)
def test_a_line_of_thousands_of_underscores_is_redacted_quickly() -> None:
    """pytest draws lines of underscores; a pattern that tries every way to cut one takes minutes a line."""
    for rule in ("_" * 4000, "_.-" * 1500, "a_" * 2000):
        assert LineRedactor().line(f"{rule} x\n") == f"{rule} x\n"
