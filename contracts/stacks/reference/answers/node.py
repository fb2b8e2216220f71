"""What the reference says of a node: fabric, NUMA, devices, and the map from ranks to them."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from contracts.spec import Refused
from contracts.spec.fabric import Fabric, read_fabric
from contracts.spec.machine import Finding, Need, NodeCapture, RankPlace

_GPU = r"GPU ([0-9]{1,4}): .+ \(UUID: (GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\)"
_GPU_LINE = re.compile(_GPU)
_GPU_IN_LINE = re.compile(rf"^{_GPU}", re.MULTILINE)
_MIG_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+[0-9]+: \(UUID: MIG-[^()\s]+\)")
_MEMORY_LINE = re.compile(r"([0-9]{1,4}), ([0-9]{1,9})")
MIB, GB = 2**20, 10**9  # a driver counts in the first, a data sheet in the second


class NodeAnswers:
    """The answers of `Reference` on this subject."""

    def preflight(self, capture: NodeCapture, need: Need) -> tuple[Finding, ...]:
        fabric = self.fabric_of(capture)
        found = [*(self.sick_cells(fabric, need) if isinstance(fabric, Fabric) else fabric)]
        found += self.listed_devices(capture, need)
        if need.hbm_gb:
            found += self.device_memory(capture, need)
        found += self.numa_balancing(capture)
        found += self.visible_devices(capture, need)
        return tuple(found)

    def fabric_of(self, capture: NodeCapture) -> Fabric | tuple[Finding, ...]:
        """The map of the node, or why it cannot be read."""
        if capture.topology is None:
            return (_absent(capture, "topology", "run `nvidia-smi topo -m` on the node and mend what it says"),)
        try:
            return read_fabric(capture.topology)
        except Refused as refused:
            return tuple(_garbage("topology", each.value, each.problem, each.remedy) for each in refused.refusals)

    def sick_cells(self, fabric: Fabric, need: Need) -> Iterator[Finding]:
        """Every GPU–GPU cell that is not the link that was asked for, and the GPUs that are missing."""
        expected = [f"GPU{number}" for number in range(max(need.gpus, len(fabric.gpus)))]
        missing = [name for name in expected if name not in fabric.gpus]
        if missing:
            yield _sick(
                ", ".join(missing), f"missing: the map has {len(fabric.gpus)} GPUs, the run needs {need.gpus}",
                "look for a GPU that fell off the bus (`dmesg | grep Xid`) and drain the node",
            )  # fmt: skip
        for one, other in combinations(fabric.gpus, 2):
            link = fabric.links[one][other]
            if link != need.link:
                yield _sick(
                    f"{one}–{other} is {link}", f"must be {need.link}",
                    "check the fabric manager and the NVLinks (`nvidia-smi nvlink -s`); nothing measured here counts",
                )  # fmt: skip

    def listed_devices(self, capture: NodeCapture, need: Need) -> Iterator[Finding]:
        """The list of devices: as many whole GPUs as are needed, numbered from 0."""
        if capture.devices is None:
            yield _absent(capture, "devices", "run `nvidia-smi -L` on the node and mend what it says")
            return
        numbers, uuids, last = [], [], ""
        for line in capture.devices.split("\n"):
            if gpu := _GPU_LINE.fullmatch(line.rstrip()):
                numbers.append(int(gpu[1]))
                uuids.append(gpu[2])
                last = f"GPU{gpu[1]}"
            elif (mig := _MIG_LINE.fullmatch(line.rstrip())) and last:
                yield _sick(
                    last, f"is cut into MIG instances ({mig[1]})", "turn MIG off: a rank owns a whole GPU", "devices"
                )
            elif line.strip():
                yield _garbage("devices", line, "is no line of `nvidia-smi -L`", "capture its standard output")
        if numbers != list(range(len(numbers))) or len(set(uuids)) != len(uuids):
            shown = ", ".join(map(str, numbers))
            yield _garbage("devices", shown, "are not distinct devices from 0", "capture `nvidia-smi -L` whole")
        if len(numbers) < need.gpus:
            yield _sick(
                f"{len(numbers)} GPUs", f"are listed, the run needs {need.gpus}",
                "look for a GPU that fell off the bus (`dmesg | grep Xid`) and drain the node", "devices",
            )  # fmt: skip

    def device_memory(self, capture: NodeCapture, need: Need) -> Iterator[Finding]:
        """Every GPU has the memory that the recipe was planned for."""
        if capture.memory is None:
            yield _absent(capture, "memory", "ask `nvidia-smi --query-gpu=index,memory.total` on the node")
            return
        lines = [line.strip() for line in capture.memory.split("\n") if line.strip()]
        seen = set()
        for line in lines:
            match = _MEMORY_LINE.fullmatch(line)
            seen.add(match[1] if match else "")
            if match is None:
                yield _garbage("memory", line, "is not `index, MiB`", "capture it as csv without header and units")
            elif int(match[2]) * MIB < need.hbm_gb * GB:
                yield Finding(
                    promise="PREF-06", field=f"GPU{match[1]}", value=f"{match[2]} MiB",
                    problem=f"the recipe was planned for {need.hbm_gb} GB",
                    remedy="take a node of that class, or a recipe planned for this one",
                )  # fmt: skip
        if len(seen) < need.gpus or len(seen) < len(lines):
            problem = f"are about {len(seen)} GPUs, the run needs {need.gpus}"
            yield _garbage("memory", f"{len(lines)} lines", problem, "capture it whole")

    def numa_balancing(self, capture: NodeCapture) -> Iterator[Finding]:
        """Automatic NUMA balancing moves pages under pinned buffers; 1, 2 and 3 all turn it on."""
        remedy = "sysctl kernel.numa_balancing=0, and keep it in /etc/sysctl.d"
        if capture.numa_balancing is None:
            yield _absent(capture, "numa_balancing", remedy)
        elif not re.fullmatch(r"[0-9]{1,9}[ \t\r\n]*", capture.numa_balancing):
            yield _garbage("numa_balancing", capture.numa_balancing, "is not a number", remedy)
        elif int(capture.numa_balancing) != 0:
            value = capture.numa_balancing.strip()
            yield Finding(
                promise="PREF-02", field="numa_balancing", value=value, problem="must be 0 (off)", remedy=remedy
            )

    def visible_devices(self, capture: NodeCapture, need: Need) -> Iterator[Finding]:
        """A masked or renumbered list of devices makes the communicator's map another one than the host's."""
        shown = capture.environment.get("CUDA_VISIBLE_DEVICES")
        by_uuid = {uuid: number for number, uuid in _GPU_IN_LINE.findall(capture.devices or "")}
        order = [by_uuid.get(each, each) for each in (shown or "").split(",")]
        if shown is not None and order != [str(number) for number in range(need.gpus)]:
            yield Finding(
                promise="PREF-04", field="CUDA_VISIBLE_DEVICES", value=repr(shown),
                problem=f"is not the host's own order of {need.gpus} devices", remedy="unset it, for every rank alike",
            )  # fmt: skip

    def rank_map(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> tuple[Finding, ...]:
        return (*self.rank_order(nodes, ranks, need), *self.nic_affinity(nodes, ranks))

    def rank_order(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...], need: Need) -> Iterator[Finding]:
        """Node by node, each local rank on the device of its number, every rank once."""
        hosts = [node.host for node in nodes]
        if not hosts:
            yield _misplaced("0 nodes", "are no world", "capture every node")
        for host in sorted({host for host in hosts if hosts.count(host) > 1}):
            yield _misplaced(host, "is captured twice", "give each node once")
        expected = [(host, local) for host in hosts for local in range(need.gpus)]
        told = sorted(ranks, key=lambda place: place.rank)
        came = Counter(place.rank for place in told)
        for rank in sorted({*came, *range(len(expected))}):
            if rank not in range(len(expected)):
                problem = f"is beyond the world of {len(expected)}"
            elif came[rank] != 1:
                problem = f"came {came[rank]} times" if came[rank] else "did not come"
            else:
                continue
            remedy = f"start {need.gpus} ranks on each of {len(hosts)} nodes"
            yield _misplaced(f"rank {rank}", problem, remedy)
        for place in told:
            if place.host not in hosts:
                yield _misplaced(f"rank {place.rank}", f"is on {place.host}, which has no map", "capture every node")
                continue
            if place.rank in range(len(expected)) and expected[place.rank] != (place.host, place.local_rank):
                host, local = expected[place.rank]
                yield _misplaced(
                    f"rank {place.rank}",
                    f"is local rank {place.local_rank} of {place.host}, the order of the hosts has it local rank "
                    f"{local} of {host}", "give ranks node by node",
                )  # fmt: skip
            if place.device != place.local_rank:
                yield _misplaced(
                    f"rank {place.rank}", f"is local rank {place.local_rank} on GPU{place.device} of {place.host}",
                    "let each local rank take the device of its number",
                )  # fmt: skip

    def nic_affinity(self, nodes: tuple[NodeCapture, ...], ranks: tuple[RankPlace, ...]) -> Iterator[Finding]:
        """Each rank sends through one of the NICs that its host's map puts nearest to its GPU."""
        fabrics = {}
        for node in nodes:
            fabric = self.fabric_of(node)
            if isinstance(fabric, Fabric):
                fabrics[node.host] = fabric
            else:
                yield from fabric
        for place in sorted(ranks, key=lambda place: place.rank):
            seen = fabrics.get(place.host)
            if seen is None:
                continue  # said already
            gpu = f"GPU{place.device}"
            if gpu not in seen.gpus:
                yield _misplaced(f"rank {place.rank}", f"is on {gpu}, which {place.host} does not have", "count again")
                continue
            near = seen.nearest_nics(gpu)
            if not near:
                yield _misplaced(f"rank {place.rank}", f"has no NIC in the map of {place.host}", "expose the NICs")
            elif place.nic not in near:
                used, best = place.nic or "an unknown NIC", " or ".join(near)
                yield _misplaced(
                    f"rank {place.rank}", f"sends through {used}; nearest to {gpu} of {place.host} is {best}",
                    "pin it there (NCCL_IB_HCA, or the NCCL topology file)",
                )  # fmt: skip


def _sick(cell: str, problem: str, remedy: str, field: str = "topology") -> Finding:
    return Finding(promise="PREF-01", field=field, value=cell, problem=problem, remedy=remedy)


def _misplaced(what: str, problem: str, remedy: str) -> Finding:
    return Finding(promise="PREF-04", field="rank_map", value=what, problem=problem, remedy=remedy)


def _absent(capture: NodeCapture, field: str, remedy: str) -> Finding:
    why = capture.failures.get(field, "absent, failed or did not answer")
    return Finding(promise="PREF-05", field=field, value="nothing", problem=why, remedy=remedy)


def _garbage(field: str, value: str, problem: str, remedy: str) -> Finding:
    return Finding(promise="PREF-05", field=field, value=value[:80], problem=problem, remedy=remedy)
