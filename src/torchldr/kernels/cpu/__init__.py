"""Loops that Numba compiles: lanes and FFT (`fft`), convolution, stencil, ports, elimination (`gko`).

`loops` says whether they serve in this process.
"""
