"""Products with Krylov matrices of subdiagonal operators with a corner: LDR-SD, and Toeplitz-like by shifts.

A has s_1 .. s_{m-1} below the diagonal and c in the top right corner. With P_i = s_1 .. s_i,

    matrix        K(A, v) w = sum_j w_j A^j v
    similarity    A = D Z_f D^{-1},  D = diag(P),  f = c P_{m-1}
    convolution   (K(A, v) w)_i = P_i (t_i + f t_{m+i}),  t = (v / P) * w

so one FFT convolution does what the paper's algorithm does with 8 log2(n) of them. Dividing by P costs
digits:

    guard                   whether a layer may be divided by its operators' scales, and in which dtype
    convolution             the product by torch's FFTs, with hand-written gradients; for training
    compiled_convolution    the same for a whole layer in one compiled function, on a CPU
    circulant_pair          a square layer by FFTs of length n, for inference
    compiled_pair           the same in one compiled function, on a CPU
    cuda_pair               the same in one kernel or two, on a GPU; for training too

Operators that the guard refuses are served by the stencil of `tridiagonal`, of which they are a special
case, and by the dense matrix (`stein_scan`): both are sums of products without a division, right for every
operator.
"""
