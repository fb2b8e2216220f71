"""Hosts by box and region. "The H200" names none: two boxes of one class have different software histories."""

import re

from contracts.spec import refuse

_HOST = re.compile(r"(?P<box>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)@(?P<region>[a-z]+(?:-[a-z]+)+\d*-[a-z])")


def identify(name: str) -> str:
    """The machine that a host name means, as `box@region` (`bench-1@us-west1-c`).

    Raises:
        Refused: for a name without a box, without a region, or with neither.
    """
    if not _HOST.fullmatch(name):
        raise refuse("host", name, "names no machine", "write box@region, as in bench-1@us-west1-c")
    return name
