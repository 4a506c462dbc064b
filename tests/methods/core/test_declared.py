"""What is read from the source of the methods is what they declare."""

import dataclasses

from attendrop.methods.core import declared
from attendrop.methods.core.registry import get_method

# Options whose declaration uses what its module imports: checked when the method is made.
UNREAD = {("ad-drop", "scope"), ("ad-drop", "rule"), ("scheduler", "shape")}


def test_options_are_those_that_the_methods_declare() -> None:
    for name in declared._declared():
        found, real = (dataclasses.fields(each) for each in (declared._stand_in(name), get_method(name)))
        assert [field.name for field in found] == [field.name for field in real]
        for one, other in zip(found, real, strict=True):
            if (name, one.name) not in UNREAD:
                assert (one.default, one.metadata["range"].text) == (other.default, other.metadata["range"].text)
