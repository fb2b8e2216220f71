"""The HTML page as a reader has it, in headless Chromium."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.court.html_report import Recorded, overview
from contracts.court.mesh_picture import mesh_picture, one_forward_one_backward, schedule_picture
from contracts.court.report import render
from contracts.court.wording import rerun
from contracts.harness.commands.traffic import drawn, lanes
from contracts.spec import Degrees, Execution, Rehearsal, Sent
from contracts.spec.presets import PRESETS
from contracts.spec.records import Item, OnRanks, Result, Run, Violation
from tests_unit._parties.law import LAW
from tests_unit.gate._browser import CHROMIUM, Browser, browser
from tests_unit.gate._reported import GREEN, ITEM, RED, run_of, sick
from tests_unit.gate.test_reports import _judged

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed")
RUNS: dict[str, Callable[[], Run]] = {"green": lambda: GREEN, "red": lambda: RED, "sick": lambda: sick(2257)}
SHOWN = "[...document.querySelectorAll('.item')].filter(each => !each.hidden).length"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, made in RUNS.items():
        run = made()
        found[name] = folder / f"{name}.html"
        found[name].write_text(render(run, _judged(run), "html"), encoding="utf-8")
    found["overview"] = folder / "overview.html"
    found["overview"].write_text(overview(_several()), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def _several() -> list[Recorded]:
    """Two runs of one stack, of which the later mends one contract and breaks another, and one of another stack."""
    later = [replace(each, outcome="holds", words="") if each.id == "TOPO-02" else each for each in RED.results]
    later = [
        replace(each, outcome="violated", words="late") if str(each.item) == "RCPT-01[three]" else each
        for each in later
    ]
    runs = {
        "reports/monday": RED,
        "reports/tuesday": run_of(*later, started="2026-11-23T20:00:00+00:00"),
        "reports/other": run_of(*GREEN.results, name="other"),
    }
    return [Recorded(label=label, run=run, verdict=_judged(run)) for label, run in runs.items()]


def test_a_report_page_is_valid_html_and_names_each_item_once() -> None:
    for run in (made() for made in RUNS.values()):
        text = render(run, _judged(run), "html")
        ids = re.findall(r'<li class="item" id="([^"]+)"', text)
        assert ids == [*dict.fromkeys(ids)]
        assert {*ids} == {str(item) for item in run.plan.items}
        assert not re.search(r'(?:src|href)="(?:https?:)?//', text.partition("<main>")[0])
        assert "\"default-src 'none'" in text or "default-src 'none'" in text


def test_the_overview_lists_what_each_run_broke_and_fixed() -> None:
    text = overview(_several())
    words = " ".join(re.sub(r"<[^>]+>", " ", text.partition("<main>")[2]).split())
    assert "1 newly red RCPT-01[three]" in words
    assert "3 mended TOPO-02[pp2] TOPO-02[pp4] TOPO-02[pp8]" in words
    assert "rankproof: 3 reports" in text
    assert 'href="reports/tuesday/report.html"' in text
    assert "fork launch,numeric, 2 runs" in words
    assert "other launch,numeric, 1 run" in words


def test_the_mesh_shows_the_ranks_on_which_an_item_went_wrong() -> None:
    wrong = Result(id="TOPO-05d", case="borrowed-pp2-tp2-ep4-etp1-on-8", outcome="violated", words="late", rank=5,
                   ranks=(2, 5))  # fmt: skip
    drawn = mesh_picture([wrong])
    assert drawn.columns == ("tp 0", "tp 1")
    assert [(name, [each.rank for each in squares]) for name, squares in drawn.rows] == [
        ("pp 0 dp 0", [0, 1]), ("pp 0 dp 1", [2, 3]), ("pp 1 dp 0", [4, 5]), ("pp 1 dp 1", [6, 7]),
    ]  # fmt: skip
    told = [(each.rank, each.first) for _, squares in drawn.rows for each in squares if each.wrong]
    assert told == [(2, False), (5, True)]
    run = run_of(wrong)
    assert "rank 5 (pp 1, dp 0, tp 1): it went wrong here" in render(run, _judged(run), "html")
    for unknown in ({"ranks": ()}, {"case": "of-another-suite"}, {"ranks": (8,)}, {"id": "TOPO-99"}):
        assert mesh_picture([replace(wrong, **unknown)]) is None  # type: ignore[arg-type]


def _off(name: str, error: str) -> Violation:
    return Violation(words=f"the gradient of {name} differs: L2 error {error} over 1e-10 (float64 scan)", tensor=name)


def test_errors_are_drawn_by_rank_and_layer() -> None:
    alike = (_off("layers.0.norm.weight", "1.0e-03"), _off("layers.0.mixer.wq", "2.0e-06"), _off("head", "1.0e-04"))
    first = Result(id="PAR-01a", case="tp2-sp-ep2", outcome="violated", rank=2, ranks=(0, 1, 2), words=alike[0].words,
                   on_ranks=(OnRanks(ranks=(0, 1), violations=alike), OnRanks(ranks=(3,), violations=()),
                             OnRanks(ranks=(2,), violations=(_off("layers.11.norm.weight", "5.0e-01"),))))  # fmt: skip
    table = _table(first, "Largest relative error by rank and layer in PAR-01a[tp2-sp-ep2]")
    assert re.findall(r'<th scope="col"><span>([^<]*)', table) == ["no layer", "layer 0", "layer 11"]
    rows = re.findall(r'<th scope="row">(rank \d)</th>(.*)</tr>', table)
    assert [(rank, re.findall(r">([^<>]*)</td>", row)) for rank, row in rows] == [
        ("rank 0", ["1e-4", "1e-3", ""]), ("rank 1", ["1e-4", "1e-3", ""]), ("rank 2", ["", "", "5e-1"]),
        ("rank 3", ["", "", ""]),
    ]  # fmt: skip
    assert 'title="layers.11.norm.weight in PAR-01a[tp2-sp-ep2] rank 2: 5.0e-01"' in rows[2][1]
    without = replace(first, on_ranks=(OnRanks(ranks=(0,), violations=(alike[2], Violation(words="late"))),))
    for each in (replace(first, on_ranks=()), without):
        assert _table(each, "Largest relative error by rank and layer") == "", "no layer is told"


def _table(result: Result, title: str) -> str:
    """The table of the picture with this title, in the page of a run with one result."""
    run = run_of(result)
    return render(run, _judged(run), "html").partition(f"<figcaption>{title}")[2].partition("</table>")[0]


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_pictures_of_many_ranks_fit_the_page(width: int, dark: bool, chromium: Browser, tmp_path: Path) -> None:
    many = tuple(
        OnRanks(ranks=(rank,), violations=tuple(_off(f"layers.{layer}.wq", "1.0e-03") for layer in range(30)))
        for rank in range(8)
    )
    run = run_of(
        Result(id="PAR-01a", case="tp2-sp-ep2-fsdp2", outcome="violated", words="off", on_ranks=many),
        Result(id="PAR-08a", case="interleaved", outcome="violated", words="late"),
    )
    page = tmp_path / "page.html"
    page.write_text(render(run, _judged(run), "html"), encoding="utf-8")
    chromium.open(page, width=width, dark=dark)
    assert chromium.run("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    assert chromium.run("document.querySelectorAll('.cause .heat:not(.slots) td[style]').length") == 8 * 24
    assert chromium.run("document.querySelector('.cause .heat:not(.slots) > .dim').textContent") == "and 6 layers more"
    passes, waits = "td.F, td.B", "td:not(.F, .B)"
    assert chromium.run(f"document.querySelector('.slots').querySelectorAll('{passes}').length") == 2 * 2 * 2 * 4
    colours = [
        chromium.run(f"getComputedStyle(document.querySelector('.slots {each}')).backgroundColor")
        for each in ("td.F", "td.B", 'td.F[style*="chunk:1"]', waits)
    ]
    assert len({*colours}) == 4, "passes, chunks and waits are told apart"
    assert chromium.complaints == []


def _told(ranks: int, microbatches: int, chunks: int = 1) -> list[str]:
    """The slots of each rank: `F0.2` is the forward pass of microbatch 0 through stage 2."""
    rows = one_forward_one_backward(ranks, microbatches, chunks)
    return [" ".join(f"{one.kind}{one.microbatch}.{one.stage}" if one else "-" for one in row) for row in rows]


def test_a_pipeline_schedule_is_drawn_as_it_is_defined() -> None:
    assert _told(2, 2) == ["F0.0 F1.0 - B0.0 - B1.0", "- F0.1 B0.1 F1.1 B1.1 -"]
    assert _told(3, 1) == ["F0.0 - - - - B0.0", "- F0.1 - - B0.1 -", "- - F0.2 B0.2 - -"]
    assert _told(2, 2, 2) == [
        "F0.0 F1.0 F0.2 F1.2 - B0.2 - B1.2 B0.0 B1.0",
        "- F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 B0.1 B1.1 -",
    ]
    run = run_of(Result(id="PAR-08a", case="two-stages", outcome="violated", words="late"))
    text = render(run, _judged(run), "html")
    assert "The schedule that PAR-08a[two-stages] asks for, by its definition: 1F1B, " in text
    assert 'title="forward pass of microbatch 0 through stage 0">F0</td>' in text


@pytest.mark.parametrize(
    ("id", "case", "told"),
    [
        ("PAR-08a", "interleaved", "interleaved 1F1B, 4 microbatches, 2 stages a rank"),
        ("PAR-08a", "interleaved-cut-evenly",
         "interleaved 1F1B, 2 microbatches, 2 stages a rank, the fewest that there can be"),
    ],
)  # fmt: skip
def test_an_interleaved_schedule_is_drawn_rank_by_rank(id: str, case: str, told: str) -> None:
    run = run_of(Result(id=id, case=case, outcome="violated", words="late"))
    text = render(run, _judged(run), "html")
    assert f"{id}[{case}] asks for, by its definition: {told}<" in text
    rows = re.findall(r'<th scope="row">rank (\d)</th>(.*)</tr>', text)
    drawn = [(rank, re.findall(r">([FB]\d)<sub>(\d)</sub>", row)[:4]) for rank, row in rows]
    assert drawn[0] == ("0", [("F0", "0"), ("F1", "0"), ("F0", "2"), ("F1", "2")])
    assert drawn[1] == ("1", [("F0", "1"), ("F1", "1"), ("F0", "3"), ("B0", "3")])
    assert len(drawn) == 2


def test_a_schedule_that_no_pipeline_has_is_not_drawn() -> None:
    for case in ("no-multiple-when-interleaved", "two-segments-interleaved"):
        assert case in LAW.contracts["PAR-08f"].cases
        assert schedule_picture([Result(id="PAR-08f", case=case, outcome="violated", words="late")]) is None


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(2, 2, 2), (2, 2, 4), (3, 3, 6), (4, 2, 8), (4, 3, 4)])
def test_an_interleaved_rank_has_its_passes_in_torch_s_order_and_waits_no_longer_than_it_must(
    ranks: int, chunks: int, microbatches: int
) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        x = torch.empty(1, device="meta")
        stages = [
            PipelineStage(torch.nn.Identity(), chunk * ranks, chunks * ranks, torch.device("cpu"), input_args=x,
                          output_args=x)
            for chunk in range(chunks)
        ]  # fmt: skip
        theirs = ScheduleInterleaved1F1B(stages, microbatches, loss_fn=torch.nn.functional.mse_loss).pipeline_order
    finally:
        torch.distributed.destroy_process_group()
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B"}
    drawn = one_forward_one_backward(ranks, microbatches, chunks)
    for rank, row in enumerate(drawn):
        assert [(one.kind, one.microbatch, one.stage) for one in row if one] == [
            (kinds[one.computation_type.name], one.microbatch_index, one.stage_index) for one in theirs[rank] if one
        ]
    if microbatches > ranks:  # otherwise the first rank has no forward pass left to fill its wait with
        assert len(drawn[0]) == 2 * chunks * microbatches + 2 * (ranks - 1)


STEP = Rehearsal(
    groups=((0, 1),),
    issued=(
        *(Sent(op="all_reduce", reduce="sum", group=0, shapes=((8,),), dtypes=("float32",)) for _ in range(2)),
        Sent(op="send", group=0, shapes=((32,),), dtypes=("bfloat16",), peer=2),
        Sent(op="receive", group=0, shapes=((32,),), dtypes=("bfloat16",), peer=2),
    ),
    held={},
    experts=frozenset(),
)
IN_FOUR = Execution(world=4, degrees=Degrees(pp=2, tp=2))


def test_the_traffic_of_a_step_has_a_lane_for_each_axis() -> None:
    found = lanes(IN_FOUR, 0, STEP)
    spans = {axis: [(each.op, each.left, each.width) for each in told] for axis, told in found.items()}
    # A ring of two carries each all_reduce once, 32 B of it; the message is 64 B; what is received, the sender carries.
    assert spans == {"tp, etp": [("all_reduce", 0, 500)], "pp": [("send", 500, 500), ("receive", 1000, 0)]}
    assert found["pp"][0].title == "send over 0 2: 1 x, 64 B put in, 64 B over its link"
    assert found["tp, etp"][0].title == "all_reduce sum over 0 1: 2 x, 64 B put in, 64 B over its link"


@needs_chromium
@pytest.mark.parametrize("width", [1400, 420])
def test_the_page_of_traffic_opens(width: int, chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "traffic.html"
    page.write_text(drawn(PRESETS["nam56r_h200_bf16_v1"], IN_FOUR, 0, "balanced", STEP), encoding="utf-8")
    chromium.open(page, width=width)
    assert chromium.run("document.querySelectorAll('.lanes rect').length") == 3
    assert chromium.run("document.querySelector('.lanes rect').getBoundingClientRect().width") > 10
    assert chromium.run("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    assert chromium.complaints == []


def test_the_report_page_shows_conventions_side_by_side() -> None:
    def declaring(name: str, **declared: str) -> Recorded:
        run = run_of(*GREEN.results, name=name)
        subject = replace(run.header.subject, conventions=declared)
        run = replace(run, header=replace(run.header, subject=subject))
        return Recorded(label=name, run=run, verdict=_judged(run))

    text = overview([declaring("one", angles="float32", steps="alike"), declaring("two", angles="exact")])
    table = text.partition("Conventions that they declare")[2].partition("</table>")[0]
    rows = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in table.split("<tr")[2:]]
    assert rows == ['class="deviates"> angles float32 exact', 'class="deviates"> steps alike –']
    assert "Conventions that" not in overview([declaring("one")])


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("name", [*RUNS, "overview"])
def test_a_report_page_opens_without_console_errors_or_network(
    name: str, width: int, dark: bool, chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages[name], width=width, dark=dark)
    assert chromium.run("document.title").startswith(
        "rankproof" if name == "overview" else _judged(RUNS[name]()).word.upper()
    )
    assert chromium.run("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    background = chromium.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(15, 18, 22)" if dark else "rgb(255, 255, 255)")
    if name != "overview":
        assert chromium.run(SHOWN) == len(RUNS[name]().results)
    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith(("file:", "data:", "about:"))] == []


@needs_chromium
def test_tiles_families_and_search_words_filter_the_report_page(chromium: Browser, pages: dict[str, Path]) -> None:
    def counted(run: Run, outcome: str, family: str = "") -> int:
        return sum(each.outcome == outcome and each.id.startswith(family) for each in run.results)

    chromium.open(pages["red"])
    chromium.run("document.querySelector('.tile.violated').click()")
    assert chromium.run(SHOWN) == counted(RED, "violated")
    chromium.run("document.querySelector('.tile.broken').click()")
    assert chromium.run(SHOWN) == counted(RED, "violated") + counted(RED, "broken")
    chromium.run("document.querySelector('.matrix button[data-family=PAT][data-outcome=violated]').click()")
    assert chromium.run(SHOWN) == counted(RED, "violated", "PAT")
    chromium.run("document.querySelector('#clear').click()")
    assert chromium.run(SHOWN) == len(RED.results)
    chromium.run(
        "(s => { s.value = 'KEYERROR 99'; s.dispatchEvent(new Event('input')); })(document.querySelector('#search'))"
    )
    chromium.until(f"{SHOWN} === 1")
    assert chromium.run("document.querySelector('#shown').textContent") == f"1 of {len(RED.results)} items"
    assert chromium.run("document.querySelectorAll('section.outcome:not([hidden])').length") == 1
    assert chromium.complaints == []


@needs_chromium
@pytest.mark.parametrize("item", [ITEM, Item(id="RCPT-01", case="three")], ids=["violated", "holds"])
def test_a_link_to_an_item_opens_and_shows_it(item: Item, chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["red"], f"#{item}")
    element = f"document.getElementById('{item}')"
    chromium.until(f"{element}.classList.contains('here')")
    assert chromium.run(f"{element}.closest('details').open")
    top, height = chromium.run(f"[{element}.getBoundingClientRect().top, innerHeight]")
    assert 0 <= top < height
    # The page's own link to an item leads there as well, whatever is filtered.
    chromium.open(pages["red"])
    chromium.run("document.querySelector('.tile.broken').click()")
    chromium.run(f"{element}.querySelector('a').click()")
    chromium.until(f"{element}.classList.contains('here') && !{element}.hidden")
    assert chromium.complaints == []


@needs_chromium
def test_an_item_offers_the_command_that_judges_it_again(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["red"])
    element = f"document.getElementById('{ITEM}')"
    assert chromium.run(f"{element}.querySelector('button')") is None
    chromium.run(f"{element}.querySelector('a').focus()")
    assert chromium.run(f"{element}.querySelector('button').dataset.copy") == rerun(
        RED, next(each for each in RED.results if each.item == ITEM)
    )
    chromium.run(f"{element}.querySelector('button').click()")
    chromium.until(f"{element}.querySelector('button').textContent === 'copied'")


@needs_chromium
def test_the_report_page_can_be_used_by_keyboard(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["red"])
    chromium.press("/")
    assert chromium.run("document.activeElement.id") == "search"
    chromium.press("Escape")
    chromium.press("j")
    chromium.press("j")
    assert chromium.run("document.activeElement.closest('.cause').id") == "cause-2"
    chromium.press("k")
    assert chromium.run("document.activeElement.closest('.cause').id") == "cause-1"


@needs_chromium
def test_the_report_page_follows_the_readers_colour_scheme(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["green"])
    chromium.run("document.querySelector('#theme').click()")
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 22)"
    chromium.run("document.querySelector('#theme').click()")
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    chromium.run("localStorage.clear()")


@needs_chromium
def test_a_printed_report_page_has_no_controls(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["red"])
    assert chromium.run("getComputedStyle(document.querySelector('.tools')).display") == "flex"
    chromium.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert chromium.run("getComputedStyle(document.querySelector('.tools')).display") == "none"


@needs_chromium
def test_errors_are_drawn_by_tensor_and_layer(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["red"])
    heat = "[...document.querySelectorAll('main > .heat td[title]')].map(cell => cell.title)"
    assert sorted(chromium.run(heat)) == [
        "layers.3.mixer.A_log in PAR-01[tp2-sp]: 2.0e-05",
        "layers.3.mixer.wq.weight in PAR-01[tp2]: 1.7e-03",
        "layers.4.mixer.wq.weight in PAR-01[tp2]: 3.0e-01",
    ]
    heats = (
        "[...document.querySelectorAll('main > .heat td[title]')].map(cell => +cell.style.getPropertyValue('--heat'))"
    )
    assert sorted(chromium.run(heats))[-1] == 1.0
