"""The law, a folder a family: `SUBJECT.py` has checks, and `SUBJECT_bugs.py` the mutants that they must catch.

Every file in it is read (`contracts.harness.families`): there is no list. No file of checks loads torch when it is
imported: `instruments` does, when a check first uses one of them. Without torch, the mutants that do without it are
read.
"""
