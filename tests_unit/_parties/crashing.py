"""A stack whose module cannot be imported: its extension was built against another torch."""

raise OSError("libtorch_cuda.so: undefined symbol")
