"""PREF: the node before a launch: fabric, devices, memory, NUMA, rank map."""
