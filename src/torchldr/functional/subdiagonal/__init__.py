"""Products with Krylov matrices of subdiagonal operators with a corner: LDR-SD, and Toeplitz-like by shifts.

A has s_1 .. s_{m-1} below the diagonal and c in the top right corner. With P_i = s_1 .. s_i,

    matrix        K(A, v) w = sum_j w_j A^j v
    similarity    A = D Z_f D^{-1},  D = diag(P),  f = c P_{m-1}
    convolution   (K(A, v) w)_i = P_i (t_i + f t_{m+i}),  t = (v / P) * w

so one FFT convolution does what the paper's algorithm does with 8 log2(n) of them. Dividing by P costs
digits:

    guard           whether a layer may be divided by its operators' scales, and in which dtype
    product         the operator that layers multiply by: convolutions by C, else the dense matrix
    convolution     products with constant matrices of any shape, by C
    generators      a square matrix as a pair of circulant ones, with FFTs of half the length
    pair            products with constant square matrices by such a pair: by C, and on a GPU
    trained_pair    the same for training on a GPU
    frozen          which of these a frozen layer takes

Operators that the guard refuses are served by the dense matrix (`stein`), a sum of products without a
division, right for every operator.
"""
