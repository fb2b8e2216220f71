"""The checks, a folder a family. Every file in it is read (`contracts.harness.families`): there is no list.

No file here loads torch when it is imported: `instruments` does, when a check first uses one of them.
"""
