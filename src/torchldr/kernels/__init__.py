"""Loops compiled at run time: by Numba for a CPU (`cpu`), by NVRTC for a GPU (`cuda`).

They know arrays and memory alone. `functional` has their formulas, their plain twins and their gradients.
"""
