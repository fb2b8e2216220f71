"""The environment of a machine with a card and no network."""

import struct
import sys
from pathlib import Path

import pytest

from tests_unit._parties.running import Done, ran

ROOT = Path(__file__).parents[1]
NAMES = b"\0.shstrtab\0.nv_fatbin\0.text\0"


def _entry(architecture: int, code: bytes) -> bytes:
    """An entry of a fat binary: its header of 64 bytes, whose eighth word is the architecture, and its code."""
    return struct.pack("<HHII16xI", 2, 0x101, 64, len(code), architecture).ljust(64, b"\0") + code


def _fat(*entries: bytes) -> bytes:
    held = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(held)) + held


def _library(fat: bytes) -> bytes:
    """An ELF file of 64 bits whose sections are no section, the names, the fat binaries and the text."""
    text = _fat(_entry(80, b"t" * 32))  # looks like one and stands elsewhere
    parts, at, headers = [NAMES, fat, text], 64, [bytes(64)]
    for name, part in zip((1, 11, 22), parts, strict=True):
        headers.append(struct.pack("<IIQQQQ", name, 1, 0, 0, at, len(part)).ljust(64, b"\0"))
        at += len(part)
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x28, at)
    struct.pack_into("<HHH", header, 0x3A, 64, len(headers), 1)
    return bytes(header) + b"".join(parts) + b"".join(headers)


def _cut(library: Path, keep: int, code: int) -> Done:
    return ran([sys.executable, ROOT / ".ci/one_architecture.py", keep, library], code=code)


def test_a_shrunk_library_keeps_the_code_of_one_architecture(tmp_path: Path) -> None:
    library = tmp_path / "libcode.so"

    def whole(ampere: bytes, hopper: bytes, later: bytes) -> bytes:
        return _library(_fat(_entry(80, ampere), _entry(90, hopper)) + bytes(24) + _fat(_entry(100, later)))

    library.write_bytes(whole(b"a" * 40, b"h" * 48, b"l" * 56))
    done = _cut(library, 90, code=0)
    assert library.read_bytes() == whole(bytes(40), b"h" * 48, bytes(56))
    done = _cut(library, 70, code=1)
    assert "no code for sm_70" in done.stderr


@pytest.mark.parametrize(("script", "words"), [("gpu-env", "[--te] PYTHON WHEELS DIR"), ("gpu-wheels", "DIR")])
def test_a_script_without_its_arguments_says_which(script: str, words: str) -> None:
    assert f"usage: .ci/{script} {words}" in ran([str(ROOT / ".ci" / script)], code=1).stderr


def test_an_interpreter_without_cuda_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    words = [str(ROOT / ".ci/gpu-env"), sys.executable, str(tmp_path), str(tmp_path / "made")]
    assert f"{torch.__version__} is not built for CUDA" in ran(words, code=1).stderr
    assert not (tmp_path / "made").exists()
