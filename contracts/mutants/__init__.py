"""The mutants, a folder a family, under the file names of the checks that they must violate.

Every file in it is read (`contracts.harness.families`); without torch, those that do without it.
"""
