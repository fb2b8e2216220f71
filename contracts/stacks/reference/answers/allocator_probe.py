"""A process that allocates memory on a device as a rank does, and reports its allocator. Argument: the device."""

import json
import os
import sys

import torch

SIZES = (3 << 20, 24 << 20, 5 << 20, 40 << 20)  # bytes: small and large pools, none a multiple of another


def observe_allocator(device: str) -> dict[str, object]:
    """The fields of `spec.devices.AllocatorSeen`. A CPU has no segments."""
    kept = [torch.empty(size, dtype=torch.uint8, device=device) for size in SIZES]
    # memory_snapshot is public; `is_expandable` stands in it from torch 2.1 on
    segments = torch.cuda.memory_snapshot() if kept[0].is_cuda else []  # type: ignore[no-untyped-call]  # torch's
    return {
        "device": torch.cuda.get_device_name() if kept[0].is_cuda else "cpu",
        "setting": os.environ.get("PYTORCH_ALLOC_CONF", ""),
        "segments": len(segments),
        "expandable": sum(bool(each.get("is_expandable")) for each in segments),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(observe_allocator(sys.argv[1])) + "\n")
