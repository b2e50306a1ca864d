"""LinearForecaster: equal to a dense ridge, in every shape of input; gaps, intervals, more data, files."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch

from torchldr.forecast import LinearForecaster, fitting, generators, solvers
from torchldr.linalg import IllConditionedWarning

from .dense import ridge_reference, series, windows

Z = series(3, 600).numpy().T  # (time, channels)


def plain(past=32, horizon=8, **options) -> LinearForecaster:
    return LinearForecaster(past, horizon, **{"ridge": 0.1, "holdout": 0, **options})


def test_shared_channels_are_a_dense_ridge():
    f = plain().fit(Z)
    W = ridge_reference(torch.from_numpy(Z.T), 32, 8, "last", 0.1)
    assert torch.allclose(f.matrix().to_dense(), W, atol=1e-11)
    last = Z[-1]
    assert np.allclose(f.predict(Z), W.numpy() @ (Z[-32:] - last) + last)
    w = windows(torch.from_numpy(Z.T), 40, 32, "last")
    lost = w[:, 32:] - w[:, :32] @ W.mT
    assert f.error(Z) == pytest.approx(float(lost.square().mean()))
    assert f.score(Z) == pytest.approx(1 - f.error(Z) / Z.var(0).mean())


@pytest.mark.parametrize("center", ["last", "mean", None])
def test_channels_of_their_own(center):
    together = plain(per_channel=True, center=center).fit(Z)
    alone = [plain(center=center).fit(Z[:, k]) for k in range(3)]
    assert np.allclose(together.predict(Z), np.stack([f.predict(Z[:, k]) for k, f in enumerate(alone)], -1))
    assert together.error(Z) == pytest.approx(np.mean([f.error(Z[:, k]) for k, f in enumerate(alone)]))
    module = together.module(torch.float64)
    x = torch.from_numpy(Z[-32:].T)
    assert np.allclose(module(x).detach().mT, together.predict(Z))
    assert module(x.expand(4, 5, 3, 32)).shape == (4, 5, 3, 8)


T = np.arange(2000.0)
SMOOTH = {
    "sine": np.sin(T / 5),
    "ramp": T,
    "growth": np.exp(T / 300),
    "drift": np.random.default_rng(0).standard_normal(2000).cumsum().cumsum(),
    "steps": T % 17,
}


@pytest.mark.parametrize("center", ["last", "mean", None])
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_series_are_no_worse_than_a_dense_ridge(name, center):
    """Their Gram matrices are nearly singular, and their ends larger than all that windows vary by."""
    train, test = SMOOTH[name][:1600], SMOOTH[name][1552:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = LinearForecaster(48, 12, center=center).fit(train)
        two = LinearForecaster(48, 12, center=center, rank=4).fit(train)
    W = ridge_reference(torch.from_numpy(train)[None], 48, 12, center, f.ridge_)
    w = windows(torch.from_numpy(test)[None], 60, 48, center)
    dense = float((w[:, 48:] - w[:, :48] @ W.mT).square().mean())
    rounding = 1e-15 * test.var()
    assert f.error(test) < 1.01 * dense + rounding
    assert two.error(test) < 1.5 * dense + rounding


@pytest.mark.parametrize("center", ["last", "mean", None])
def test_a_channel_that_starts_late(center):
    """Before the tail it is constant, so that this chooses no ridge for it."""
    late = np.where(T < 1700, 0, np.sin(T / 5) + SMOOTH["drift"] / 1e4)
    found = LinearForecaster(24, 6, per_channel=True, center=center).fit(np.stack((late, SMOOTH["sine"]), 1))
    alone = LinearForecaster(24, 6, center=center).fit(SMOOTH["sine"])
    assert np.isfinite(found.predict(np.stack((late, late), 1), interval=0.9)).all()
    assert np.allclose(found.predict(np.stack((late, late), 1))[:, 1], alone.predict(late))


def test_several_series_count_as_channels():
    parts = [Z[:250, 0], Z[250:, 0]]
    f = plain().fit(parts)
    rows = torch.cat([windows(torch.from_numpy(part)[None], 40, 32, "last") for part in parts])
    K = rows[:, :32].mT @ rows[:, :32] / len(rows) + 0.1 * torch.eye(32, dtype=torch.float64)
    W = torch.linalg.solve(K, rows[:, :32].mT @ rows[:, 32:] / len(rows)).mT
    assert torch.allclose(f.matrix().to_dense(), W, atol=1e-11)


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_gap_cuts_a_series(per_channel):
    gappy = Z.copy()
    gappy[250, 1] = np.nan
    f = plain(gaps="split", per_channel=per_channel).fit(gappy)
    if per_channel:
        assert np.allclose(f.predict(Z)[:, 0], plain().fit(Z[:, 0]).predict(Z[:, 0]))
        assert np.allclose(f.predict(Z)[:, 1], plain().fit([Z[:250, 1], Z[251:, 1]]).predict(Z[:, 1]))
    assert np.isfinite(f.predict(Z)).all()
    assert np.isfinite(f.error(gappy))
    with pytest.raises(ValueError, match=r"NaN\) at time 250, channel 1"):
        plain().fit(gappy)


def test_more_data_is_as_all_data():
    f = plain(rank=3).fit(Z[:400])
    f.partial_fit(Z[400:401]).partial_fit(Z[401:])
    all_of_it = plain(rank=3).fit(Z)
    assert np.allclose(f.predict(Z), all_of_it.predict(Z), atol=1e-8)
    assert plain().partial_fit(Z).predict(Z).shape == (8, 3)
    with pytest.raises(ValueError, match="3 channels"):
        f.partial_fit(Z[:, :2])
    with pytest.raises(ValueError, match="several series"):
        plain().fit([Z, Z]).partial_fit(Z)


def test_what_came_in_comes_out():
    f, g = plain().fit(Z), plain().fit(list(Z[:, 0]))
    x = torch.from_numpy(Z[-32:])
    assert isinstance(f.predict(x), torch.Tensor)
    assert torch.allclose(f.predict(x.expand(2, 5, 32, 3))[1, 4], f.predict(x))
    assert f.predict(Z.astype(np.float32)).dtype == np.float64
    assert g.predict(Z[-32:, 0]).shape == (8,)
    assert g.predict(Z[:, :1].T.repeat(4, 0)).shape == (4, 8)
    pandas = pytest.importorskip("pandas")
    assert np.allclose(plain().fit(pandas.DataFrame(Z)).predict(pandas.DataFrame(Z)), f.predict(Z))
    nullable = pandas.DataFrame(Z).convert_dtypes()
    nullable.iloc[5, 1] = pandas.NA
    dated = pandas.DataFrame(Z).assign(date=pandas.date_range("2020", periods=len(Z)))
    with pytest.raises(ValueError, match=r"NaN\) at time 5, channel 1"):
        plain().fit(nullable)
    with pytest.raises(TypeError, match="DataFrame of float64, datetime64"):
        plain().fit(dated)


def test_a_mask_is_a_gap():
    masked = np.ma.masked_where(np.arange(600) == 7, Z[:, 0])
    with pytest.raises(ValueError, match=r"NaN\) at time 7"):
        plain().fit(masked)
    gappy = np.where(np.arange(600) == 7, np.nan, Z[:, 0])
    assert plain(gaps="split").fit(masked).error(masked) == plain(gaps="split").fit(gappy).error(gappy)


def test_scores_leave_gaps_out():
    f, gappy = plain().fit(Z), Z.copy()
    gappy[300, 1] = np.nan
    assert f.score(gappy) == pytest.approx(f.score(Z), abs=0.05)
    with pytest.raises(ValueError, match="no window"):
        f.error(np.where(np.arange(600)[:, None] % 9, Z, np.nan))
    with pytest.raises(ValueError, match="constant"):
        f.score(np.ones((100, 3)))


def test_the_tail_chooses_the_ridge_and_gives_intervals():
    f = LinearForecaster(48, 12).fit(Z[:, 0])
    errors = [plain(48, 12, ridge=r).fit(Z[:480, 0]).error(Z[432:, 0]) for r in (1e-6, f.ridge_, 1e3)]
    assert errors[1] <= min(errors) * 1.01
    found = f.predict(Z[:, 0], interval=0.9)
    assert [part.shape for part in found] == [(12,)] * 3
    assert (found.lower < found.forecast).all()
    assert (found.forecast < found.upper).all()
    wider = f.predict(Z[:, 0], interval=0.99)
    assert (wider.upper >= found.upper).all()
    new = series(1, 3000, seed=7)[0].numpy()
    inside = [
        (bounds.lower <= new[t + 48 : t + 60]) & (new[t + 48 : t + 60] <= bounds.upper)
        for t in range(0, 2900, 7)
        for bounds in [f.predict(new[t : t + 48], interval=0.9)]
    ]
    assert 0.8 < np.mean(inside) < 0.97
    for own in (False, True):
        found = LinearForecaster(48, 12, per_channel=own).fit(Z).predict(Z[None], interval=0.5)
        assert [part.shape for part in found] == [(1, 12, 3)] * 3
    with pytest.raises(ValueError, match="holdout above 0"):
        plain().fit(Z).predict(Z, interval=0.9)


def test_a_rank_is_that_of_the_module():
    f = plain(rank=2).fit(Z)
    module = f.module()
    assert f.rank_ == 2
    assert sum(p.numel() for p in module.parameters()) == 2 * (32 + 8)
    x = torch.from_numpy(Z[-32:].T)
    assert np.allclose(module(x.float()).detach().mT, f.predict(Z), atol=1e-4)
    assert len(f.singular_values_) == min(4 + 2 * 3, 8)


def test_a_long_past_takes_ffts(monkeypatch: pytest.MonkeyPatch):
    """What is long is set to short; without convergence elimination serves."""
    right = plain().fit(Z).predict(Z)
    monkeypatch.setattr(fitting, "DENSE_UP_TO", 8)
    assert np.allclose(plain().fit(Z).predict(Z), right, atol=1e-9)
    monkeypatch.setattr(solvers, "ITERATIONS", 2)
    monkeypatch.setattr(fitting, "QUICK_UP_TO", 8)
    assert np.allclose(plain().fit(Z).predict(Z), right, atol=1e-9)

    def singular(*of):
        raise torch.linalg.LinAlgError

    for name, value in (("by_elimination", singular), ("ELIMINATION_UP_TO", 8)):
        monkeypatch.setattr(fitting, name, value)
        with pytest.warns(IllConditionedWarning, match="of the weights is rounding error"):
            plain().fit(Z)


@pytest.mark.parametrize(
    ("error", "quick", "second"), [(1e-7, 8, []), (1e-7, 64, ["dense"]), (1e-5, 8, ["elimination"])]
)
def test_a_second_try_is_for_what_conjugate_gradients_lose(
    monkeypatch: pytest.MonkeyPatch, error: float, quick: int, second: list[str]
):
    """For a long past only where they are doubtful: elimination takes the square of the past."""
    tried = []

    def eliminate(*of):
        tried.append("elimination")
        return solvers.by_elimination(*of)

    def make_dense(*of):
        tried.append("dense")
        return generators.dense_displacement(*of)

    monkeypatch.setattr(fitting, "DENSE_UP_TO", 8)
    monkeypatch.setattr(fitting, "QUICK_UP_TO", quick)
    monkeypatch.setattr(fitting, "measured_error", lambda found: error)
    monkeypatch.setattr(fitting, "by_elimination", eliminate)
    monkeypatch.setattr(fitting, "dense_displacement", make_dense)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IllConditionedWarning)
        plain().fit(Z)
    assert tried == second


def test_files(tmp_path):
    for f, x in ((LinearForecaster(24, 6, rank=2).fit(Z), Z), (plain(per_channel=True).fit(Z), Z)):
        f.save(tmp_path / "f.npz")
        for again in (LinearForecaster.load(tmp_path / "f.npz"), pickle.loads(pickle.dumps(f))):
            assert np.array_equal(again.predict(x), f.predict(x))
            assert again.get_params() == f.get_params()
            assert np.array_equal(again.ridge_, f.ridge_)
    (tmp_path / "bad.npz").write_bytes((tmp_path / "f.npz").read_bytes()[:300])
    with pytest.raises(ValueError, match="not a saved forecaster"):
        LinearForecaster.load(tmp_path / "bad.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="not a saved forecaster"):
        LinearForecaster.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Z, {"past": 0}, "past must be at least 1"),
        (Z, {"horizon": 0}, "horizon must be at least 1"),
        (Z, {"rank": 9}, "rank must be between 1 and 8"),
        (Z, {"ridge": -1.0}, "ridge must be"),
        (Z, {"ridge": "automatic"}, "ridge must be"),
        (Z, {"ridge": None}, "ridge must be"),
        (Z, {"ridge": np.array([0.1, 0.2])}, "ridge must be"),
        (Z, {"ridge": "auto"}, "needs holdout above 0"),
        (Z, {"center": "median"}, "center must be"),
        (Z, {"gaps": "fill"}, "gaps must be one of"),
        (Z, {"holdout": 1.0}, "holdout must be"),
        (Z, {"per_channel": 1}, "per_channel must be True or False"),
        (Z[:39], {}, "at least past \\+ horizon = 40 values, got 39"),
        (np.where(np.arange(600)[:, None] % 9, Z, np.nan), {"gaps": "split"}, "without a gap, got 8"),
        (np.where(np.arange(3) < 1, np.nan, Z), {"gaps": "split"}, "channel 0 has no values"),
        (1e200 * Z, {}, "channel 0 spans .* scale it"),
        (1e-200 * Z, {}, "channel 0 spans .* scale it"),
        ([Z, np.where(Z > 9, np.inf, Z)], {}, "infinite value in the series 1"),
        (Z[:48], {"holdout": 0.2}, "too short for holdout=0.2"),
        (
            np.where(np.arange(600)[:, None] == 7, np.inf, Z),
            {},
            "infinite value in the series, at time 7, channel 0",
        ),
        (np.concatenate((Z, 0 * Z), 1), {}, "channel 3 is constant"),
        (Z[None], {}, r"shape \(time,\) or \(time, channels\), got \(1, 600, 3\)"),
        ([Z, Z[:, :2]], {}, "as many channels"),
        ([Z, Z[:, 0]], {}, "shape"),
        ([], {}, "shape"),
        (np.array(["a", "b"]), {}, "must be numbers"),
        (torch.zeros(50, dtype=torch.complex64), {}, "must be real"),
    ],
)
def test_wrong_input_is_one_error_and_nothing_is_fitted(data, options, message):
    f = plain(**options)
    with pytest.raises((ValueError, TypeError), match=message):
        f.fit(data)
    with pytest.raises(ValueError, match="call fit first"):
        f.predict(Z)


def test_wrong_recent_values():
    f = plain().fit(Z)
    for recent, message in (
        (Z[-31:], r"32 or more, 3 channels\), got \(31, 3\)"),
        (Z[-32:, :2], "3 channels"),
        (np.full((32, 3), np.nan), "gaps"),
    ):
        with pytest.raises(ValueError, match=message):
            f.predict(recent)
    with pytest.raises(ValueError, match="between 0 and 1"):
        f.predict(Z, interval=90)
    with pytest.raises(ValueError, match="40 values or more and 3 channels"):
        f.error(Z[:39])


def test_parameters():
    f = plain(rank=3)
    assert repr(f) == "LinearForecaster(past=32, horizon=8, rank=3, ridge=0.1, holdout=0)"
    assert f.set_params(rank=2).get_params()["rank"] == 2
    with pytest.raises(ValueError, match="unknown parameter 'rnk'"):
        f.set_params(rnk=2)


def test_numbers_of_numpy(tmp_path):
    f = LinearForecaster(np.int64(32), np.int32(8), rank=np.int64(2), ridge=np.float32(0.1), holdout=0).fit(Z)
    assert np.allclose(f.predict(Z), plain(rank=2).fit(Z).predict(Z))
    f.save(tmp_path / "f.npz")
    assert LinearForecaster.load(tmp_path / "f.npz").rank_ == 2


@pytest.mark.parametrize(
    ("name", "value"), [("past", 16), ("horizon", 4), ("center", None), ("per_channel", True)]
)
def test_what_a_fit_depends_on_stays(name, value, tmp_path):
    f = plain().fit(Z)
    f.set_params(**{name: value})
    uses = (f.predict, f.error, f.partial_fit, lambda _: f.module(), lambda _: f.save(tmp_path / "f.npz"))
    for use in uses:
        with pytest.raises(ValueError, match=f"{name} is no longer that of fit"):
            use(Z)
    f.fit(Z).predict(Z)


def test_in_scikit_learn():
    pytest.importorskip("sklearn")
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, TimeSeriesSplit, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    f = LinearForecaster(32, 8, rank=3)
    pipeline = make_pipeline(StandardScaler(), clone(f))
    scores = cross_val_score(pipeline, Z, cv=TimeSeriesSplit(3, test_size=80))
    assert scores.shape == (3,)
    assert (scores > 0).all()
    assert pipeline.fit(Z).predict(Z[-32:]).shape == (8, 3)
    grid = GridSearchCV(f, {"past": np.array([16, 32])}, cv=TimeSeriesSplit(3, test_size=80)).fit(Z)
    assert clone(grid.best_estimator_).get_params()["past"] in (16, 32)
