"""Files that import from each other, as packages with fallbacks do, are scanned to the end."""

from __future__ import annotations

from hotlap import scanning
from hotlap.analysis.parse.files import Source
from hotlap.scanning import FindingFilter

FIRST = """\
import second

if second.ready:
    thing = second.thing
else:
    thing = second.other
"""
SECOND = """\
import first

thing = first.thing
other = first.thing
first.thing.made.here()
"""


def test_names_that_two_files_set_to_each_other_are_unknown():
    sources = [Source("first.py", "first", False, FIRST), Source("second.py", "second", False, SECOND)]
    result = scanning.scan(sources, FindingFilter())
    assert (result.findings, result.unread) == ((), ())
