"""A user's own .npz: what is accepted, and what each mistake is told."""

from __future__ import annotations

import numpy as np
import pytest

from torchldr_paper import data


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "train_x": rng.random((20, 36)),
        "train_y": np.arange(20) % 3,
        "test_x": rng.random((8, 36)),
        "test_y": np.arange(8) % 3,
    }


@pytest.fixture
def save(tmp_path):
    def write(arrays, name="my.npz"):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    return write


def test_flat_rows(arrays, save):
    loaded = data.load(str(save(arrays)))
    assert (loaded.name, loaded.source, loaded.classes) == ("my", "user", 3)
    assert loaded.image_shape == (1, 6, 6)
    assert loaded.train_x.dtype == np.float32
    np.testing.assert_allclose(loaded.pixels(flat=True)[0], arrays["train_x"], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((6, 6), (1, 6, 6)), ((4, 3, 3), (4, 3, 3)), ((1, 4, 9), (1, 4, 9)), ((36,), (1, 6, 6))],
)
def test_images(arrays, save, shape, expected):
    for part in ("train_x", "test_x"):
        arrays[part] = arrays[part].reshape(-1, *shape)
    assert data.load(save(arrays)).image_shape == expected


def test_rows_that_are_no_square(arrays, save):
    short = {k: v[:, :35] if k.endswith("x") else v for k, v in arrays.items()}
    assert data.load(save(short)).image_shape == (1, 1, 35)
    shaped = arrays | {"image_shape": np.array([4, 3, 3])}
    assert data.load(save(shaped)).image_shape == (4, 3, 3)
    with pytest.raises(data.DataFileError, match=r"product 36.*\[5, 3, 3\]"):
        data.load(save(arrays | {"image_shape": np.array([5, 3, 3])}))


def test_bytes_are_scaled_and_other_numbers_are_not(arrays, save):
    whole = {k: (v * 200).astype(np.uint8) if k.endswith("x") else v for k, v in arrays.items()}
    loaded = data.load(save(whole))
    assert loaded.train_x.dtype == np.uint8
    np.testing.assert_allclose(loaded.pixels(flat=True)[0], whole["train_x"] / 255, rtol=1e-6)
    wide = {k: v.astype(np.int32) for k, v in whole.items()}
    np.testing.assert_array_equal(
        data.load(save(wide)).pixels(flat=True)[0], whole["train_x"].astype(np.float32)
    )
    with pytest.raises(data.DataFileError, match="both be uint8 or neither"):
        data.load(save(arrays | {"train_x": whole["train_x"]}))


def test_whole_floats_are_labels(arrays, save):
    arrays["train_y"] = arrays["train_y"].astype(np.float64)
    assert data.load(save(arrays)).train_y.dtype == np.int64


def test_classes_may_be_given(arrays, save):
    assert data.load(save(arrays | {"classes": np.array(7)})).classes == 7
    with pytest.raises(data.DataFileError, match=r"0 \.\. 1 \(2 classes\), got 2 in row 2"):
        data.load(save(arrays | {"classes": np.array(2)}))
    with pytest.raises(data.DataFileError, match="classes must be one integer"):
        data.load(save(arrays | {"classes": np.array([3, 4])}))


@pytest.mark.parametrize("name", ["train_x", "train_y", "test_x", "test_y"])
def test_a_missing_array(arrays, save, name):
    del arrays[name]
    with pytest.raises(data.DataFileError, match=f"my.npz: array '{name}' is missing"):
        data.load(save(arrays))


def test_a_missing_array_under_another_name(arrays, save):
    swapped = {"_".join(reversed(k.split("_"))): v for k, v in arrays.items()}
    with pytest.raises(data.DataFileError, match="Is it 'x_train'"):
        data.load(save(swapped))
    arrays["train_X"] = arrays.pop("train_x")
    with pytest.raises(data.DataFileError, match="Is it 'train_X'"):
        data.load(save(arrays))


def change(key, index, value):
    def apply(arrays):
        arrays[key] = arrays[key].astype(float)
        arrays[key][index] = value

    return apply


def replace(key, make):
    def apply(arrays):
        arrays[key] = make(arrays[key])

    return apply


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (change("train_x", (4, 2), np.nan), "train_x has NaN .* first is row 4"),
        (change("test_x", (1, 0), np.inf), "test_x has NaN or infinity"),
        (change("train_y", 3, 1.5), "train_y must hold integers, got 1.5 in row 3"),
        (change("train_y", 3, np.nan), "train_y must hold integers, got nan"),
        (change("train_y", 3, -1), r"train_y must lie in 0 \.\. 2 .* got -1 in row 3"),
        (change("test_y", 5, 3), r"test_y must lie in 0 \.\. 2 .* largest label.* got 3 in row 5"),
        (change("train_y", 3, 10**6), "got 1000000 in row 3 of only 20 rows"),
        (replace("train_y", lambda y: y[:-1]), r"train_y must have shape \(20,\).* got \(19,\)"),
        (replace("train_y", lambda y: np.eye(3)[y]), "one-hot"),
        (replace("train_y", lambda y: y.astype(str)), "train_y must hold integers, got <U"),
        (replace("test_x", lambda x: x[:, :-1]), r"test_x has shape \(8, 35\), expected images"),
        (replace("test_x", lambda x: x[:0]), r"test_x is empty, got shape \(0, 36\)"),
        (replace("train_y", lambda y: y[:, None]), r"one label an image \(save y\[:, 0\]\)"),
        (replace("train_y", lambda y: 0 * y), "two classes or more, all its labels are 0"),
        (replace("train_x", lambda x: x[0]), r"train_x must be rows .* got shape \(36,\)"),
        (replace("train_x", lambda x: x + 1j), "train_x must hold real numbers, got complex"),
        (replace("train_x", lambda x: x.reshape(-1, 6, 2, 3)), "channels last"),
        (replace("train_x", lambda x: x.astype(object)), "train_x cannot be read.*pickle"),
    ],
)
def test_mistakes_are_named(arrays, save, damage, match):
    damage(arrays)
    with pytest.raises(data.DataFileError, match=match) as caught:
        data.load(save(arrays))
    assert "my.npz" in str(caught.value)


def test_no_such_file_and_no_npz(tmp_path, arrays, save):
    with pytest.raises(FileNotFoundError, match=r"other\.npz: no such file"):
        data.load(tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(data.DataFileError, match=r"cannot be read|damaged"):
        data.load(tmp_path / "text.npz")
    path = save(arrays)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(data.DataFileError, match="damaged"):
        data.load(path)
    np.save(tmp_path / "single.npy", np.zeros(3))
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    with pytest.raises(data.DataFileError, match="holds a single array"):
        data.load(tmp_path / "single.npz")


def test_other_files(arrays, tmp_path):
    text, array = tmp_path / "text.npz", tmp_path / "my.npy"
    text.write_text("train_x")
    np.save(array, arrays["train_x"])
    with pytest.raises(data.DataFileError, match=r"not a \.npz file, which np\.savez writes"):
        data.load(text)
    for path in (array, tmp_path):
        with pytest.raises(ValueError, match=r"Data of your own is read only from a \.npz file"):
            data.load(str(path))
