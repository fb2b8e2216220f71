"""Kernels of others behind the reference's own names, one file a package.

No file here imports its package when it is imported: what is not asked for need not be installed.
"""
