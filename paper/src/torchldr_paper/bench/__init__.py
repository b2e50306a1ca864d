"""Where each structured class beats a dense one on this machine: `torchldr bench`.

    grid            the cases that are timed: class, n, rank, batch, inference or training step
    measure         one case: both sides, on a CPU or by CUDA events, dense extrapolated where it is too large
    paper_values    the paper's table of accelerations
    plot            the picture of a result

A ratio is dense time / our time, both minima in one run: above 1 we are faster.
"""
