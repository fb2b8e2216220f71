"""Zero, in a library, the CUDA code of every architecture but one, so that it packs well:  one_architecture.py 90 FILE

The section `.nv_fatbin`, and `__nv_relfatbin` of code that is linked on the device, is a row of fat binaries, each a
header (magic, version, size of the header, size of the rest) and entries: kind, version, size of the entry's header,
size of its code; 28 bytes into it the architecture.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

MAGIC = 0xBA55ED50


def main(keep: int, library: Path) -> None:
    kept = zeroed = 0
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for start, end in _sections(data, (b".nv_fatbin", b"__nv_relfatbin")):
            for at, size, architecture in _entries(data, start, end):
                if architecture == keep:
                    kept += size
                else:
                    data[at : at + size] = bytes(size)
                    zeroed += size
    if not kept:
        sys.exit(f"{library}: no code for sm_{keep}")
    print(f"{library.name}: {kept >> 20} MiB of sm_{keep} kept, {zeroed >> 20} MiB of others zeroed")  # noqa: T201


def _sections(data: mmap.mmap, wanted: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """From where to where the sections of these names reach, in an ELF file of 64 bits."""
    (headers,) = struct.unpack_from("<Q", data, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", data, 0x3A)
    found = [struct.unpack_from("<IIQQQQ", data, headers + at * size) for at in range(count)]
    names = found[of_names][4]
    for name, _, _, _, offset, length in found:
        if data[names + name : data.find(b"\0", names + name)] in wanted:
            yield offset, offset + length


def _entries(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Place, size and architecture of each piece of code."""
    while at < end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            at += 8  # they are aligned, with zeros between them
            continue
        entry, at = at + header, at + header + size
        while entry < at:
            _, _, own, code = struct.unpack_from("<HHII", data, entry)
            (architecture,) = struct.unpack_from("<I", data, entry + 28)
            yield entry + own, code, architecture
            entry += own + code


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
