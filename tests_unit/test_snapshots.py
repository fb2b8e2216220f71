"""The launches of every preset, as text that is equal on every machine: read its diff as a diff of the launch.

`pytest tests_unit/test_snapshots.py --snapshot-update` writes it anew. A snapshot that no test asks for is red.
"""

import shlex
from collections.abc import Iterator, Mapping

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.types import PropertyFilter, PropertyMatcher, SerializableData, SerializedData

from contracts.spec import Degrees, Lane, Launch
from contracts.spec import pattern as patterns
from contracts.spec.presets import PRESETS
from contracts.stacks.reference.stack import Reference


class TextFile(SingleFileSnapshotExtension):
    """One readable file a snapshot, under the name of its test."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"

    def serialize(
        self,
        data: SerializableData,
        *,
        exclude: PropertyFilter | None = None,
        include: PropertyFilter | None = None,
        matcher: PropertyMatcher | None = None,
    ) -> SerializedData:
        return str(data)


@pytest.fixture
def text(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(TextFile)


LANES: Mapping[str, tuple[str, Lane]] = {
    f"{name}.{mode}.{regime}": (name, Lane(mode=mode, regime=regime))
    for name, recipe in PRESETS.items()
    if not name.startswith("tiny-")  # which say what their full sizes do
    for mode in recipe.modes
    for regime in ("megatron", "fsdp2")
} | {
    "pipeline.nemo_native.megatron": (
        "nam56r_h200_bf16_v1",
        Lane(mode="nemo_native", degrees=Degrees(pp=2, tp=2, sp=True, ep=4, etp=1)),
    ),
    "pipeline.nemo_native.fsdp2": (
        "nam56r_h200_bf16_v1",
        Lane(mode="nemo_native", regime="fsdp2", degrees=Degrees(pp=2, tp=2, sp=True, ep=2)),
    ),
    "two-nodes.author_dp.megatron": (
        "nam56r_h200_bf16_v1",
        Lane(mode="author_dp", nodes=2, rendezvous="node-0:29500", run="two nodes", force_max_connections=True),
    ),
}


@pytest.mark.parametrize("name", LANES)
def test_a_launch_equals_its_snapshot(name: str, text: SnapshotAssertion) -> None:
    preset, lane = LANES[name]
    assert "\n".join(
        (f"{preset} as {lane.mode} under {lane.regime}", *lines(Reference().launch(PRESETS[preset], lane)))
    ) == (text)


def test_expanded_patterns_equal_their_snapshot(text: SnapshotAssertion) -> None:
    spread = []
    for name, recipe in PRESETS.items():
        pattern = patterns.parse(recipe.pattern, recipe.depth)
        sparse = patterns.placement(pattern, recipe.dsa.a_ranks if recipe.dsa else ()).sparse_layers.numbers
        counts = " ".join(f"{letter}{pattern.letters.count(letter)}" for letter in "AEMR")
        hybrid = patterns.translate(
            pattern, moe=recipe.moe is not None, mtp_depth=recipe.mtp.depth if recipe.mtp else 0
        )
        spread += [
            f"{name}: {recipe.pattern} over {recipe.depth}",
            f"  {patterns.render(pattern)}",
            f"  {hybrid.text}",
            f"  {counts}, recurrent layers {list(hybrid.recurrent.numbers)}, sparse layers {list(sparse)} (1-based)",
        ]
    assert "\n".join(spread) + "\n" == text


def lines(launch: Launch) -> Iterator[str]:
    """A launch as text: one flag a line with its values, quoted as a shell would need them."""
    degrees = " ".join(f"{name}={value}" for name, value in vars(launch.degrees).items())
    yield f"for {launch.launcher} {launch.launcher_version}, world {launch.world}, {degrees}"
    for title, words in (("torchrun", launch.torchrun), ("script", launch.script), ("argv", launch.argv)):
        yield f"\n{title}"
        yield from (f"  {line}" for line in flags(words))
    yield "\nenv"
    yield from (f"  {name}={shlex.quote(value)}" for name, value in sorted(launch.env.items()))
    yield from (f"  unset {name}" for name in launch.unset)
    for numbers, what in ((launch.recurrent, "recurrent"), (launch.sparse, "sparse")):
        if numbers.numbers:
            yield f"\n{what} layers, counted from {numbers.base}\n  {' '.join(map(str, numbers.numbers))}"
    if launch.gives_up:
        yield "\ngives up"
        yield from (f"  {each}" for each in launch.gives_up)
    yield ""


def flags(words: tuple[str, ...]) -> Iterator[str]:
    line = ""
    for word in words:
        if word.startswith("-") and line:
            yield line
            line = ""
        line = f"{line} {shlex.quote(word)}".lstrip()
    yield line
