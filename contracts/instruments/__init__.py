"""Instruments: what is observed of a machine, an environment, a process. No judgement is made here."""
