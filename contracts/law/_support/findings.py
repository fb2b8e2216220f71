"""How checks read findings: what a stack must stop at, and what it must accept."""

from contracts.spec.machine import Finding


def finding_on(findings: tuple[Finding, ...], field: str, *words: str) -> Finding:
    """The finding on a field that names every word; which of its parts says it is the stack's choice.

    `one or other` is either field: where two collide, both are to blame.

    Raises:
        AssertionError: when nothing was found, nothing on the field, or nothing with the words.
    """
    wanted = f"expected a finding on {field}" + (f" that names {', '.join(words)}" if words else "")
    assert findings, f"nothing was found, {wanted}"
    on_field = [finding for finding in findings if finding.field in field.split(" or ")]
    named = ", ".join(finding.field for finding in findings)
    assert on_field, f"found on {named} only, {wanted}"
    for finding in on_field:
        if all(word.lower() in str(finding).lower() for word in words):
            return finding
    raise AssertionError(f"{on_field[0]}: {wanted}")


def assert_no_findings(findings: tuple[Finding, ...]) -> None:
    """Require that nothing was found.

    Raises:
        AssertionError: with what was found.
    """
    assert not findings, f"found where all is well: {findings[0]}"
