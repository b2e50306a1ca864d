"""The choice between both products: a class compares by its own numbers, not by those that it inherits."""

import pytest

import torchldr
from torchldr.core.choice import Use

LARGE = {"cpu": Use(8192, 8192, 1, 64), "cuda": Use(32768, 32768, 1, 64, "cuda")}


class Copied(torchldr.LowRank):
    """Another product, of which nothing is known."""

    def _matmul(self, x):
        return super()._matmul(x)


class Measured(Copied):
    def _matmul(self, x):
        return super()._matmul(x)

    cpu_training = 1.0, 0.0, 5e5
    gpu_training = 1.0, 0.0


class Inherits(torchldr.LowRank):
    """The same product under another name."""


@pytest.mark.parametrize("device", LARGE)
def test_a_class_compares_by_its_own_numbers(device):
    found = {cls: cls.fast_pays(LARGE[device]) for cls in (torchldr.LowRank, Inherits, Measured, Copied)}
    assert list(found.values()) == [True, True, True, False]
    assert not Measured.fast_pays(LARGE[device]._replace(frozen=True))
    assert not Measured.fast_pays(LARGE[device]._replace(rank=1 << 18))


def test_frozen_transforms_pay_on_a_gpu_without_tensor_cores_alone():
    use = Use(4096, 4096, 4, 256, "cuda", frozen=True)
    for name in ("toeplitz_like", "hankel_like", "ldr_sd"):
        pays = torchldr.get_structure(name).fast_pays
        assert pays(use)
        assert not pays(use._replace(tf32=True))
        assert not pays(use._replace(rank=64))


def test_sizes_that_pad_to_the_same_transforms_cost_the_same():
    """The C kernels of LDR-SD transform a power of two of numbers: 600 columns take as long as 1,024."""
    costs = [torchldr.get_structure("ldr_sd").multiply_adds(n, n, 4) for n in (512, 600, 784, 1024, 1025)]
    assert costs[0] < 0.6 * costs[1]
    assert costs[1] < costs[2] < costs[3] < 1.05 * costs[1]
    assert costs[4] > 2 * costs[3]
