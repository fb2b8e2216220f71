"""Redaction as a function of text: what goes, what stays, and that doing it twice changes nothing."""

from __future__ import annotations

import string

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
    secrets_in,
    secrets_of,
)

pytestmark = pytest.mark.unit

NAMES = {
    "HF_TOKEN": True, "hf_token": True, "WANDB_API_KEY": True, "AWS_ACCESS_KEY_ID": True, "AWS_SECRET_ACCESS_KEY": True,
    "NGC_APIKEY": True, "DB_PASSWORD_FILE": True, "--token": True, "--hub-token": True, "GOOGLE_CREDENTIALS": True,
    "TOKENIZERS_PARALLELISM": False, "--tokenizer-type": False, "TOKENS_PER_BATCH": False, "--eos-token": False,
    "PATH": False, "SSH_AUTH_SOCK": False, "XAUTHORITY": False, "--num-query-groups": False, "KEYBOARD": False,
    "NCCL_SOCKET_IFNAME": False, "COMPAT": False, "": False, "--": False,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_secrets_by_its_words(name: str) -> None:
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
KEPT = (
    "", "plain text", "tokens: 4096", "262144 tokens/s, loss 4.25", "--tokenizer-type NullTokenizer", "mlx5_0@rack7",
    "https://host/path?x=1", "file:///a/b@c", "bench-1@us-west1-c", "expandable_segments:True,gc:0.8", "key: value",
    "sha256:77aa", "max_num_tokens=4096", "the bearer of news", "2026-11-20T10:00:00+00:00", "a:b@c", "secretary=ann",
)  # fmt: skip


@pytest.mark.parametrize("text", GONE)
def test_a_secret_goes_and_what_stands_around_it_stays(text: str) -> None:
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
def test_a_known_secret_stands_nowhere(secret: str, before: str, after: str) -> None:
    known = secrets_of({"ANY_TOKEN": secret})
    assert secret not in redact(f"{before}{secret}{after}", known).replace(REDACTED, "")
    assert redact_variable("MY_TOKEN", secret) == REDACTED


def test_the_values_of_an_environment_that_are_secrets_wherever_they_stand() -> None:
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


def test_a_private_key_stays_out_line_by_line_to_its_end() -> None:
    redactor = LineRedactor({"two\nlines of it"})
    lines = (
        "before\n", "key: -----BEGIN RSA PRIVATE KEY-----\n", "AAAA\n", "BBBB\n", "-----END RSA PRIVATE KEY----- x\n",
        "after\n", "lines of it\n",
    )  # fmt: skip
    kept = "".join(map(redactor.line, lines))
    assert kept == f"before\nkey: {REDACTED}\n{REDACTED} x\nafter\n{REDACTED}\n"


@pytest.mark.timeout(30)
def test_a_rule_across_the_screen_costs_no_time() -> None:
    """pytest draws lines of underscores; a pattern that tries every way to cut one takes minutes a line."""
    for rule in ("_" * 4000, "_.-" * 1500, "a_" * 2000):
        assert LineRedactor().line(f"{rule} x\n") == f"{rule} x\n"
