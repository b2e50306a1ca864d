# %% [markdown]
# # From the paper's table to your own data
#
# After this tutorial you can look up a table of the paper, run its protocol on a file of your own, and put
# your numbers side by side. Install the library and the experiments: `pip install torchldr torchldr-paper`.
#
# Every finished run is a line of a *ledger*. Ours ships with the package, so the paper's tables can be
# shown without training anything. The same on the command line: `torchldr paper rectangles --show`.

# %%
import numpy as np

from torchldr_paper import Ledger, Library, Protocol, Run, get_table, run_rows, sweep, table_rows

ledger = Ledger("results", curves=False)  # what is published, and what will be run here
print(f"{'Rectangles':18} {'rank':>4} {'parameters':>10} {'ours':>6} {'paper':>6}")
for row in table_rows(get_table("rectangles"), ledger):
    rank = row["rank"] or "-"
    print(f"{row['structure']:18} {rank:>4} {row['parameters']:10,} {row['test']:6.2f} {row['paper']:6.2f}")

# %% [markdown]
# Is the picture the same on your data? Data is one .npz file: `train_x` and `test_x` with rows, grey images
# or images of several channels, `train_y` and `test_y` with labels from 0. Here is a task of our own
# making: 12 x 12 pixels, three kinds of marks, anywhere, in noise.

# %%
marks = np.array(
    [
        [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]],  # a cross
        [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]],  # a frame
        [[0, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]],  # a disc
    ]
)
rng = np.random.default_rng(0)


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = 0.35 * rng.standard_normal((count, 12, 12)), rng.integers(3, size=count)
    for image, label, (top, left) in zip(x, y, rng.integers(8, size=(count, 2)), strict=True):
        image[top : top + 4, left : left + 4] += marks[label]
    return x.astype(np.float32), y


train_x, train_y = images(1500)
test_x, test_y = images(1000)
np.savez("marks.npz", train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)

# %% [markdown]
# A `Run` says what is trained: data, network, structure, rank. Its protocol is the paper's unless you say
# otherwise: all learning rates and trials are trained side by side, and the validation set chooses. This
# one is short.

# %%
protocol = Protocol(epochs=8, lrs=(0.01,), trials=1)
runs = [
    Run("marks.npz", structure="dense", protocol=protocol),
    Run("marks.npz", structure="low_rank", rank=4, protocol=protocol),
    Run("marks.npz", structure="toeplitz_like", rank=4, protocol=protocol),
    Run("marks.npz", structure="ldr_sd", rank=3, protocol=protocol),
]
sweep(runs, ledger, Library("cpu"))

print(f"{'marks':18} {'rank':>4} {'parameters':>10} {'test':>6}")
for row in run_rows(runs, ledger):
    rank = row["rank"] or "-"
    print(f"{row['structure']:18} {rank:>4} {row['parameters']:10,} {row['test']:6.1f}")

# %% [markdown]
# Marks may be anywhere, and Toeplitz-like and LDR-SD layers know moves: both are ahead of the dense layer
# with a thirteenth of its parameters. Low rank is not enough. No place is special in these images, so learned
# operators add nothing to fixed ones, as on Rectangles.
#
# Kept in the folder `results`, these runs are not trained again: `sweep` takes what the ledger has, goes on
# where it was interrupted, and several processes may work on one ledger. For your paper, take the full
# protocol (leave out `protocol`) and several seeds.
#
# The same on the command line, with a report that has your runs beside ours:
#
# ```
# torchldr train --data marks.npz --structure dense low_rank toeplitz_like ldr_sd --rank 1 4 --quick
# torchldr report
# ```
#
# ## Next
#
# [The experiments](../experiments.md) has every table of the paper; [beyond one machine](../scaling.md)
# sends a sweep to a cluster.
