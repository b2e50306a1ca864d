"""The CPU's kernels in C, and the functions of tensors that call them; `library` loads them."""
