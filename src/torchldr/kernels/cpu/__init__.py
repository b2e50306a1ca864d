"""Loops that Numba compiles: lanes and FFT (`fft`), convolution, stencil, elimination (`gko`).

`loops` says whether they serve in this process.
"""
