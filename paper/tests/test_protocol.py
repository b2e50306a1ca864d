from __future__ import annotations

import json
from dataclasses import replace

import pytest

from torchldr_paper import Protocol, Run


def test_defaults_are_the_papers() -> None:
    p = Protocol()
    assert (p.epochs, p.batch, p.momentum, p.validation, p.trials) == (50, 50, 0.9, 0.15, 3)
    assert p.lrs == (0.0002, 0.0005, 0.001, 0.002)
    assert len(p.replicas) == 12
    assert p.replicas[3] == (0.0005, 0)
    assert not p.is_quick
    assert Protocol.quick().is_quick


def test_hash_is_stable() -> None:
    """These are keys of published ledgers: a change here orphans every result."""
    assert Run("rectangles").hash == "3360e3810078029e"
    assert Run("cifar10", "cnn", "ldr_sd", 4, init="paper", seed=2).hash == "f5913c8a1916de15"


def test_hash_tells_runs_apart_and_equal_ones_together() -> None:
    run = Run("rectangles", structure="ldr_sd")
    assert run.rank == 1
    assert run.hash == Run("rectangles", structure="ldr_sd", rank=1).hash
    others = [
        replace(run, data="mnist"),
        replace(run, model="cnn"),
        replace(run, structure="ldr_td"),
        replace(run, rank=2),
        replace(run, options=(("product", "exact"),)),
        replace(run, init="paper"),
        replace(run, init_std=0.1),
        replace(run, output_std=0.1),
        replace(run, hidden=9),
        replace(run, train_fraction=0.5),
        replace(run, seed=1),
        replace(run, protocol=Protocol.quick()),
        Run("rectangles"),
        Run("rectangles", keep=9),
    ]
    assert len({r.hash for r in [run, *others]}) == len(others) + 1


def test_config_survives_json() -> None:
    run = Run(
        "rectangles", structure="block_circulant", options={"block_size": 4}, init_std=0.1,  # type: ignore[arg-type]
        train_fraction=0.25, protocol=Protocol.quick(),
    )  # fmt: skip
    assert run.options == (("block_size", 4),)
    again = Run.from_config(json.loads(json.dumps(run.config())))
    assert again == run
    assert again.hash == run.hash


def test_method_and_label() -> None:
    assert Run("rectangles", keep=10).method == "pruning"
    assert Run("rectangles", hidden=10).method == "rhu"
    assert Run("rectangles", structure="ldr_sd", hidden=10).method == "ldr_sd"
    assert (
        Run("mnist", "cnn", "low_rank", 4, train_fraction=0.5, seed=3).label
        == "mnist cnn low_rank r=4 50% seed=3"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "sl"}, "unknown model 'sl'. Did you mean 'shl'"),
        ({"structure": "ldr_s"}, "Did you mean 'ldr_sd'"),
        ({"structure": "dense", "rank": 2}, "has no rank"),
        ({"structure": "ldr_sd", "rank": 0}, "rank must be at least 1, got 0"),
        ({"structure": "ldr_sd", "keep": 4}, "keep prunes a dense layer"),
        ({"train_fraction": 0.0}, "train_fraction must lie in"),
        ({"init": "papers"}, "Did you mean 'paper'"),
        ({"init_std": -1.0}, "init_std must be positive"),
        ({"output_std": 0.0}, "output_std must be positive"),
        ({"gain": 0.1, "model": "cnn"}, "gain is for the models shl, lstm, channels"),
        ({"gain": 0.1, "keep": 5}, "gain is for the models .* without keep"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_wrong_runs(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run("rectangles", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"epochs": 0}, ValueError, "epochs must be at least 1"),
        ({"trials": 1.5}, TypeError, "trials must be an int"),
        ({"lrs": ()}, ValueError, "lrs must be one or more"),
        ({"lrs": (0.1, -1)}, ValueError, "positive"),
        ({"validation": 0}, ValueError, "validation must exceed 0"),
        ({"momentum": 1}, ValueError, "momentum must lie in"),
        ({"dtype": "float16"}, ValueError, "unknown dtype"),
    ],
)
def test_wrong_protocols(fields: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Protocol(**fields)  # type: ignore[arg-type]


def test_unknown_key_in_a_config() -> None:
    config = Run("rectangles").config()
    with pytest.raises(ValueError, match=r"unknown key 'protocol\.epoch'"):
        Run.from_config({**config, "protocol": {"epoch": 3}})
    with pytest.raises(ValueError, match="unknown key 'colour'"):
        Run.from_config({**config, "colour": "red"})
