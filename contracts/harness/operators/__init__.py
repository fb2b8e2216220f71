"""Semantic mutation: bugs that nobody wrote by hand, drawn by seed over the source of the reference.

`changes` finds where an operator applies, `reach` which cases execute a line, `trials` puts drawn changes before them.
"""
