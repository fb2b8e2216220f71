"""The law with every contract and every mutant read; without torch, those that do without it."""

from contracts.harness.families import read_mutants
from tests_unit._parties.law import LAW

read_mutants()
assert LAW.mutants
