# %% [markdown]
# # A layer that learns a hidden transform
#
# After this tutorial you can put a structured layer where an `nn.Linear` would stand, train it as usual,
# and read off what it has learned. Install the library and matplotlib: `pip install torchldr matplotlib`.
#
# Somebody has a linear transform of 64 numbers and shows you inputs and outputs, with a little noise. You
# want the transform. It is a filter that drags a signal along, and whose strength changes on the way: near
# to a convolution, but none.

# %%
import torch
from matplotlib.figure import Figure
from torch import nn

import torchldr
from torchldr import StructuredLinear

torch.manual_seed(0)
n = 64
place = torch.linspace(0, 1, n)
gain = torch.exp(1.2 * torch.sin(6 * place))  # how strong it is, along the signal
echoes = torch.exp(-place * 8) * torch.cos(place * 40)  # what it does to a single pulse
i = torch.arange(n)
hidden = gain[:, None] / gain * torch.where(i[:, None] >= i, echoes[(i[:, None] - i) % n], 0.0)


def examples(count: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, n)
    return x, x @ hidden.T + noise * torch.randn(count, n)


x, y = examples(48, noise=0.05)
test_x, test_y = examples(1000, noise=0.0)
print(f"{len(x)} examples for {hidden.numel():,} entries")

# %% [markdown]
# There are fewer examples than unknowns in a row of the matrix, so a dense layer can fit them perfectly and
# still be wrong. Train it and four structured layers in the same way. Nothing here is special to this
# library: a `StructuredLinear` takes the arguments of `nn.Linear`, then a structure and its rank.


# %%
def train(layer: nn.Module, steps: int = 500) -> float:
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (layer(x) - y).square().mean().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float((layer(test_x) - test_y).norm() / test_y.norm())


layers = {
    "dense": nn.Linear(n, n, bias=False),
    "low_rank, rank 2": StructuredLinear(n, n, bias=False, structure="low_rank", rank=2),
    "circulant": StructuredLinear(n, n, bias=False, structure="circulant"),
    "toeplitz_like, rank 2": StructuredLinear(n, n, bias=False, structure="toeplitz_like", rank=2),
    "ldr_sd, rank 1": StructuredLinear(n, n, bias=False, structure="ldr_sd", rank=1),
}
print(f"{'layer':22} {'parameters':>10} {'error on new inputs':>20}")
for name, layer in layers.items():
    count = sum(parameter.numel() for parameter in layer.parameters())
    print(f"{name:22} {count:10,} {train(layer):20.0%}")

# %% [markdown]
# The dense layer has sixteen times the parameters and the largest error. Low rank sees two numbers of its
# input. A circulant or Toeplitz-like layer knows moves along the signal, all of them of the same strength.
# LDR-SD learned how strong each step is.
#
# The learned matrix is an object: `layer.matrix()` shares the layer's parameters, `to_dense()` shows it.

# %%
figure = Figure(figsize=(9, 2.6), layout="constrained")
shown = {"hidden": hidden} | {name.split(",")[0]: layer.weight.detach() for name, layer in layers.items()}
for place_in_row, (name, matrix) in enumerate(shown.items()):
    axes = figure.add_subplot(1, len(shown), place_in_row + 1)
    axes.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-1.5, vmax=1.5, interpolation="nearest")
    axes.set(title=name, xticks=[], yticks=[])
figure.savefig("matrices.png", dpi=110)

# %% [markdown]
# What did it learn? The operators A and C of the layer have one weight for each step along the signal.
# Their products up to a place are the gain there, which nobody has told it.

# %%
learned = layers["ldr_sd, rank 1"].matrix()
assert isinstance(learned, torchldr.LDRSubdiagonal)
found = learned.subdiagonal_A.detach().cumprod(0)
true = gain[1:] / gain[0]
agreement = torch.corrcoef(torch.stack([found.abs().log(), true.log()]))[0, 1]
print(f"the learned gain and the true one, correlation of their logarithms: {agreement:.1f}")

figure = Figure(figsize=(6, 2.4), layout="constrained")
axes = figure.add_subplot()
axes.plot(true, label="gain of the hidden transform", color="#888888", linewidth=4)
axes.plot(found / found.mean() * true.mean(), label="products of the learned operator", color="#D55E00")
axes.set(xlabel="place", yticks=[])
axes.legend(frameon=False)
figure.savefig("gain.png", dpi=110)

# %% [markdown]
# ## Next
#
# [Displacement in ten minutes](../displacement.md) says why such a layer can do this with four vectors.
# [Swap a layer](../layer.md) has its options, [train](../training.md) what to mind in larger models.
