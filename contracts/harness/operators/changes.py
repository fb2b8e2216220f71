"""The places at which the source of the reference can be changed, by operator: a wrong group, a lost clone, a
transposed shard.

A change is a span of one file and the text that takes its place. Its id names operator, file, line and column, and
makes the same change again as long as the file is the same. What is raised, refused, asserted, annotated or formatted
into words is not changed: a change there is no bug of a training stack. So is what only a CUDA device executes.
"""

import ast
import functools
import itertools
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import contracts
from contracts.contract import LAW
from contracts.harness.families import ids, read_checks, read_mutants
from contracts.harness.places import guarded
from contracts.spec import refuse

ROOT = Path(contracts.__file__).parent / "stacks" / "reference"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of one file. `lines` belong to the statement it is in, `span` its bytes in the file.

    `scope` is the function, by its dotted name in the file; empty for what runs at import.
    """

    operator: str
    file: str
    scope: str
    line: int
    column: int
    lines: tuple[int, int]
    span: tuple[int, int]
    was: str
    now: str

    @property
    def id(self) -> str:
        return f"{self.operator}@{self.file}:{self.line}:{self.column}"

    def made(self, mark: Path | None = None) -> str:
        """The text of the file with the change made; what runs it leaves an empty file at `mark`, if that is given."""
        text, now = (ROOT / self.file).read_bytes(), self.now
        if mark is not None and not self.is_target:
            touched = f"open({str(mark)!r}, 'a').close()"
            now = touched if now == "pass" else f"({touched}, ({now}))[1]"
        return (text[: self.span[0]] + now.encode() + text[self.span[1] :]).decode()

    @property
    def is_target(self) -> bool:
        """Whether it stands where values are assigned to, so that nothing more can stand there."""
        return self.operator == "transposed-shard" and ", " in self.now and "(" not in self.now


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """A change that no answer can show, with the reason. It is found by what stands there, not by its line."""

    operator: str
    file: str
    scope: str
    was: str
    reason: str

    def covers(self, change: Change) -> bool:
        return all(getattr(self, name) == getattr(change, name) for name in ("operator", "file", "scope", "was"))


@dataclass(frozen=True, kw_only=True)
class _Node:
    """A node with what stands around it: outermost first."""

    node: ast.AST
    above: tuple[ast.AST, ...]
    text: Callable[[ast.AST], str]

    @property
    def alone(self) -> bool:
        """Whether it is a statement by itself, so that its value is not used."""
        return bool(self.above) and isinstance(self.above[-1], ast.Expr)

    @property
    def initialising(self) -> bool:
        return any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in self.above)


_Found = Iterator[tuple[ast.AST, str]]
_COLLECTIVES = {
    "all_reduce", "all_reduce_in_place", "all_gather", "reduce_scatter", "all_to_all", "copy_to_ranks",
    "sum_over_ranks", "split_rows", "gather_rows", "all_rows", "own_rows", "scale_gradient", "broadcast", "barrier",
    "enter", "leave", "total", "_totals", "redistribute", "full_tensor",
}  # fmt: skip
_GROUPS = {
    "tp": "cp", "cp": "tp", "ep": "tp", "etp": "tp", "pp": "tp", "dp": "cp", "rows": "tp", "replica": "shard",
    "shard": "replica", "expert_replica": "replica", "expert_shard": "shard", "sharers": "apart", "apart": "sharers",
}  # fmt: skip
_REDUCTIONS = {"sum": "mean", "mean": "sum", "amax": "amin", "amin": "amax", "max": "min", "min": "max", "any": "all",
               "all": "any", "SUM": "MAX", "MAX": "SUM", "AVG": "SUM", "cumsum": "cumprod"}  # fmt: skip
_BY_DIM = {
    "sum", "mean", "softmax", "log_softmax", "logsumexp", "cumsum", "cat", "stack", "flatten", "unsqueeze", "squeeze",
    "chunk", "split", "tensor_split", "gather", "scatter", "scatter_add", "index_add", "index_copy", "index_select",
    "argsort", "sort", "amax", "amin", "flip", "narrow", "select", "roll", "norm", "unflatten", "size", "all_gather",
    "reduce_scatter",
}  # fmt: skip
_UPDATES = {"step", "update", "append", "extend", "add", "zero_grad", "load_state_dict", "clear", "wait", "pop",
            "flush", "fsync", "setdefault", "discard", "register_buffer", "insert"}  # fmt: skip
_COPIES = {"clone", "detach", "contiguous"}
_DTYPES = {"float32": "bfloat16", "float64": "float32", "bfloat16": "float32", "int64": "int32", "long": "int32"}
_RANKLIKE = ("rank", "peer", "stage", "shard", "member", "place", "node", "chunk")


def _name(node: ast.AST) -> str:
    """The last name of what is called or read."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _method(node: ast.AST) -> ast.expr | None:
    """The receiver of a method call."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return node.func.value if called else None  # type: ignore[attr-defined]


def _integer(node: ast.AST | None) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _drop_collective(at: _Node) -> _Found:
    if isinstance(at.node, ast.Call) and _name(at.node) in _COLLECTIVES:
        if at.alone:
            yield at.node, "None"
        elif at.node.args:
            yield at.node, f"({at.text(at.node.args[0])})"


def _double_collective(at: _Node) -> _Found:
    if isinstance(at.node, ast.Call) and _name(at.node) in _COLLECTIVES - {"barrier"} and at.node.args:
        whole = at.text(at.node)
        if at.alone:
            yield at.node, f"({whole}, {whole})"
        else:
            yield at.node.args[0], whole


def _other_group(at: _Node) -> _Found:
    if isinstance(at.node, ast.Constant) and at.node.value in _GROUPS and isinstance(at.above[-1], ast.Call):
        yield at.node, f'"{_GROUPS[at.node.value]}"'
    if isinstance(at.node, ast.Attribute) and at.node.attr in _GROUPS and _name(at.node.value) == "degrees":
        yield at.node, f"{at.text(at.node.value)}.{_GROUPS[at.node.attr]}"
    if isinstance(at.node, ast.Call):
        for each in at.node.keywords:
            if each.arg == "group":
                yield each.value, "None"


def _other_reduction(at: _Node) -> _Found:
    if isinstance(at.node, ast.Call) and _name(at.node) in _REDUCTIONS:
        head = f"{at.text(at.node.func.value)}." if isinstance(at.node.func, ast.Attribute) else ""
        yield at.node.func, f"{head}{_REDUCTIONS[_name(at.node)]}"
    if isinstance(at.node, ast.Attribute) and _name(at.node.value) == "ReduceOp" and at.node.attr in _REDUCTIONS:
        yield at.node, f"{at.text(at.node.value)}.{_REDUCTIONS[at.node.attr]}"
    if isinstance(at.node, ast.Constant) and at.node.value == "sum" and isinstance(at.above[-1], ast.Call):
        yield at.node, '"avg"'


def _other_dim(at: _Node) -> _Found:
    if isinstance(at.node, ast.Call) and _name(at.node) in _BY_DIM:
        named = [each.value for each in at.node.keywords if each.arg == "dim"]
        first = [each for each in at.node.args[:2] if _integer(each) is not None][:1]
        for each in named or first:
            if (dim := _integer(each)) is not None and -3 <= dim <= 3:
                yield each, str({0: 1, -1: -2}.get(dim, dim - 1 if dim > 0 else dim + 1))
    if isinstance(at.node, ast.Call) and _name(at.node) in ("transpose", "movedim") and len(at.node.args) == 2:
        other = _integer(at.node.args[1])
        if other is not None:
            yield at.node.args[1], str(other + 1 if other < -1 else other - 1)
    if isinstance(at.node, ast.Subscript) and _name(at.node.value) == "shape" and _integer(at.node.slice) is not None:
        dim = _integer(at.node.slice) or 0
        yield at.node.slice, str({0: 1, -1: -2}.get(dim, dim - 1 if dim > 0 else dim + 1))


def _off_by_one(at: _Node) -> _Found:
    swapped: Mapping[type, str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
    if isinstance(at.node, ast.Compare) and len(at.node.ops) == 1 and type(at.node.ops[0]) in swapped:
        left, right = at.text(at.node.left), at.text(at.node.comparators[0])
        if isinstance(at.node.left, ast.Set):  # whether a set is a part of another one, which is larger in any case
            return
        yield at.node, f"{left} {swapped[type(at.node.ops[0])]} {right}"
    if isinstance(at.node, ast.BinOp) and isinstance(at.node.op, (ast.Add, ast.Sub)):
        for each in (at.node.left, at.node.right):
            if (value := _integer(each)) is not None and abs(value) < 1000:
                yield each, str(value - 1 if value > 0 else value + 1)
    if isinstance(at.node, ast.Call) and _name(at.node) == "range" and at.node.args:
        last = at.node.args[0] if len(at.node.args) == 1 else at.node.args[1]
        yield last, f"({at.text(last)}) - 1"
    if isinstance(at.node, ast.Slice):
        for bound in filter(None, (at.node.lower, at.node.upper)):
            yield bound, f"({at.text(bound)}) + 1" if bound is at.node.lower else f"({at.text(bound)}) - 1"


def _stale_buffer(at: _Node) -> _Found:
    if isinstance(at.node, ast.Assign) and not at.initialising:
        kept = (ast.Attribute, ast.Subscript)
        if all(isinstance(each, kept) for each in at.node.targets):
            yield at.node, "pass"
    if at.alone and isinstance(at.node, ast.Call) and _name(at.node) == "copy_":
        yield at.node, "None"


def _skipped_update(at: _Node) -> _Found:
    if isinstance(at.node, ast.AugAssign):
        yield at.node, "pass"
    if at.alone and _method(at.node) is not None:
        name = _name(at.node)
        if name in _UPDATES or (name.endswith("_") and not name.endswith("__") and name != "copy_"):
            yield at.node, "None"


def _transposed_shard(at: _Node) -> _Found:
    if isinstance(at.node, ast.Attribute) and at.node.attr in ("T", "mT"):
        yield at.node, at.text(at.node.value)
    receiver = _method(at.node)
    if receiver is not None and _name(at.node) in ("transpose", "permute", "movedim"):
        yield at.node, at.text(receiver)
    if isinstance(at.node, ast.Assign) and isinstance(at.node.value, ast.Call):
        target = at.node.targets[0]
        cut = _name(at.node.value) in ("chunk", "split", "tensor_split", "unbind")
        if cut and isinstance(target, ast.Tuple) and len(target.elts) > 1:
            first, second, *rest = (at.text(each) for each in target.elts)
            yield target, ", ".join([second, first, *rest])


def _lost_clone(at: _Node) -> _Found:
    receiver = _method(at.node)
    if receiver is not None and _name(at.node) in _COPIES:
        yield at.node, at.text(receiver)
    if isinstance(at.node, ast.Call) and _name(at.node) in ("deepcopy", "copy", "dict") and len(at.node.args) == 1:
        yield at.node, f"({at.text(at.node.args[0])})"


def _wrong_dtype(at: _Node) -> _Found:
    if isinstance(at.node, ast.Attribute) and _name(at.node.value) == "torch" and at.node.attr in _DTYPES:
        yield at.node, f"torch.{_DTYPES[at.node.attr]}"
    receiver = _method(at.node)
    if receiver is not None and isinstance(at.node, ast.Call):
        plain = _name(at.node) in ("float", "double") and not at.node.args
        if plain or (_name(at.node) == "to" and len(at.node.args) == 1 and "device" not in at.text(at.node.args[0])):
            yield at.node, at.text(receiver)


def _swapped_ranks(at: _Node) -> _Found:
    if isinstance(at.node, ast.Call) and _name(at.node) == "get_rank":
        whole = at.text(at.node)
        yield at.node, f"({whole.replace('get_rank', 'get_world_size')} - 1 - {whole})"
    if isinstance(at.node, ast.BinOp):
        left, right = at.text(at.node.left), at.text(at.node.right)
        if isinstance(at.node.op, (ast.FloorDiv, ast.Mod)) and not isinstance(at.node.left, ast.Constant):
            yield at.node, f"({left} {'%' if isinstance(at.node.op, ast.FloorDiv) else '//'} {right})"
        if isinstance(at.node.op, (ast.Add, ast.Sub)) and any(each in left for each in _RANKLIKE):
            yield at.node, f"({left} {'-' if isinstance(at.node.op, ast.Add) else '+'} {right})"
    if isinstance(at.node, ast.Subscript) and _name(at.node.slice) in ("rank", "place", "peer", "stage"):
        yield at.node.slice, f"-1 - {at.text(at.node.slice)}"


def _wrong_divisor(at: _Node) -> _Found:
    if not isinstance(at.node, ast.BinOp):
        return
    if isinstance(at.node.op, ast.Div) and not any(each in at.text(at.node) for each in _PATHS):
        yield at.node, f"({at.text(at.node.left)})"
    if isinstance(at.node.op, ast.Pow) and isinstance(at.node.right, ast.UnaryOp):
        yield at.node.right, at.text(at.node.right.operand)


def _lost_factor(at: _Node) -> _Found:
    if isinstance(at.node, ast.BinOp) and isinstance(at.node.op, ast.Mult):
        yield at.node, f"({at.text(at.node.left)})"


OPERATORS: Mapping[str, Callable[[_Node], _Found]] = {
    "drop-collective": _drop_collective,
    "double-collective": _double_collective,
    "other-group": _other_group,
    "other-reduction": _other_reduction,
    "other-dim": _other_dim,
    "off-by-one": _off_by_one,
    "stale-buffer": _stale_buffer,
    "skipped-update": _skipped_update,
    "transposed-shard": _transposed_shard,
    "lost-clone": _lost_clone,
    "wrong-dtype": _wrong_dtype,
    "swapped-ranks": _swapped_ranks,
    "wrong-divisor": _wrong_divisor,
    "lost-factor": _lost_factor,
}
_SILENT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.arg, ast.Import, ast.ImportFrom)
_WORDS = {"refuse", "unless", "add_argument", "print"}
_PATHS = ("folder", "path", "root", "FOLDER", "Path")  # `a / b` joins them


@functools.cache
def of_file(file: str) -> tuple[Change, ...]:
    """Every change of one file, in the order of its text."""
    source = (ROOT / file).read_bytes()
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]

    def span(node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, (ast.expr, ast.stmt))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def text(node: ast.AST) -> str:
        start, end = span(node)
        return source[start:end].decode()

    found: dict[str, Change] = {}
    for node, above in _walked(ast.parse(source), ()):
        for operator, applies in OPERATORS.items():
            for target, now in applies(_Node(node=node, above=above, text=text)):
                statement = next(each for each in reversed((*above, node)) if isinstance(each, ast.stmt))
                scopes = [each.name for each in above if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
                runs = any(isinstance(each, ast.FunctionDef) for each in above)
                if any(_is_main(each) for each in above):  # what a process of its own runs, and an import does not
                    scopes, runs = ["__main__"], True
                assert isinstance(target, (ast.expr, ast.stmt))
                change = Change(
                    operator=operator, file=file, scope=".".join(scopes) if runs else "", line=target.lineno,
                    column=target.col_offset, lines=_lines(statement), span=span(target), was=text(target), now=now,
                )  # fmt: skip
                if change.was != now and _parses(change):
                    found.setdefault(change.id, change)
    return tuple(found.values())


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and _name(node.test.left) == "__name__"


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """Of a compound statement only the head."""
    body = getattr(statement, "body", None)
    end = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, end)


def _parses(change: Change) -> bool:
    """Whether what takes the place can stand there; a tuple of targets is an expression as well."""
    try:
        ast.parse(f"({change.now})" if change.now != "pass" else "pass")
    except SyntaxError:
        return False
    return True


def _walked(node: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    if isinstance(node, _SILENT) or (isinstance(node, ast.Call) and (_name(node) in _WORDS or _refuses(node))):
        return
    for name in ("iter", "test", "elt"):
        if isinstance(part := getattr(node, name, None), ast.expr) and "cuda" in ast.unparse(part):
            return
    yield node, above
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _walked(each, (*above, node))


def _refuses(call: ast.Call) -> bool:
    """Whether it adds a refusal to others: field, value, problem, remedy."""
    return _name(call) == "add" and len(call.args) == 4


def files() -> tuple[str, ...]:
    """The files of the reference that can be changed."""
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")))


def drawn(seed: int, only: tuple[str, ...] = ()) -> Iterator[Change]:
    """Every change once, the files in turn and each file's in an order that the seed gives.

    `only` has beginnings of ids, or of the part after the operator: `model/blocks/`. A contract stands for the
    functions that it guards.
    """
    named_ids = [each for each in only if each in ids()]
    draw, begins = random.Random(seed), tuple(each for each in only if each not in named_ids) or ("",) * (not only)
    within, piles = _guarded(named_ids), []
    for file in files():
        changes = [each for each in of_file(file) if f"{file}:{each.scope}" in within
                   or each.id.startswith(begins) or file.startswith(begins)]  # fmt: skip
        piles.append(draw.sample(changes, len(changes)))
    draw.shuffle(piles)
    for row in itertools.zip_longest(*piles):
        yield from (each for each in row if each is not None)


def _guarded(of: Sequence[str]) -> set[str]:
    """The functions that some contracts guard, as `model/blocks/moe.py:Router.weigh`."""
    if not of:
        return set()
    read_checks(*of)
    read_mutants(of)
    found = (place for id in of for place in guarded(LAW.contracts[id]).items())
    return {f"{where.partition(':')[0].removeprefix('contracts/stacks/reference/')}:{name}" for name, where in found}


def named(id: str) -> Change:
    """The change of an id.

    Raises:
        Refused: where the source has no such change.
    """
    file = id.partition("@")[2].partition(":")[0]
    found = [each for each in of_file(file) if each.id == id] if file in files() else []
    if not found:
        raise refuse("change", id, "is none of this source", "take an id that `selftest --operators` printed here")
    return found[0]


@functools.cache
def equivalents() -> tuple[Equivalent, ...]:
    """The changes that are argued to be no bug."""
    rows = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return tuple(Equivalent(**row) for row in rows)
