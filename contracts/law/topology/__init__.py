"""TOPO: sizes of the mesh, its process groups, and the ranks of each gradient reduction."""
