"""The adapter of a fork of torchtitan, in a repository of its own: the shipped one and what differs."""

from collections.abc import Mapping

from contracts.stacks.torchtitan.stack import Torchtitan


class OurTitan(Torchtitan):
    """Our fork decays every parameter, norms and biases too, and has a mesh of its own."""

    name, package = "our-titan", "torchtitan"  # what reports call it, and what is imported
    conventions: Mapping[str, str] = {**Torchtitan.conventions, "undecayed": "nothing"}

    def topology(self, degrees, world, layout):
        from our_mesh import topology  # the fork's own reading of its meshes, in place of the shipped one

        return topology(degrees, world, layout)
