"""Lengths of FFTs."""

from hypothesis import given
from hypothesis import strategies as st

from torchldr.functional.fft import fast_length, is_smooth


@given(st.integers(1, 1 << 40))
def test_a_fast_length_is_the_least_of_its_kind(n):
    """An even multiple, by a power of two, of an odd product below 64, with none between it and n."""
    lengths = {odd << k for odd in range(1, 64, 2) if is_smooth(odd) for k in range(1, 42)}
    assert fast_length(n) == min(length for length in lengths if length >= n)


def test_small_lengths():
    assert [fast_length(n) for n in (0, 1, 2, 3, 5, 9, 11, 127, 128, 129)] == [
        2,
        2,
        2,
        4,
        6,
        10,
        12,
        128,
        128,
        140,
    ]
