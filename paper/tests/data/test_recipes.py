"""Stand-ins: their recipes' distributions, their seeds, and that they are called stand-ins."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from torchldr_paper import data
from torchldr_paper.data import recipes
from torchldr_paper.data.dataset import Splits

pillow = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def digits() -> Splits:
    """Digits' stand-ins: blobs, of 900 different images."""
    rng = np.random.default_rng(1)
    x = np.zeros((900, 1, 28, 28), dtype=np.uint8)
    x[:, :, 8:20, 11:17] = rng.integers(100, 256, (900, 1, 12, 6))
    y = np.arange(900) % 10
    return Splits(x[:700], y[:700], x[700:], y[700:])


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.integers(0, 256, (60, 90), dtype=np.uint8) for _ in range(3)]


def test_rectangles_follow_the_recipe():
    x, y, _, _ = recipes.rectangles(20000, 0, seed=0)
    on = x[:, 0] > 0
    rows, columns = on.any(axis=2), on.any(axis=1)
    h, w = rows.sum(axis=1), columns.sum(axis=1)
    assert set(np.unique(x)) == {0, 255}
    np.testing.assert_array_equal(y, h > w)
    assert np.abs(h - w).min() == 3
    assert (h.min(), h.max(), w.min(), w.max()) == (4, 28, 4, 28)
    np.testing.assert_array_equal(on.sum(axis=(1, 2)), 2 * (h + w) - 4)  # an outline
    # Uniform over the 506 pairs: a chi-square within five deviations of its mean.
    counts = np.unique(h * 100 + w, return_counts=True)[1]
    assert len(counts) == 506
    expected = len(y) / 506
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi2 - 505) < 5 * np.sqrt(2 * 505)
    # Uniform positions: the room left over is split evenly on average.
    top, left = rows.argmax(axis=1), columns.argmax(axis=1)
    assert abs((top - (28 - h) / 2).mean()) < 0.2
    assert abs((left - (28 - w) / 2).mean()) < 0.2


def test_loaded_rectangles_are_a_stand_in(tmp_path):
    a, b = data.load("rectangles", tmp_path), data.load("rectangles", tmp_path, seed=0)
    assert a.source == "stand-in"
    assert (len(a.train_y), len(a.test_y), a.classes) == (1200, 50000, 2)
    assert a.fingerprint == b.fingerprint
    assert data.load("rectangles", tmp_path, seed=1).fingerprint != a.fingerprint
    assert "seed 0" in a.origin


def test_rectangles_are_the_same_on_every_machine(tmp_path):
    """Integers only: this holds until numpy changes its generators, which should be noticed."""
    assert data.load("rectangles", tmp_path).fingerprint.startswith(RECTANGLES_SEED_0)


RECTANGLES_SEED_0 = "7f173600360400dc"


@pytest.mark.parametrize("level", range(1, 7))
def test_noise_has_uniform_marginals_and_the_given_covariance(digits, level):
    blank = digits._replace(train_x=np.zeros_like(digits.train_x), test_x=np.zeros_like(digits.test_x))
    x, _, _, _ = recipes.mnist_noise(blank, level, 900, 0, seed=3)
    u = (x[:, 0].astype(np.float64) + 0.5) / 256
    assert abs(u.mean() - 0.5) < 0.03
    assert abs(u.std() - 12**-0.5) < 0.02
    s = torch.special.ndtri(torch.from_numpy(u)).numpy()
    w = (level - 1) / 5
    for step in (1, 4, 9):
        got = (s[:, :, :-step] * s[:, :, step:]).mean()
        assert abs(got - w * np.exp(-(step**2) / (2 * 6.0**2))) < 0.05
    diagonal = (s[:, 3:, 3:] * s[:, :-3, :-3]).mean()
    assert abs(diagonal - w * np.exp(-18 / 72)) < 0.05


def test_noise_never_darkens_a_digit_and_keeps_digits_across_levels(digits):
    one = recipes.mnist_noise(digits, 1, 500, 100, seed=0)
    six = recipes.mnist_noise(digits, 6, 500, 100, seed=0)
    np.testing.assert_array_equal(one.train_y, six.train_y)
    np.testing.assert_array_equal(one.test_y, six.test_y)
    assert (one.train_x.shape, one.test_x.shape) == ((500, 1, 28, 28), (100, 1, 28, 28))
    ink = np.minimum(one.train_x, six.train_x)[:, 0, 8:20, 11:17]
    assert ink.min() >= 100


def test_a_stand_in_never_uses_a_digit_twice(digits):
    numbered = np.zeros_like(digits.train_x, shape=(900, 1, 28, 28))
    numbered[:, 0, 0, 0], numbered[:, 0, 0, 1] = np.arange(900) // 256, np.arange(900) % 256
    x, _ = recipes._draw_digits(
        digits._replace(train_x=numbered[:700], test_x=numbered[700:]), 900, np.random.default_rng(0)
    )
    assert len(np.unique(x[:, 0, 0].astype(int) * 256 + x[:, 0, 1])) == 900
    with pytest.raises(ValueError, match="901 digits are asked for, MNIST here has 900"):
        recipes.mnist_noise(digits, 1, 901, 0, seed=0)


def test_rotate_by_quarter_turns_is_exact():
    images = np.random.default_rng(0).random((4, 28, 28))
    turned = recipes.rotate(images, np.arange(4) * np.pi / 2)
    for k in range(4):
        np.testing.assert_allclose(turned[k], np.rot90(images[k], k), atol=1e-9)


def test_rotate_interpolates_bilinearly():
    rng = np.random.default_rng(0)
    image, angle = rng.random((1, 9, 9)), 0.7
    got = recipes.rotate(image, np.array([angle]))[0]
    c, s = np.cos(angle), np.sin(angle)

    def at(r, q):
        return image[0, r, q] if 0 <= r < 9 and 0 <= q < 9 else 0.0

    for i in range(9):
        for j in range(9):
            y, x = s * (j - 4) + c * (i - 4) + 4, c * (j - 4) - s * (i - 4) + 4
            r, q = int(np.floor(y)), int(np.floor(x))
            a, b = y - r, x - q
            expected = (1 - a) * ((1 - b) * at(r, q) + b * at(r, q + 1))
            expected += a * ((1 - b) * at(r + 1, q) + b * at(r + 1, q + 1))
            assert got[i, j] == pytest.approx(expected, abs=1e-12)


def test_patch_deviation_is_the_deviation_of_each_patch(pictures):
    got = recipes.patch_deviation(pictures[0][:40, :35])
    windows = np.lib.stride_tricks.sliding_window_view(pictures[0][:40, :35] / 255, (28, 28))
    np.testing.assert_allclose(got, windows.std(axis=(2, 3)), atol=1e-12)


def test_patches_of_little_texture_are_rejected():
    flat_and_rough = np.full((28, 200), 128, dtype=np.uint8)
    flat_and_rough[:, 100:] = np.random.default_rng(0).integers(0, 256, (28, 100))
    flat = np.full((50, 50), 3, dtype=np.uint8)
    rng = np.random.default_rng(0)
    patches = recipes.draw_patches([flat, flat_and_rough], 300, rng)
    assert patches.std(axis=(1, 2)).min() >= 20
    with pytest.raises(ValueError, match="none of the 1 photographs"):
        recipes.draw_patches([flat], 3, rng)


def test_bg_rot_blends_white_over_patches(digits, pictures):
    made = recipes.mnist_bg_rot(digits, pictures, 300, 50, seed=0)
    again = recipes.mnist_bg_rot(digits, pictures, 300, 50, seed=0)
    other = recipes.mnist_bg_rot(digits, pictures, 300, 50, seed=1)
    np.testing.assert_array_equal(made.train_x, again.train_x)
    assert (made.train_x != other.train_x).any()
    assert made.train_x.shape == (300, 1, 28, 28)
    # A blank digit leaves the patch, an opaque one leaves white.
    for value, check in ((0, lambda x: x.mean() < 150), (255, lambda x: (x[13:15, 13:15] == 255).all())):
        x = np.full_like(digits.train_x, value)
        same = digits._replace(train_x=x, test_x=x[:200])
        assert all(check(image[0]) for image in recipes.mnist_bg_rot(same, pictures, 20, 0, 0).train_x)


def save(folder, pictures, suffix="png"):
    folder.mkdir(parents=True, exist_ok=True)
    for index, picture in enumerate(pictures):
        pillow.fromarray(picture).save(folder / f"{index}.{suffix}")


def test_made_from_the_files_in_a_data_folder(small, maker, put, tmp_path, pictures):
    put(maker.files(small["mnist"])[1], tmp_path / "mnist", "")
    noise = data.load("mnist_noise_6", tmp_path)
    assert (noise.source, len(noise.train_y)) == ("stand-in", small["mnist_noise_6"].train)
    with pytest.raises(data.DatasetNotFoundError, match=r"once there is photographs \(\.png\)"):
        data.load("mnist_bg_rot", tmp_path)
    save(tmp_path / "backgrounds", [*pictures, np.stack([pictures[0]] * 3, axis=2)])
    made = data.load("mnist_bg_rot", tmp_path)
    assert made.source == "stand-in"
    assert "4 photographs" in made.origin


def test_scikit_images_photographs_serve(tmp_path, monkeypatch, pictures):
    package = tmp_path / "site" / "skimage"
    save(package / "data", pictures[:1])
    (package / "__init__.py").write_text("raise RuntimeError('it need not be imported')")
    (package / "data" / "0.png").rename(package / "data" / "camera.png")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "skimage", raising=False)
    found = recipes.find_photographs([tmp_path])
    assert found == [package / "data" / "camera.png"]


def test_bad_photographs(tmp_path, pictures):
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(data.DataFileError, match=r"a\.png: cannot be read as a picture"):
        recipes.read_photographs([tmp_path / "a.png"])
    save(tmp_path, [pictures[0][:20]])
    with pytest.raises(data.DataFileError, match="at least 28 x 28 pixels, got 20 x 90"):
        recipes.read_photographs([tmp_path / "0.png"])


def test_without_pillow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install Pillow"):
        recipes.read_photographs([tmp_path / "a.png"])
