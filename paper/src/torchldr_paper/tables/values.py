"""The paper's numbers, typed from its tables: test accuracies in percent unless it says otherwise.

Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank", 2018. Columns of
four are MNIST-bg-rot, MNIST-noise, CIFAR-10 and NORB; rows are (structure, rank).
"""

from __future__ import annotations

Row = tuple[str, int | None]
Four = tuple[float, float, float, float]

RECTANGLES: dict[Row, float] = {  # Table 13
    ("dense", None): 91.94,
    ("ldr_td", 1): 98.53,
    ("ldr_sd", 1): 98.39,
    ("toeplitz_like", 4): 99.29,
    ("hankel_like", 4): 97.77,
    ("vandermonde_like", 4): 94.11,
    ("low_rank", 4): 92.80,
    ("fastfood", None): 92.20,
    ("circulant", None): 95.58,
}

SHL: dict[Row, Four] = {  # Tables 1 and 6
    ("dense", None): (44.08, 65.15, 46.03, 59.83),
    ("ldr_td", 1): (45.81, 78.45, 45.33, 62.75),
    ("toeplitz_like", 4): (42.67, 75.75, 41.78, 59.38),
    ("hankel_like", 4): (42.23, 73.65, 41.40, 60.09),
    ("vandermonde_like", 4): (37.14, 59.80, 33.93, 48.98),
    ("low_rank", 4): (35.67, 52.25, 32.28, 43.66),
    ("ldr_sd", 1): (44.74, 78.80, 43.29, 63.78),
    ("toeplitz_like", 2): (42.07, 74.25, 40.68, 57.27),
    ("hankel_like", 2): (41.01, 71.20, 40.46, 57.95),
    ("vandermonde_like", 2): (33.56, 50.85, 28.99, 43.21),
    ("low_rank", 2): (32.64, 38.85, 24.93, 37.03),
    ("fastfood", None): (38.13, 63.55, 39.64, 59.02),
    ("circulant", None): (34.46, 65.35, 34.28, 46.45),
}

# Section 5.1: what LDR-SD of rank 16 gains over the unstructured layer, in the figure's averages.
SHL_RANK_16_GAIN: Four = (5.87, 15.05, 0.74, 6.86)

CNN: dict[Row, Four] = {  # Table 7
    ("dense", None): (67.94, 90.30, 68.09, 75.16),
    ("ldr_td", 1): (68.79, 92.55, 66.63, 74.23),
    ("toeplitz_like", 4): (63.23, 91.60, 67.10, 72.25),
    ("hankel_like", 4): (64.21, 90.80, 68.10, 71.23),
    ("vandermonde_like", 4): (61.76, 90.40, 63.63, 72.11),
    ("low_rank", 4): (60.35, 87.30, 60.90, 71.47),
    ("ldr_sd", 1): (67.40, 92.20, 65.48, 73.63),
    ("toeplitz_like", 2): (63.63, 91.45, 67.15, 71.64),
    ("hankel_like", 2): (64.08, 90.65, 67.49, 71.21),
    ("vandermonde_like", 2): (51.38, 86.50, 58.00, 68.08),
    ("low_rank", 2): (41.91, 71.15, 48.48, 65.34),
}

# The footnote of Section 5 for CIFAR-10 and NORB, Table 9 for the MNIST variants.
CNN_RANK_16: Four = (67.00, 93.20, 68.48, 75.45)

BUDGET_RANKS = (1, 2, 4, 8, 12, 16)
RHU_UNITS = {"shl": (14, 16, 20, 28, 36, 44), "cnn": (15, 17, 21, 29, 37, 45)}

# Tables 8 and 9, by model and dataset: LDR-SD, pruning and RHU at the budgets of `BUDGET_RANKS`.
BUDGETS: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    ("shl", "mnist_bg_rot"): {
        "ldr_sd": (44.74, 44.46, 47.72, 48.76, 48.90, 49.51),
        "pruning": (40.41, 41.18, 42.45, 43.52, 43.19, 43.58),
        "rhu": (37.18, 37.60, 37.98, 39.77, 40.56, 40.70),
    },
    ("shl", "mnist_noise_6"): {
        "ldr_sd": (78.80, 77.95, 78.32, 78.63, 78.33, 78.08),
        "pruning": (67.75, 69.35, 68.25, 67.25, 67.30, 66.95),
        "rhu": (62.85, 62.55, 63.40, 64.45, 63.85, 66.10),
    },
    ("cnn", "mnist_bg_rot"): {
        "ldr_sd": (67.40, 67.53, 67.96, 67.21, 68.54, 67.00),
        "pruning": (64.25, 64.05, 65.50, 64.12, 65.65, 65.59),
        "rhu": (64.03, 64.67, 66.37, 64.70, 65.99, 66.47),
    },
    ("cnn", "mnist_noise_6"): {
        "ldr_sd": (92.20, 92.75, 91.30, 91.95, 92.10, 93.20),
        "pruning": (90.80, 91.65, 90.60, 91.05, 90.00, 90.55),
        "rhu": (90.95, 91.00, 91.25, 90.65, 90.85, 90.40),
    },
}

FRACTIONS = (0.25, 0.5, 0.75, 1.0)

# Tables 10 and 11, by model and dataset: all structures at rank one, at the fractions above.
SAMPLES: dict[tuple[str, str], dict[str, Four]] = {
    ("shl", "mnist_bg_rot"): {
        "dense": (34.46, 38.80, 43.35, 44.08),
        "ldr_td": (34.01, 39.59, 44.35, 45.81),
        "ldr_sd": (35.64, 39.78, 42.72, 44.74),
        "toeplitz_like": (33.71, 36.44, 39.32, 41.12),
        "low_rank": (21.44, 23.46, 23.48, 25.06),
    },
    ("shl", "mnist_noise_6"): {
        "dense": (59.30, 61.85, 65.35, 65.15),
        "ldr_td": (65.45, 74.60, 77.45, 78.45),
        "ldr_sd": (67.90, 71.15, 76.95, 78.80),
        "toeplitz_like": (56.15, 67.75, 72.30, 73.95),
        "low_rank": (24.25, 26.20, 26.85, 26.40),
    },
    ("cnn", "mnist_bg_rot"): {
        "dense": (54.12, 62.53, 67.52, 67.94),
        "ldr_td": (53.66, 62.15, 67.25, 68.79),
        "ldr_sd": (50.72, 61.92, 65.93, 67.40),
        "toeplitz_like": (49.10, 57.20, 61.53, 63.00),
        "low_rank": (26.98, 27.97, 28.97, 29.63),
    },
    ("cnn", "mnist_noise_6"): {
        "dense": (81.85, 88.25, 89.75, 90.30),
        "ldr_td": (86.45, 91.35, 93.00, 92.55),
        "ldr_sd": (86.95, 90.90, 91.55, 92.20),
        "toeplitz_like": (81.65, 88.15, 90.90, 90.95),
        "low_rank": (33.15, 38.40, 42.55, 44.55),
    },
}

# Table 12: training accuracy less test accuracy in points, all at rank one.
GENERALIZATION: dict[str, Four] = {
    "dense": (55.78, 21.63, 34.32, 40.03),
    "ldr_td": (13.52, 11.36, 7.10, 9.51),
    "ldr_sd": (12.87, 12.65, 6.29, 8.68),
    "toeplitz_like": (7.98, 15.80, 5.59, 7.87),
    "low_rank": (8.40, 0.31, 0.09, 2.59),
}

# Appendix, on MNIST-bg-rot: test errors that others reported, which the paper quotes. Its text has five
# names for the six numbers of Chen et al.; the third belongs to their plain network of equal size.
LITERATURE: tuple[tuple[str, str, int, float], ...] = (
    ("Chen et al. 2015", "random edge removal", 12406, 73.17),
    ("Chen et al. 2015", "low-rank decomposition", 12406, 80.63),
    ("Chen et al. 2015", "network of equal size", 12406, 79.03),
    ("Chen et al. 2015", "dark knowledge", 12406, 77.40),
    ("Chen et al. 2015", "HashedNets", 12406, 59.20),
    ("Chen et al. 2015", "HashedNets with dark knowledge", 12406, 58.25),
    ("Sindhwani et al. 2015", "Fastfood", 10202, 68.4),
    ("Sindhwani et al. 2015", "circulant", 8634, 62.11),
    ("Sindhwani et al. 2015", "Toeplitz-like, r = 2", 10986, 55.21),
)

# Table 2: test perplexities on WikiText-2 by class, at the budgets (parameters of the four matrices) and
# ranks below; and of the unstructured layer.
LSTM_BUDGETS = (2048, 3072, 5120, 9216, 17408, 25600)
LSTM_RANKS = {
    "ldr_sd": (1, 2, 4, 8, 16, 24),
    "toeplitz_like": (2, 3, 5, 9, 17, 25),
    "low_rank": (2, 3, 5, 9, 17, 25),
}
LSTM: dict[str, tuple[float, ...]] = {
    "ldr_sd": (166.97, 154.51, 141.91, 143.60, 132.43, 129.46),
    "toeplitz_like": (186.91, 177.60, 178.07, 186.52, 162.58, 155.73),
    "low_rank": (205.72, 179.46, 172.38, 144.41, 135.65, 133.37),
}
LSTM_DENSE = 117.74

# Table 3: test accuracies on CIFAR-10 where convolutions are replaced, and parameters as the paper counts
# them, by (network, structure, rank of the hidden layer).
CONVOLUTION: dict[tuple[str, str, int | None], tuple[float, int]] = {
    ("conv3", "dense", None): (54.59, 1573089),
    ("conv3_pool", "dense", None): (55.14, 393441),
    ("conv4_pool", "dense", None): (60.05, 524588),
    ("channels", "toeplitz_like", 16): (57.29, 393216),
    ("channels", "ldr_sd", 16): (59.36, 417792),
    ("wide", "toeplitz_like", 16): (55.29, 393216),
    ("wide", "ldr_sd", 16): (59.00, 405504),
}
