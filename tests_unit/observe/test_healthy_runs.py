"""Healthy runs of one rank that train in less usual ways: nothing is violated, and the script is not in the way."""

import copy
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode  # noqa: E402

import rankproof  # noqa: E402
from contracts import observe  # noqa: E402
from contracts.observe.diff import compare  # noqa: E402
from contracts.observe.merged import Merged  # noqa: E402
from contracts.observe.party import Observed  # noqa: E402
from contracts.observe.recorder import Recorder  # noqa: E402
from contracts.observe.trace import Writer, read  # noqa: E402
from contracts.spec import NotOffered  # noqa: E402
from tests_unit._parties.law import LAW  # noqa: E402
from tests_unit.observe.test_none_of_nothing import Experts  # noqa: E402

JUDGED = {id: each.check for id, each in LAW.contracts.items() if id.startswith("OBS-") and "one-run" in each.cases}
assert len(JUDGED) > 10


@pytest.fixture
def violated(tmp_path: Path) -> Callable[[Callable[[], None]], dict[str, str]]:
    """Observes a run in this process, and gives what is violated, by contract."""

    def observed(run: Callable[[], None]) -> dict[str, str]:
        with rankproof.observing(tmp_path / "trace"):
            torch.manual_seed(0)
            run()
        assert _get_current_dispatch_mode() is None
        merged = Merged(read(tmp_path / "trace"))
        equal = compare(merged, merged)
        assert (equal.differences, equal.incomparable) == ((), "")
        found = {}
        for id, check in JUDGED.items():
            try:
                check(Observed(read(tmp_path / "trace")))
            except NotOffered:
                pass
            except AssertionError as wrong:
                found[id] = str(wrong)
        return found

    return observed


def _net(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 1))


def _rows() -> torch.Tensor:
    return torch.randn(4, 4)


def _steps(net: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[torch.Tensor] = ()) -> Iterator[None]:
    """A step before each turn of a loop: over these batches, or else three that are drawn."""
    for each in batches or (_rows() for _ in range(3)):
        optimizer.zero_grad()
        net(each).square().sum().backward()
        optimizer.step()
        yield


def _train(net: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[torch.Tensor] = ()) -> None:
    for _ in _steps(net, optimizer, batches):
        pass


def scaled(fused: bool) -> None:
    """The first step overflows, and a scaler skips it."""
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        optimizer.zero_grad()
        observe.step(microbatches=2)
        for _ in range(2):
            scaler.scale(net(_rows()).square().sum()).backward()
        if not step:
            net[0].weight.grad[0, 0] = torch.inf
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def closure() -> None:
    """The forward and the backward pass are in a closure, as Lightning has them."""
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found = net(_rows()).square().sum()
        found.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-2)
        return found

    for _ in range(3):
        optimizer.step(loss)


def alternating() -> None:
    """Two optimizers in turn: gradients of the one model pass on through the other."""
    maker, critic = nn.Linear(4, 4), _net()
    makes, judges = (torch.optim.Adam(each.parameters(), lr=1e-2) for each in (maker, critic))
    for _ in range(3):
        judges.zero_grad()
        (critic(_rows()).square() - critic(maker(_rows()).detach())).sum().backward()
        judges.step()
        makes.zero_grad()
        critic(maker(_rows())).square().sum().backward()
        makes.step()


def narrow() -> None:
    """In bfloat16 a weight of one is not moved by less than its rounding."""
    net = _net().bfloat16()
    _train(net, torch.optim.AdamW(net.parameters(), lr=1e-4), [_rows().bfloat16() for _ in range(4)])


def scheduled() -> None:
    """A schedule that continues with one that sets its rates itself."""
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    warm = lr_scheduler.LinearLR(optimizer, total_iters=2)
    cosine = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)
    schedule = lr_scheduler.SequentialLR(optimizer, [warm, cosine], [2])
    for _ in _steps(net, optimizer, [_rows() for _ in range(5)]):
        schedule.step()


def elsewhere() -> None:
    """Tensors are made on another device by default."""
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    rows = [_rows() for _ in range(4)]
    torch.set_default_device("meta")
    try:
        _train(net, optimizer, rows)
    finally:
        torch.set_default_device(None)


def sparse() -> None:
    net = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1))
    optimizers = [torch.optim.SparseAdam(net[0].parameters()), torch.optim.Adam(net[1].parameters())]
    for _ in range(4):
        for each in optimizers:
            each.zero_grad(set_to_none=False)
        net(torch.arange(9)).square().sum().backward()
        for each in optimizers:
            each.step()


def clipped_twice() -> None:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        net(_rows()).square().sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        nn.utils.clip_grad_norm_(net[0].parameters(), 0.1)
        optimizer.step()


def routed(resets: bool) -> None:
    """Two microbatches a step. With `resets`, the first step is left out as a scaler does, and its counts are gone."""
    net = Experts()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for step in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            net(torch.randn(9, 8)).square().sum().backward()
        moved = 0.01 * (net.tokens_per_expert_E.mean() - net.tokens_per_expert_E).sign()
        net.expert_bias_E += moved - moved.mean()
        net.tokens_per_expert_E.zero_()
        if step or not resets:
            optimizer.step()


def flat() -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings(action="ignore"):  # one rank has no shards
            net = FullyShardedDataParallel(_net(), device_id=torch.device("cpu"))
        _train(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    finally:
        dist.destroy_process_group()


def spread_loss() -> None:
    """The loss is one of DTensors. Torch learns the shapes of each of their operations from tensors without numbers."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, distribute_tensor, parallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
        scores = parallel.ColwiseParallel(output_layouts=Replicate(), use_local_output=False)
        parallel.parallelize_module(net, mesh, {"1": scores})
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for text in torch.randint(9, (3, 4, 7)):
            optimizer.zero_grad()
            labels = distribute_tensor(text.flatten(), mesh)
            nn.functional.cross_entropy(net(text).flatten(0, 1), labels).backward()
            optimizer.step()
    finally:
        dist.destroy_process_group()


def adversarial() -> None:
    """A generator and a critic: the generator's loss leaves gradients on the critic, which its own turn empties."""
    maker, critic = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), _net()
    makes, judges = (torch.optim.Adam(each.parameters(), lr=1e-2, betas=(0.5, 0.9)) for each in (maker, critic))
    truth = nn.functional.binary_cross_entropy_with_logits
    for _ in range(3):
        judges.zero_grad()
        made = maker(_rows())
        truth(critic(_rows()), torch.ones(4, 1)).backward()
        truth(critic(made.detach()), torch.zeros(4, 1)).backward()
        judges.step()
        makes.zero_grad()
        truth(critic(made), torch.ones(4, 1)).backward()
        makes.step()


def averaged() -> None:
    """An average of the weights is evaluated after each step."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    net = _net()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in _steps(net, torch.optim.AdamW(net.parameters(), lr=1e-2)):
        average.update_parameters(net)
        average.eval()
        with torch.no_grad():
            average(_rows())


def frozen() -> None:
    """A frozen backbone in evaluation mode, whose norm keeps its statistics, under a head that learns."""
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 1))
    net[0].requires_grad_(False).eval()
    _train(net, torch.optim.SGD(net[1].parameters(), lr=1e-2, weight_decay=0.1))


class _LowRank(nn.Module):
    """LoRA (arXiv 2106.09685): B begins with zeros, so that the first gradient of A is zero."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, inner.in_features))
        self.b = nn.Parameter(torch.zeros(inner.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x) + x @ self.a.T @ self.b.T
        return found


def low_rank() -> None:
    net = nn.Sequential(_LowRank(nn.Linear(4, 8)), nn.Linear(8, 1).requires_grad_(False))
    _train(net, torch.optim.SGD([each for each in net.parameters() if each.requires_grad], lr=1e-2))


class _ScheduleFree(torch.optim.Optimizer):
    """SGD without a schedule (arXiv 2405.15682): weights are y in training and x in evaluation."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr, "beta": 0.9, "k": 0})  # type: ignore[arg-type]

    @torch.no_grad()
    def swap(self, weight: float) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if "z" in self.state[each]:
                    each.lerp_(self.state[each]["z"], weight)

    def eval(self) -> None:
        self.swap(1 - 1 / self.param_groups[0]["beta"])

    def train(self) -> None:
        self.swap(1 - self.param_groups[0]["beta"])

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            for each in group["params"]:
                z = self.state[each].setdefault("z", each.detach().clone())
                part = group["beta"] * (1 - 1 / group["k"]) - 1
                each.lerp_(z, 1 / group["k"]).add_(each.grad, alpha=group["lr"] * part)
                z.sub_(each.grad, alpha=group["lr"])


def schedule_free() -> None:
    net = _net()
    optimizer = _ScheduleFree(net.parameters(), lr=1e-2)
    for _ in _steps(net, optimizer):
        net.eval()
        optimizer.eval()
        with torch.no_grad():
            net(_rows())
        net.train()
        optimizer.train()


def several() -> None:
    """One optimizer for matrices and one for the rest, with a schedule each, all of it stepped in every step."""
    net = _net()
    split = [[each for each in net.parameters() if (each.dim() > 1) is wide] for wide in (True, False)]
    optimizers = [torch.optim.SGD(split[0], lr=1e-2, momentum=0.9), torch.optim.AdamW(split[1], lr=1e-3)]
    schedules = [lr_scheduler.CosineAnnealingLR(each, 9) for each in optimizers]
    for _ in range(4):
        net(_rows()).square().sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()
        net.zero_grad()


def evaluated() -> None:
    """Dropout and a norm with statistics, evaluated between steps."""
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    for _ in _steps(net, torch.optim.AdamW(net.parameters(), lr=1e-2)):
        net.eval()
        with torch.inference_mode():
            net(_rows())
        net.train()


def compiled() -> None:
    net = _net()
    _train(torch.compile(net, backend="eager"), torch.optim.AdamW(net.parameters(), lr=1e-2))


def accumulated(reduction: str) -> None:
    """Microbatches with other numbers of labels, each of which weighs the same."""
    net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        observe.step(microbatches=3)
        text = torch.randint(9, (3, 4, 7))
        labels = text.masked_fill(torch.rand(text.shape) < 0.4, -100)
        count = (labels != -100).sum()
        for each, its in zip(text, labels, strict=True):
            loss = nn.functional.cross_entropy(net(each).flatten(0, 1), its.flatten(), reduction=reduction)
            (loss.sum() / count if reduction != "mean" else loss * (its != -100).sum() / count).backward()
        optimizer.step()


def divided() -> None:
    """Gradients are divided by the number of microbatches when all are added up, and clipped."""
    net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        for text in torch.randint(9, (4, 2, 8)):
            nn.functional.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
        for each in net.parameters():
            each.grad /= 4
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()


def keeps_a_graph() -> None:
    """Evaluations keep a graph that nobody goes back through; one is in front of the first step. A copy on the device
    meta counts the operations of a pass, and has a backward pass."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(3):
        net.eval()
        for _ in range(2):
            net(_rows())
        copy.deepcopy(net).to("meta")(_rows().to("meta")).sum().backward()
        net.train()
        net(_rows()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def loaded(kind: str) -> None:
    """Epochs of torch's loader: short ones, one batch of which is overfitted, a dataset that holds its rows ten times,
    and rows that are drawn with replacement."""
    from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, TensorDataset

    rows = TensorDataset(torch.randn(12, 4))
    given = {
        "epochs": DataLoader(rows, 4, shuffle=True), "overfitted": DataLoader(rows, 4),
        "concatenated": DataLoader(ConcatDataset([TensorDataset(rows.tensors[0][:4])] * 10), 4),
        "alike": DataLoader(TensorDataset(torch.ones(40, 4)), 4, shuffle=True),
        "replaced": DataLoader(rows, 4, sampler=RandomSampler(rows, replacement=True, num_samples=40)),
    }[kind]  # fmt: skip
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    batches = [next(iter(given))] * 4 if kind == "overfitted" else (each for _ in range(9) for each in given)
    _train(net, optimizer, (each for _, (each,) in zip(range(5), batches, strict=False)))


RUNS = {
    "scaled": lambda: scaled(False), "scaled-fused": lambda: scaled(True), "closure": closure,
    "alternating": alternating, "narrow": narrow, "scheduled": scheduled, "elsewhere": elsewhere, "sparse": sparse,
    "clipped-twice": clipped_twice, "flat": flat, "spread-loss": spread_loss, "routed": lambda: routed(False),
    "routed-resets": lambda: routed(True), "adversarial": adversarial, "averaged": averaged, "frozen": frozen,
    "low-rank": low_rank, "schedule-free": schedule_free, "several": several, "evaluated": evaluated,
    "compiled": compiled, "accumulated-mean": lambda: accumulated("mean"),
    "divided": divided, "keeps-a-graph": keeps_a_graph,
    "accumulated-sum": lambda: accumulated("sum"), "accumulated-none": lambda: accumulated("none"),
    **{f"loaded-{each}": functools.partial(loaded, each)
       for each in ("epochs", "overfitted", "concatenated", "alike", "replaced")},
}  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_a_healthy_run_is_not_violated(violated: Callable[..., dict[str, str]], run: str) -> None:
    assert violated(RUNS[run]) == {}


def test_an_evaluation_that_builds_a_graph_belongs_to_no_step(
    violated: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    assert not violated(keeps_a_graph)
    merged = Merged(read(tmp_path / "trace"))
    assert merged.steps == 3
    assert [sum(merged.rows(step).values()) for step in (1, 2, 3)] == [4, 4, 4]
    assert [line["evaluating"] for step in (1, 2, 3) for _, line in merged.lines("modes", step)] == [[], [], []]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_that_does_not_move_although_it_should_is_named(
    violated: Callable[..., dict[str, str]], dtype: torch.dtype
) -> None:
    def run() -> None:
        net = _net().to(dtype)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-1)
        for _ in range(3):
            optimizer.zero_grad()
            net(_rows().to(dtype)).square().sum().backward()
            before = net[1].weight.detach().clone()
            optimizer.step()
            net[1].weight.data.copy_(before)

    assert violated(run) == {"OBS-03": "1.weight is trainable and never moved in 3 steps"}


def test_a_clip_norm_counts_a_replicated_shard_once(tmp_path: Path) -> None:
    """Two replicas of two shards, as under HSDP; in each the shards' norms are 2 and 3."""
    for rank in range(4):
        writer, norm = Writer(tmp_path, rank, 4, ["train.py"], {"run": "r/0"}), (2.0, 3.0)[rank % 2]
        writer.add("gradient", step=1, name="w", shape=[8], dtype="float32", part=f"1.{rank % 2}", partial=False,
                   bits="00", squares=norm**2, sketch=None)  # fmt: skip
        writer.add("clip", step=1, max=9.0, partial=True, first=rank < 2, norm=norm, names=["w"])
        writer.add("step", step=1, backward=1, microbatches=1)
        writer.close(steps=1, unseen={})
    JUDGED["OBS-04"](Observed(read(tmp_path)))


def _consumed(folder: Path, microbatches: list[dict[str, torch.Tensor]]) -> Counter[int]:
    """The rows that a model is seen to consume."""

    class Sum(nn.Linear):
        def forward(self, **given: torch.Tensor) -> torch.Tensor:
            return self.weight * sum(each.sum() for each in given.values())

    net = Sum(1, 1)
    with rankproof.observing(folder, steps=1):
        for each in microbatches:
            net(**each)
    return Merged(read(folder)).rows(1)


@pytest.mark.parametrize("name", ["attention_mask", "mask"])  # in front of the tokens by its name, and behind them
def test_a_row_is_the_same_row_alone_and_in_a_batch_with_a_shared_mask(tmp_path: Path, name: str) -> None:
    tokens, mask = torch.arange(20).view(4, 5), torch.ones(1, 1, 5, 5, dtype=torch.bool).triu(1)
    four = _consumed(tmp_path / "four", [{"input_ids": tokens, name: mask}])
    assert four == _consumed(tmp_path / "apart", [{"input_ids": each[None], name: mask} for each in tokens])
    assert len(four) == 4


def test_one_channel_images_are_not_taken_for_masks(tmp_path: Path) -> None:
    assert len(_consumed(tmp_path / "trace", [{"images": torch.randn(4, 1, 5, 5)}])) == 4


UNDECIDED = "and nothing seen before it differs: rounding may decide ties"


@pytest.mark.parametrize("moved", [1, 20])
def test_few_different_expert_choices_are_not_comparable_and_many_are_a_difference_of_the_router(
    tmp_path: Path, moved: int
) -> None:
    runs = []
    for name, counts in (("one", [50, 50]), ("other", [50 + moved, 50 - moved])):
        writer = Writer(tmp_path / name, 0, 1, ["train.py"], {"run": "r/0"})
        writer.add("input", step=1, microbatch=1, rows=[1], random="", tensors={})
        writer.add("routed", step=1, microbatch=1, name="moe.router", tokens=50, counts=counts, twice=0)
        writer.add("step", step=1, backward=1, microbatches=1)
        writer.close(steps=1, unseen={})
        runs.append(Merged(read(tmp_path / name)))
    found = compare(*runs)
    words = f"{moved} of 100 assignments go to other experts"
    if moved == 1:
        assert found.incomparable == f"step 1: {words} at moe.router, {UNDECIDED}"
    else:
        assert [str(each) for each in found.differences] == [f"step 1, routing: moe.router: {words}"]


def test_a_recorder_that_fails_says_so_and_leaves_the_script_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(Writer(tmp_path, 0, 1, ["train.py"], {"run": "r/0"}), 3)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder.writer, "sketch", full)
    recorder.start()
    net, moved = _net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(2):
        net(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        moved.append(net[0].weight.detach().clone())
    recorder.close()
    assert not torch.equal(*moved)
    assert capsys.readouterr().err.count("No space left on device; the script continues unobserved") == 1
    with pytest.raises(AssertionError, match=r"rank 0 ended with the recorder failed: OSError: .* No space left"):
        JUDGED["OBS-16"](Observed(read(tmp_path)))
