"""One outcome of a test from the outcomes of its ranks. Pure: values in, a value out.

A test passes only if it passed on every rank. A rank that was aborted says nothing about the test; the rank that caused
the abort does.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from contracts.ranks.diagnostics import OddOne

KINDS = ("passed", "failed", "skipped", "xfailed", "xpassed")
TEXT = 20_000  # characters of a failure that are sent; the rank's log has all of it
VERDICT = "ranks.verdict"
OF_BACKEND = ("Connection closed", "Connection reset", "Broken pipe", "gloo", "Gloo", "NCCL", "DistBackendError")


@dataclass(frozen=True, kw_only=True)
class Post:
    """What one rank reports after a phase.

    `order` is its position, from 1, among the ranks that did not pass; the store counts them, so no clocks are
    compared. `aborted` is why its own group was cut, or empty. `raised` says that an exception passed through the test,
    which leaves its peers at an unknown point even if the outcome is not a failure. `in_flight` is this rank's
    `in_flight.View`, or None if it has called nothing since the ranks were last even.
    """

    rank: int
    kind: str = "passed"
    text: str = ""
    crash: str = ""
    reason: str = ""
    where: tuple[str, int] | None = None
    sections: tuple[tuple[str, str], ...] = ()
    properties: tuple[tuple[str, object], ...] = ()
    aborted: str = ""
    raised: bool = False
    order: int = 0
    in_flight: Mapping[str, object] | None = None


def written(post: Post) -> str:
    """A post as text for the store: empty for a plain pass, which most are."""
    if post == Post(rank=post.rank):
        return ""
    plain = {key: value for key, value in asdict(post).items() if value != _DEFAULTS.get(key)}
    return json.dumps({**plain, "text": post.text[-TEXT:]} if post.text else plain, default=str)


def read(text: str, rank: int) -> Post:
    """The post of a rank that `written` wrote."""
    if not text:
        return Post(rank=rank)
    plain = json.loads(text)
    for name in ("sections", "properties"):
        plain[name] = tuple(tuple(pair) for pair in plain.get(name, ()))
    if plain.get("where"):
        plain["where"] = tuple(plain["where"])
    return Post(**plain)


_DEFAULTS = asdict(Post(rank=-1))


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The outcome of one phase of a test, equal on every rank.

    `primary` is the rank that decided, which is the first to diverge; `poisoned` says that the process group can no
    longer be trusted.
    """

    kind: str
    primary: int = 0
    text: str = ""
    crash: str = ""
    reason: str = ""
    where: tuple[str, int] | None = None
    sections: tuple[tuple[str, str], ...] = ()
    properties: tuple[tuple[str, object], ...] = ()
    poisoned: bool = False
    aborted: bool = False
    outcomes: Mapping[int, str] = field(default_factory=dict)


def merge(posts: Sequence[Post]) -> Merged:
    """The outcome of the test as a whole. `posts` has one post of every rank, in any order."""
    posts = sorted(posts, key=lambda post: post.rank)
    outcomes = {post.rank: post.kind + (" (aborted)" if post.aborted else "") for post in posts}
    merged = replace(
        _decide(posts),
        outcomes=outcomes,
        poisoned=any(post.raised or post.aborted for post in posts) or len({post.kind for post in posts}) > 1,
        aborted=any(post.aborted for post in posts),
    )
    if merged.kind != "failed":
        return merged
    verdict: dict[str, object] = {
        "outcome": "failed",
        "primary": merged.primary,
        "words": merged.crash,
        "recovery": "aborted" if merged.aborted else "",
        "outcomes": {str(rank): said for rank, said in outcomes.items()},
    }
    own = {
        str(post.rank): [pair for pair in post.properties if pair[0] != VERDICT]
        for post in posts
        if post.kind == "failed" and post.properties and not post.aborted
    }
    if own:  # what each rank that failed by itself reports, and not the one alone that decided
        verdict["properties"] = own
    return replace(merged, properties=(*merged.properties, (VERDICT, json.dumps(verdict))))


def charged(merged: Merged, rank: int, words: Sequence[str]) -> Merged:
    """The same phase as a failure of `rank`, for what it left in flight; where it had failed, its own words stay."""
    if merged.kind == "failed":
        return replace(merged, text="\n".join([merged.text, *words]), poisoned=True)
    verdict = {"outcome": "failed", "primary": rank, "words": words[0], "recovery": "",
               "outcomes": {str(each): said for each, said in merged.outcomes.items()}}  # fmt: skip
    return replace(
        merged, kind="failed", primary=rank, crash=words[0], text="\n".join(words), poisoned=True,
        properties=(*merged.properties, (VERDICT, json.dumps(verdict))),
    )  # fmt: skip


def blamed(merged: Merged, odd: OddOne) -> Merged:
    """The same failure, with the rank whose collectives differ from the others' before the one that suffered from it:
    a backend ends, or hangs, whichever rank it finds first, and a wrong sum is asserted by whoever looks first. An
    error of the test's own names its rank already where that rank's calls may have been right."""
    of_backend = any(said in merged.crash for said in OF_BACKEND) or all(
        said != "failed" for said in merged.outcomes.values()
    )
    if not of_backend and not odd.certain:
        return merged
    rank, words = odd.rank, odd.words
    crash = f"{words}; {merged.crash}"
    kept = tuple(pair for pair in merged.properties if pair[0] != VERDICT)
    verdicts = [json.loads(str(value)) for name, value in merged.properties if name == VERDICT]
    told = [(VERDICT, json.dumps({**verdict, "primary": rank, "words": crash})) for verdict in verdicts]
    return replace(merged, primary=rank, crash=crash, text=f"{words}\n{merged.text}", properties=(*kept, *told))


def _decide(posts: Sequence[Post]) -> Merged:
    own = [post for post in posts if not post.aborted]
    kinds = {post.kind for post in posts}
    failed = sorted((post for post in own if post.kind == "failed"), key=_first)
    if failed:
        return _failed(failed[0], posts)
    if len(kinds) == 1 and len(own) == len(posts):
        return _unanimous(posts)
    if len(own) < len(posts) and {post.kind for post in own} <= {"passed"}:
        return _aborted(posts)
    if any(post.kind == "xfailed" for post in own) and {post.kind for post in own} <= {"xfailed", "xpassed", "passed"}:
        said = next(post for post in own if post.kind == "xfailed")
        return Merged(kind="xfailed", primary=said.rank, reason=said.reason, text=said.text, sections=said.sections,
                      properties=said.properties)  # fmt: skip
    return _disagreed(posts)


def _first(post: Post) -> tuple[bool, int, int]:
    return (post.order == 0, post.order, post.rank)


def _unanimous(posts: Sequence[Post]) -> Merged:
    speaker = posts[0]
    reasons = {post.reason for post in posts}
    reason = speaker.reason if len(reasons) == 1 else "; ".join(f"rank {post.rank}: {post.reason}" for post in posts)
    return Merged(kind=speaker.kind, reason=reason, where=speaker.where, text=speaker.text, sections=speaker.sections,
                  properties=speaker.properties)  # fmt: skip


def _failed(first: Post, posts: Sequence[Post]) -> Merged:
    """A rank failed without an abort. The first such rank decides, whatever the others reported."""
    unanimous = all(post.kind == "failed" and not post.aborted for post in posts)
    speaker = posts[0] if unanimous and posts[0].text == first.text else first
    crash = first.crash or first.text.strip().rpartition("\n")[2]
    return Merged(
        kind="failed",
        primary=speaker.rank,
        crash=crash if unanimous else f"rank {first.rank} diverged first: {crash}",
        text=_texts(posts, first=speaker),
        sections=_sections(posts),
        properties=speaker.properties,
    )


def _aborted(posts: Sequence[Post]) -> Merged:
    """No rank failed without an abort, and at least one did not return."""
    cut = sorted((post for post in posts if post.aborted), key=_first)
    return Merged(kind="failed", primary=cut[0].rank, crash=cut[0].aborted, text=_texts(posts, first=cut[0]),
                  sections=_sections(posts))  # fmt: skip


def _disagreed(posts: Sequence[Post]) -> Merged:
    """The ranks have different outcomes, and none is a failure."""
    groups: dict[str, list[int]] = defaultdict(list)
    for post in posts:
        groups["aborted" if post.aborted else post.kind].append(post.rank)
    fewest = min(groups.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    said = "; ".join(f"{kind} on {_names(ranks)}" for kind, ranks in groups.items())
    words = f"ranks disagree on the outcome: {said}"
    reasons = [f"rank {post.rank}: {post.aborted or post.reason}" for post in posts if post.aborted or post.reason]
    return Merged(kind="failed", primary=fewest[0], crash=words, text="\n".join([words, *reasons]),
                  sections=_sections(posts))  # fmt: skip


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _texts(posts: Sequence[Post], *, first: Post) -> str:
    """The failures, equal ones together: the first to diverge on top, those that followed from it below."""
    alike: dict[tuple[bool, str], list[Post]] = defaultdict(list)
    for post in posts:
        if post.kind != "passed" or post.aborted:
            alike[bool(post.aborted), post.text or post.reason].append(post)
    ranked = sorted(alike.items(), key=lambda pair: (first not in pair[1], pair[0][0], min(map(_first, pair[1]))))
    parts = [f"----- {_names([post.rank for post in group])} -----\n{_why(group)}{text}" for (_, text), group in ranked]
    table = ", ".join(f"{post.rank}:{post.kind}{'(aborted)' if post.aborted else ''}" for post in posts)
    return "\n".join([*parts, f"outcome per rank: {table}"])


def _why(group: Sequence[Post]) -> str:
    return f"aborted: {group[0].aborted}\n" if group[0].aborted else ""


def _sections(posts: Sequence[Post]) -> tuple[tuple[str, str], ...]:
    """What the ranks printed; equal texts share one entry."""
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for post in posts:
        for section in post.sections:
            alike[section].append(post.rank)
    everyone = len(posts)
    return tuple(
        (name if len(ranks) == everyone else f"{name} of {_names(ranks)}", text)
        for (name, text), ranks in alike.items()
    )
