"""The benchmark of few bits: sizes by hand, and a table that fits a terminal."""

import pytest

from benchmarks.__main__ import main
from benchmarks.coding import measure


def test_sizes_are_those_on_the_wire() -> None:
    """Of 660,371 entries a tenth, in 8 bits: 4 bits per place and one per step of 8, scales and a header."""
    found = {(each.bits, each.share): each for each in measure(quick=True).codings}
    eight, plain = found["8", 0.1], found["32", 0.1]
    assert eight.bits_per_parameter == pytest.approx(0.8 + 0.4 + 0.125 + 0.1 / 32, abs=0.001)
    assert plain.bits_per_parameter == pytest.approx(3.2 + 1, abs=0.001)
    assert eight.arrives == pytest.approx(plain.arrives, abs=0.002)
    assert all(each.packing > 0 and each.unpacking > 0 for each in found.values())


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", "--quick"]) == 0
    assert "of 4–32" in capsys.readouterr().out
