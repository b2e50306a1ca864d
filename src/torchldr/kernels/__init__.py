"""Kernels: in C for a CPU (`cpu`), compiled at run time by NVRTC for a GPU (`cuda`).

They know only tensors and memory. `functional` has their formulas, the same in plain torch, and gradients.
"""
