"""What a receipt must not contain: secrets, and variables that nobody asked to record (RCPT-03)."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.recorded_runs import FACTS, exporting
from contracts.spec.machine import Finding
from contracts.spec.receipt import Component, Evidence, LaunchedRun, Source

# Invented, and valid nowhere; the forms are those that the issuers document.
HF = "hf_QwErTyUiOpAsDfGhJkLzXcVbNm0123456789"
GITHUB = "ghp_0123456789abcdefABCDEF0123456789abcd"
AWS_ID = "AKIAQYLPMN5HEXAMPLE7"
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzEXAMPLE9"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ0cmFpbmVyIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r_wW1gFWFOEjXk"
PASSWORD = "tr0ub4dor-and-3"
PLAIN = "marmalade-orchard-77"  # not in any issuer's form: only its name shows that it is a secret
SHORT = "q7#Z"  # too short to be looked for wherever it might stand
PEM = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\nQyNTUxOQAAACBzZWNyZXQ\n"
    "-----END OPENSSH PRIVATE KEY-----"
)


def _saying(failure: str) -> LaunchedRun:
    return replace(FACTS, ending="failed", exit_code=1, failure=failure)


def _with_words(*words: str) -> LaunchedRun:
    return replace(FACTS, launch=replace(FACTS.launch, argv=(*FACTS.launch.argv, *words)))


_PROVENANCE = FACTS.provenance
_NOTED = Finding(promise="STOR-02", field="data", value=f"https://reader:{PASSWORD}@store/x", problem="is remote",
                 remedy="mount it")  # fmt: skip

PLANTED: dict[str, tuple[LaunchedRun, tuple[str, ...]]] = {  # a run → the secrets in its facts
    "tokens-of-the-shell": (
        exporting(FACTS, HF_TOKEN=HF, AWS_ACCESS_KEY_ID=AWS_ID, AWS_SECRET_ACCESS_KEY=AWS_SECRET),
        (HF, AWS_ID, AWS_SECRET),
    ),
    "named-under-a-recorded-prefix": (exporting(FACTS, TORCH_HUB_TOKEN=PLAIN), (PLAIN,)),
    "inside-a-recorded-variable": (exporting(FACTS, NCCL_TUNER_ARGS=f"host=a,auth={HF},b=1"), (HF,)),
    "url-with-a-password": (
        exporting(FACTS, TORCH_HOME=f"https://trainer:{PASSWORD}@cache.example/hub?x=1"), (PASSWORD,)
    ),
    "bearer": (exporting(FACTS, TORCH_EXTRA_HEADERS=f"Authorization: Bearer {JWT}"), (JWT,)),
    "private-key": (exporting(FACTS, CUDA_CONTAINER_IDENTITY=PEM), ("b3BlbnNzaC1rZXktdjEAAAAABG5vbmU", "QyNTUxOQAAAC")),
    "flag-with-equals": (_with_words(f"--wandb-api-key={PLAIN}", "--lr=1e-4"), (PLAIN,)),
    "flag-and-word": (_with_words("--hub-token", PLAIN, "--lr", "1e-4"), (PLAIN,)),
    "override": (
        replace(FACTS, lane=replace(FACTS.lane, overrides={"data.path": f"s3://{AWS_ID}:{PASSWORD}@bucket/x"})),
        (AWS_ID, PASSWORD),
    ),
    "override-by-its-name": (
        replace(FACTS, lane=replace(FACTS.lane, overrides={"logger.API_KEY": PLAIN, "data.hub_token": JWT})),
        (PLAIN, JWT),
    ),
    "short-values-by-their-names": (
        replace(
            FACTS, lane=replace(FACTS.lane, overrides={"logger.password": SHORT}),
            launch=replace(FACTS.launch, env={**FACTS.launch.env, "HUB_TOKEN": SHORT}),
        ), (SHORT,),
    ),
    "last-words": (_saying(f"HTTPError: 401 for https://hub/api?token={PLAIN}&x=1"), (PLAIN,)),
    "repeated-by-an-error": (
        exporting(_saying(f"cannot log in with {PLAIN}"), TRACKER_PASSWORD=PLAIN), (PLAIN,)
    ),
    "override-and-variable-repeated-by-an-error": (
        replace(
            _saying(f"cannot log in with {PLAIN} or {PASSWORD}"),
            lane=replace(FACTS.lane, overrides={"logger.API_KEY": PLAIN}),
            launch=replace(FACTS.launch, env={**FACTS.launch.env, "HUB_SECRET": PASSWORD}),
        ), (PLAIN, PASSWORD),
    ),
    "build-of-a-package": (
        replace(FACTS, provenance=replace(_PROVENANCE, components=(
            Component(name="fork", version="1", build=f"git+https://x-access-token:{GITHUB}@example.com/f@abc"),
        ))), (GITHUB,),
    ),
    "changed-file": (
        replace(FACTS, provenance=replace(
            _PROVENANCE, source=Source(revision="3f", dirty=True, changed=(f"notes-{HF}",))
        )), (HF,),
    ),
    "finding": (replace(FACTS, preflight=replace(FACTS.preflight, findings=(_NOTED,))), (PASSWORD,)),
    "set-by-the-lane": (
        replace(FACTS, launch=replace(FACTS.launch, env={**FACTS.launch.env, "HUB_TOKEN": PLAIN})), (PLAIN,)
    ),
}  # fmt: skip


@contract("RCPT-03", asks=("receipt", "write_receipt"), cases=PLANTED, source="modal: secrets stay in the environment")
def no_secret_leaves_the_environment(stack: Evidence, facts: LaunchedRun, secrets: tuple[str, ...]) -> None:
    """A receipt contains no token, password or key, whichever field it came from: a recorded variable, the command, an
    override, an error message or a package's origin.

    Receipts are copied into tickets and buckets that more people can read than the host. Recording only certain
    prefixes is no protection: a token inside an NCCL_… value is recorded with it.
    """
    text = stack.write_receipt(stack.receipt(facts))
    for secret in secrets:
        assert secret not in text, f"{secret} is in the receipt: …{_around(text, secret)}…"


def _around(text: str, secret: str) -> str:
    at = text.index(secret)
    return text[max(0, at - 60) : at + len(secret) + 10]


UNRECORDED = {
    "paths-and-names": ({"HOME": "/home/alice-of-the-lab", "SUDO_USER": "alice-of-the-lab"}, "alice-of-the-lab"),
    "customers-variable": ({"CUSTOMER": "northern-grain-board"}, "northern-grain-board"),
    "prefix-inside-a-name": ({"MY_NCCL_NOTE": "third-shelf-on-the-left"}, "third-shelf-on-the-left"),
}


@contract("RCPT-03a", asks=("receipt", "write_receipt"), cases=UNRECORDED, source="modal: bounded environment record")
def what_is_not_recorded_is_not_stored(stack: Evidence, variables: dict[str, str], value: str) -> None:
    """Of the inherited environment, a receipt stores only runtime variables and those that the lane sets.

    Dumping the whole environment is the easy way to be complete. It also put home folders and customers' names next to
    every benchmark.
    """
    text = stack.write_receipt(stack.receipt(exporting(FACTS, **variables)))
    assert value not in text, f"{value!r} of {', '.join(variables)} is in the receipt"


KEPT = {  # exported → what the receipt must still say
    "interface": ("NCCL_SOCKET_IFNAME", "=eth0,eth1"),
    "topology-file": ("NCCL_TOPO_FILE", "/etc/nccl/h200@rack7.xml"),
    "tokens-are-counted-too": ("TORCH_TOKENS_PER_BATCH", "4096"),
    "logs": ("TORCH_LOGS", "recompiles,+dynamo"),
    "allocator": ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,garbage_collection_threshold:0.8"),
    "switch-of-a-parser": ("TORCH_SHOW_CPP_STACKTRACES", "1"),
    "unset-by-the-lane": ("CUDA_DEVICE_MAX_CONNECTIONS", "8"),
}


@contract("RCPT-03b", asks="receipt", cases=KEPT, source="playbook: environment belongs in the receipt")
def what_is_no_secret_is_kept(stack: Evidence, name: str, value: str) -> None:
    """A receipt keeps a runtime variable that holds no secret with the value that reached the ranks, and none that the
    lane unset.

    A receipt that redacts every value is safe and useless: the stale variable that explains a slow run is gone.
    """
    facts = exporting(FACTS, **{name: value}, TOKENIZERS_PARALLELISM="true", SSH_KEY="1")
    kept = stack.receipt(facts).environment.reached.get(name)
    reached = None if name in FACTS.launch.unset else value
    assert kept == reached, f"{name} is kept as {kept!r}, expected {reached!r}"
