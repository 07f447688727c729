"""Studies that are interrupted."""

from __future__ import annotations

from collections.abc import Callable

from flbench.studies.base import Study


def check_that_it_goes_on(make: Callable[[], Study]) -> None:
    """Two rounds, saved, loaded and two more are as four: to the bit, times apart."""
    straight, first, second = make(), make(), make()
    for _ in range(4):
        straight.step()
    for _ in range(2):
        first.step()
    second.load(first.state())
    for _ in range(2):
        second.step()
    expected, found = straight.evaluate(), second.evaluate()
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"}
