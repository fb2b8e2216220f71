"""`launch`: starts a recipe after its preflight and leaves a receipt, however the run ends."""

import re
import sys
import tempfile
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from contracts.bringup.commands.compare import RECEIPT
from contracts.bringup.commands.storage import places_on_this_host, read_map
from contracts.court.party import OnTheStand
from contracts.harness import child_process, parties, telemetry
from contracts.harness.commands._completion import complete_recipes
from contracts.harness.commands._errors import one_clear_error, the_stack_talks_to_stderr
from contracts.harness.commands._lane_options import lane_of, lane_options
from contracts.harness.gate import utc_now
from contracts.instruments import provenance
from contracts.instruments.node import read_node
from contracts.spec import Lane, Launch, NotOffered, Recipe, Refused, refuse, shell
from contracts.spec.installation import StorageMap
from contracts.spec.machine import Finding, Need
from contracts.spec.receipt import Ending, LaunchedRun, Place, Preflight, Provenance
from contracts.spec.records import EXIT_CODES, USAGE_ERROR
from contracts.spec.redaction import secrets_in, secrets_of

STORAGE_ASKS = ("cache_env", "check_storage", "check_caches")
ASKS = ("preset", "launch", "receipt", "publish_receipt")
HOST = "RANKPROOF_HOST"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that is ready to start."""

    recipe: Recipe
    lane: Lane
    launch: Launch
    taken: Provenance
    preflight: Preflight
    places: tuple[Place, ...]
    warmup: int
    bounded: int

    @property
    def standing(self) -> tuple[Finding, ...]:
        """The findings that nobody acknowledged."""
        return tuple(each for each in self.preflight.findings if each.promise not in self.preflight.acknowledged)


@click.command()
@click.argument("recipe", shell_complete=complete_recipes)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@lane_options
@click.option("--acknowledge", multiple=True, metavar="ID", help="Launch in spite of a finding, or a deprecated name.")
@click.option("--receipts", type=click.Path(path_type=Path), help="Default: of the storage map, else ./receipts.")
@click.option(
    "--storage",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML map of the disks, as for `storage`; its places are judged too.",
)
@click.option("--host", envvar=HOST, metavar="BOX@REGION", help=f"Lineage of this machine [{HOST}].")
@click.option("--image", metavar="DIGEST", help="Digest of the container image, where there is one.")
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Steps that are not measured.")
@click.option(
    "--window", "bounded", type=click.IntRange(1), default=20, show_default=True, help="Steps that are measured."
)
@click.option(
    "--grace", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds that the run gets to stop."
)
@click.option("--dry-run", is_flag=True, help="Print findings and command; start and write nothing.")
@one_clear_error
def launch(
    recipe: str, words: tuple[str, ...], stack: str, acknowledge: tuple[str, ...], receipts: Path | None,
    storage: Path | None, host: str | None, image: str | None, warmup: int, bounded: int, grace: float, dry_run: bool,
    **asked: Any,
) -> None:  # fmt: skip
    """Start RECIPE on a lane, with further WORDS for its script after `--`.

    Preflight findings refuse the launch unless each is acknowledged by its id. Every launch leaves a folder in
    --receipts with the receipt and the log. The run sets the exit code, or it is 2 when the launch was refused.
    """
    taken = provenance.take(
        folder=Path.cwd(), host=host, devices=asked["gpus"], image=image
    )  # before a stack may load torch
    if taken.loaded:
        raise refuse(
            "provenance", taken.loaded, "were imported before the launch", "start rankproof in a clean process"
        )
    with child_process.stoppable(grace) as stop:
        started = utc_now()
        with the_stack_talks_to_stderr():
            subject = parties.load(stack)
        asks = (*ASKS, *STORAGE_ASKS) if storage else ASKS
        party: Any = OnTheStand(subject, (), (*asks, "host", "preflight"))
        if missing := [asked for asked in asks if asked in party.missing]:
            raise NotOffered(f"{subject.name} does not offer {', '.join(missing)}")
        places = read_map(storage) if storage else None
        settled = party.preset(recipe, acknowledge)
        lane = lane_of(settled, **asked)
        ready = _prepare(party, settled, lane, taken, places, acknowledge, words, warmup, bounded)
        for finding in ready.preflight.findings:
            said = "acknowledged: " if finding not in ready.standing else ""
            click.echo(f"rankproof: {said}{finding}", err=True)
        if dry_run:
            click.echo(shell(ready.launch))
            sys.exit(USAGE_ERROR if ready.standing else 0)
        folder = _folder(receipts or Path(places.receipts if places else "receipts"), lane.run)
        if ready.standing:
            ended = child_process.Ended(exit_code=USAGE_ERROR, stopped_by=None, last_words="refused by preflight")
            facts = _facts(ready, started, "refused", ended, telemetry.Telemetry())
            facts = replace(facts, exit_code=None)
        else:
            ended, told = _run(ready, folder, stop)
            facts = _facts(ready, started, _ending(ended), ended, told)
        code = _exit_code(ended)
        try:
            path = party.publish_receipt(party.receipt(facts), str(folder / RECEIPT))
        except Refused as refused:
            click.echo(f"rankproof: {facts.ending}, and no receipt: {refused}", err=True)
            sys.exit(code or EXIT_CODES["broken"])
    click.echo(f"rankproof: {facts.ending}, receipt in {path}", err=True)
    sys.exit(code)


def _exit_code(ended: child_process.Ended) -> int:
    """The run's own, as a shell says it. A run that was stopped and ended with 0 is no success for what comes next."""
    if ended.exit_code == 0 and ended.stopped_by is not None:
        return 128 + ended.stopped_by
    return ended.exit_code if ended.exit_code >= 0 else 128 - ended.exit_code


def _prepare(
    party: Any, recipe: Recipe, lane: Lane, taken: Provenance, places: StorageMap | None,
    acknowledge: tuple[str, ...], words: tuple[str, ...], warmup: int, bounded: int,
) -> Prepared:  # fmt: skip
    host = taken.machine.host
    if host is not None and "host" not in party.missing:
        taken = provenance.on_host(taken, party.host(host))
    launched: Launch = party.launch(recipe, lane)
    caches = party.cache_env(places, lane.run) if places else {}
    launched = replace(
        launched, argv=(*launched.argv, *_further(launched, words)), env={**launched.env, **caches},
        unset=tuple(name for name in launched.unset if name not in caches),
    )  # fmt: skip
    capture = read_node()
    findings: tuple[Finding, ...] = ()
    if "preflight" not in party.missing:
        findings = party.preflight(capture, Need(gpus=lane.gpus, hbm_gb=recipe.hbm_gb))
    if places is not None:
        seen = places_on_this_host(places, *(each for each in caches.values() if each.startswith("/")))
        findings = (*findings, *party.check_storage(places, seen))
        findings = (*findings, *party.check_caches(places, seen, lane.run, reaching(launched, lane)))
    found = {finding.promise for finding in findings}
    return Prepared(
        recipe=recipe,
        lane=lane,
        launch=launched,
        taken=taken,
        preflight=Preflight(
            ran="preflight" not in party.missing,
            findings=tuple(findings),
            acknowledged=tuple(each for each in acknowledge if each in found),
        ),
        places=provenance.places(lane.gpus, capture.topology),
        warmup=warmup,
        bounded=bounded,
    )


def reaching(launched: Launch, lane: Lane) -> dict[str, str]:
    """The environment that the ranks see: what was inherited, less what is unset, under what is set."""
    kept = {name: value for name, value in lane.inherited.items() if name not in launched.unset}
    return {**kept, **launched.env}


def _further(launched: Launch, words: tuple[str, ...]) -> tuple[str, ...]:
    """The user's own words, which may add to the lane and not contradict it: what runs is what the receipt says.

    Raises:
        Refused: for a flag that the lane has written already.
    """
    said = {word.partition("=")[0] for word in launched.argv if word.startswith("--")}
    for word in words:
        if word.partition("=")[0] in said:
            raise refuse("words", word, "is set by the lane already", "change the recipe, the lane or --set")
    return words


def _folder(receipts: Path, run: str) -> Path:
    """A new folder for this launch, made before anything starts.

    Raises:
        Refused: when it cannot be made.
    """
    name = re.sub(r"[^\w.-]+", "_", run).strip(".") or "run"
    try:
        receipts.mkdir(parents=True, exist_ok=True)
        stamp = re.sub(r"\D", "", utc_now())[:14]
        folder = receipts.resolve() / f"{name[:80]}-{stamp}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        return folder
    except OSError as error:
        raise refuse(
            "--receipts", str(receipts), f"cannot be written: {error.strerror}", "give a folder on a volume with space"
        ) from None


def _run(ready: Prepared, folder: Path, stop: child_process.Stop) -> tuple[child_process.Ended, telemetry.Telemetry]:
    env = reaching(ready.launch, ready.lane)
    with tempfile.TemporaryDirectory(prefix="rankproof-") as outside:  # what a run tells may hold secrets
        told = Path(outside) / "telemetry.jsonl"
        known = secrets_of(env) | secrets_in(ready.launch.command)
        env[telemetry.VARIABLE] = str(told)
        ended = child_process.run(
            ready.launch.command, env, folder / "log.txt", known, stop, lambda line: click.echo(line, nl=False)
        )
        return ended, telemetry.read(told)


def _ending(ended: child_process.Ended) -> Ending:
    if ended.stopped_by is not None:
        return "terminated"
    return "ok" if ended.exit_code == 0 else "failed"


def _facts(
    ready: Prepared, started: str, ending: Ending, ended: child_process.Ended, told: telemetry.Telemetry
) -> LaunchedRun:
    reported = {place.local_rank: place for place in told.places}
    lost = f"{told.lost} lines of telemetry could not be read" if told.lost else ""
    failure = None if ending == "ok" else ended.last_words
    # A run that does not say why a backend was replaced has a receipt all the same, which says so.
    backends = tuple(
        replace(each, reason=each.reason or "the run did not say") if each.actual != each.requested else each
        for each in told.backends
    )
    return LaunchedRun(
        recipe=ready.recipe,
        lane=ready.lane,
        launch=ready.launch,
        provenance=ready.taken,
        preflight=ready.preflight,
        places=tuple(reported.get(place.local_rank, place) for place in ready.places),
        started=started,
        finished=utc_now(),
        ending=ending,
        exit_code=ended.exit_code,
        failure="\n".join(filter(None, (lost, failure))) or None,
        steps=told.steps,
        warmup=ready.warmup,
        bounded=ready.bounded,
        memory=told.memory,
        backends=backends,
    )
