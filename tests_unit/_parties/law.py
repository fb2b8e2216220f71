"""The law with every contract read."""

from contracts.contract import LAW
from contracts.harness.families import read_checks

read_checks()
assert LAW.contracts
