"""Kernels: in C for a CPU (`cpu`), compiled at run time by NVRTC for a GPU (`cuda`).

They know tensors and memory alone. `functional` has their formulas, their plain twins and their gradients.
"""
