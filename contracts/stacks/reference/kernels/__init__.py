"""Which kernel runs at each site of the model, and the adapters to kernels of other packages, one file a package.

No file here imports its package when it is imported: what is not asked for need not be installed.
"""
