"""CUDA kernels of the language models."""
