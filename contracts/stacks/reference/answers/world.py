"""What the reference answers inside a running world."""

import os
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from contracts.instruments import allreduce, numerics
from contracts.instruments.ranks import SHARE, backend_of, device, held_groups, here, torch_distributed
from contracts.spec import Array, FabricPass, LeftReceipts, LiveMesh, Recipe, SeenDevices, Strain, Upset
from contracts.spec.receipt import Provenance
from contracts.spec.topology import Degrees, Layout, topology
from contracts.stacks.reference.parallel.mesh import ProcessMesh
from contracts.stacks.reference.training import fault_injection
from contracts.stacks.reference.training.run_facts import RankReporter


class WorldAnswers:
    """The answers of `Reference` on this subject."""

    mesh: type[ProcessMesh] = ProcessMesh
    ranks: type[RankReporter] = RankReporter
    fabric_floor_gbs: float | None = None  # no number fits every fabric: see docs/preflight.md

    def live_mesh(self, degrees: Degrees, world: int, layout: Layout, contribution: int) -> LiveMesh:
        before = held_groups()
        mesh = self.mesh(topology(degrees, world, layout))
        axes = tuple(mesh.topology.groups)
        groups = {axis: mesh.members(axis) for axis in axes}
        sums = {axis: mesh.total(axis, contribution) for axis in axes}
        held = held_groups()
        mesh.close()
        return LiveMesh(
            groups=groups, sums=sums, calls=tuple(mesh.calls), before=before, held=held, after=held_groups()
        )

    def reduced(self, degrees: Degrees, world: int, layout: Layout, tensor: Array, strided: bool) -> Array:
        from contracts.stacks.reference.parallel.collectives import all_reduce

        mesh = self.mesh(topology(degrees, world, layout))
        found = all_reduce(numerics.tensor(tensor, strided=strided), mesh.group("tp"))
        torch_distributed()[1].barrier()  # ranks of other groups may still be connecting them
        mesh.close()
        return numerics.array(found)

    def fabric_pass(self, message: int, rounds: int, timeout_s: float, upset: Upset) -> FabricPass:
        _, dist = torch_distributed()
        group = dist.new_group(timeout=timedelta(seconds=timeout_s))  # of its own: one that timed out is of no use
        time.sleep(upset.late_s)
        try:
            measured = allreduce.reduce_over(group, message=message, rounds=rounds, offset=upset.offset)
        except RuntimeError:  # torch's word for a rank that did not come, or died on the way
            return FabricPass(
                ranks=dist.get_world_size(group), backend=backend_of(device().type), message=message, seconds=(),
                algbw=0.0, busbw=0.0, right=False, floor=self.fabric_floor_gbs,
            )  # fmt: skip
        finally:
            dist.destroy_process_group(group)
        return FabricPass(**asdict(measured), algbw=measured.algbw, busbw=measured.busbw, floor=self.fabric_floor_gbs)

    def fabric_reasons(self, measured: FabricPass) -> tuple[str, ...]:
        if not measured.seconds:
            return ("pass = unfinished: a rank did not come in time; look at its log",)
        if measured.floor is None and measured.backend == "nccl":
            return ("floor = None: none is set for this fabric; set it from a healthy node of the same class",)
        seen = allreduce.Pass(
            ranks=measured.ranks, backend=measured.backend, message=measured.message, seconds=measured.seconds,
            right=measured.right,
        )  # fmt: skip
        return allreduce.reasons(seen, measured.floor or 0.0)

    def run_receipts(
        self, recipe: Recipe, degrees: Degrees, steps: int, folder: str, taken: Provenance, strain: Strain
    ) -> LeftReceipts:
        return fault_injection.run_with_fault(self.ranks, recipe, degrees, steps, Path(folder), taken, strain)

    def devices(self) -> SeenDevices:
        torch, _ = torch_distributed()
        there = torch.cuda.device_count()
        return SeenDevices(
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            names=tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(there)),
            uses=here().local_rank % there if backend_of("cuda") in SHARE and there else here().local_rank,
        )
