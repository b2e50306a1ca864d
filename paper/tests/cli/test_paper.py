from __future__ import annotations

import json
import re
import subprocess
import sys
import typing
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

typer = pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner  # noqa: E402

from torchldr_paper import Protocol  # noqa: E402
from torchldr_paper.cli import paper as commands_module  # noqa: E402
from torchldr_paper.cli import register  # noqa: E402
from torchldr_paper.cli import sweeps as sweeps_module  # noqa: E402
from torchldr_paper.cli.sweeps import parse_options  # noqa: E402
from torchldr_paper.trainer.progress import Event, Progress  # noqa: E402

QUICK = ["--epochs", "1", "--trials", "1", "--lr", "0.001", "--device", "cpu"]
pytestmark = pytest.mark.usefixtures("no_data_of_the_user")


def call(*arguments: str) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    register(app)
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_list(tmp_path: Path) -> None:
    listed = rows("paper", "list", "--results", str(tmp_path))
    assert {"rectangles", "shl", "noise"} <= {row["name"] for row in listed}
    assert "rectangles" in call("paper", "list", "--results", str(tmp_path)).stdout


def test_list_loads_nothing_that_trains_language_models(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "torchldr",
        "paper",
        "list",
        "--results",
        str(tmp_path),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "torchldr_paper.cli.sweeps" in loaded
    assert not loaded & {"torchldr_paper.language", "torchldr.compress"}


def test_check_says_of_each_cell_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("paper", "check", "--table", "rectangles", "shl", "--results", str(tmp_path), "--json")
    found = json.loads(result.stdout)
    assert len(found["rows"]) == found["counts"]["cells"] == 9 + 14
    assert {row["table"] for row in found["rows"]} == {"rectangles", "shl"}
    assert all(type(row["seeds"]) is int for row in found["rows"])
    assert result.exit_code == 0, result.output
    assert "claims" not in found
    monkeypatch.setattr("torchldr_paper.tables.explained.GAPS", ())
    result = call("paper", "check", "--table", "shl", "--results", str(tmp_path))
    assert result.exit_code == 1
    assert "not explained" in result.stderr
    assert "14 cells on official data" in result.stdout


def test_check_of_everything_ends_with_claims(tmp_path: Path) -> None:
    found = json.loads(call("paper", "check", "--results", str(tmp_path), "--json").stdout)
    assert {row["verdict"] for row in found["rows"]} == {"at or above", "within noise", "below"}
    assert all(row["data"] == "stand-in" for row in found["stand_ins"])
    assert {row["holds"] for row in found["claims"]} <= {True, False, None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "--table", "rectangle"], "Did you mean 'rectangles'"),
        (["check", "--only", "rank=1"], "--only is for one table"),
        (["shl", "--show", "--table", "cnn"], "--table is for `check`"),
    ],
)
def test_check_used_wrongly(arguments: list[str], said: str) -> None:
    result = call("paper", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


def test_show_runs_nothing(tmp_path: Path) -> None:
    shown = rows("paper", "shl", "--show", "--results", str(tmp_path))
    assert len(shown) == 56 + 9
    assert not (tmp_path / "ledger.jsonl").exists()
    text = call("paper", "shl", "--show", "--results", str(tmp_path)).stdout
    assert "HashedNets" in text
    assert "45.81" in text


def test_paper_runs_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A still quicker protocol on data made on the spot; the second call runs nothing."""
    brief = Protocol(epochs=1, lrs=(0.001,), trials=1, train_limit=120, test_limit=50)
    monkeypatch.setattr(Protocol, "quick", classmethod(lambda cls: brief))
    arguments = ["paper", "rectangles", "--quick", "--results", str(tmp_path), "--device", "cpu"]
    arguments += ["--only", "structure=low_rank,circulant"]
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert {row["structure"] for row in done} == {"low_rank", "circulant"}
    assert all(row["data"] == "stand-in" and row["test"] > 0 and row["difference"] is None for row in done)
    assert "2 runs finished" in result.stderr

    lines = (tmp_path / "ledger.jsonl").read_text()
    assert rows(*arguments) == done
    assert (tmp_path / "ledger.jsonl").read_text() == lines
    assert rows(*arguments, "--force")[0]["test"] == done[0]["test"]
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 4


def test_time_limit_leaves_runs(tmp_path: Path) -> None:
    result = call("paper", "rectangles", "--quick", "--results", str(tmp_path), "--max-seconds", "0")
    assert result.exit_code == 0
    assert "9 runs are left" in result.stderr


def test_absent_data_is_told(tmp_path: Path) -> None:
    result = call("paper", "shl", "--only", "dataset=norb", "--results", str(tmp_path))
    assert result.exit_code == 1
    assert "norb: its official files are not here" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("paper", "rectangle"), "Did you mean 'rectangles'"),
        (("paper", "shl", "--only", "dataset=mars"), "no row of 'shl' has dataset=mars. There are"),
        (("paper", "conv", "--only", "model=wide,structure=ldr_sd"), "has model=structure=ldr_sd. There are"),
        (("paper", "conv", "--only", "rank=16,99"), "no row of 'conv' has rank=99"),
        (("paper", "conv", "--only", "model=conv3", "rank=16"), "has what --only asks for"),
        (("paper", "shl", "--only", "colour=red"), "key=value"),
        (("paper", "shl", "--seeds", "0"), "--seeds"),
        (("paper", "rectangles", "--device", "abacus"), "unknown device"),
        (("paper", "lsit"), "`list` shows them"),
        (("paper", "list", "--only", "dataset=mnist"), "--only is for one table"),
        (("train", "--data", "mnsit"), "Did you mean 'mnist'"),
        (("train", "--data", "mnist", "--fraction", "2"), "--fraction must lie in (0, 1], got 2.0"),
        (("train", "--data", "mnist", "--lr", "0"), "--lr must be one or more positive numbers"),
        (("train", "--data", "mnist", "--structure", "LDR-SD"), "Did you mean 'ldr_sd'"),
        (("train", "--data", "mnist", "--structure", "ldr"), "Known: acdc"),
        (("train", "--data", "mnist", "--model", "mlp"), "unknown model"),
        (("train",), "--data"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = call(*arguments, *(() if arguments == ("train",) else ("--results", str(tmp_path))))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("│", " ").split())


def test_train_sweeps_over_ranks_structures_and_fractions(own_file: Path, tmp_path: Path) -> None:
    done = rows(
        "train", "--data", str(own_file), "--structure", "ldr_sd", "dense", "--rank", "1", "2",
        "--fraction", "0.5", "1", *QUICK, "--results", str(tmp_path),
    )  # fmt: skip
    assert [(row["structure"], row["rank"], row["fraction"]) for row in done] == [
        ("ldr_sd", 1, 0.5), ("ldr_sd", 1, 1.0), ("ldr_sd", 2, 0.5), ("ldr_sd", 2, 1.0),
        ("dense", None, 0.5), ("dense", None, 1.0),
    ]  # fmt: skip
    assert all(row["data"] == "user" and row["test"] is not None for row in done)
    assert done[0]["parameters"] == 2 * 2 * 49 + 49 * 2 + 2


def test_train_options_seeds_and_weights(own_file: Path, tmp_path: Path) -> None:
    common = ["--data", str(own_file), *QUICK, "--results", str(tmp_path), "--seeds", "2", "--save-weights"]
    (row,) = rows("train", *common, "--structure", "block_circulant", "--option", "block_size=7")
    assert row["seeds"] == 2
    assert len(list((tmp_path / "weights").glob("*.safetensors"))) == 2
    (row,) = rows("train", *common, "--keep", "80")
    assert row["structure"] == "pruning"
    assert row["parameters"] == 80 + 49 * 2 + 2


def test_weights_that_cannot_be_written(own_file: Path, tmp_path: Path, full_disk: Any) -> None:
    """The run is kept and shown, the weights are said not to be, and the command has failed."""
    with full_disk(8000):
        result = call(
            "train", "--data", str(own_file), *QUICK, "--structure", "dense", "--results", str(tmp_path),
            "--save-weights", "--json",
        )  # fmt: skip
    assert result.exit_code == 1
    (row,) = json.loads(result.stdout)
    assert row["state"] == "done"
    assert "the run is in the ledger, but its weights were not kept: [Errno" in result.stderr
    assert row["hashes"][0] in result.stderr


def test_a_folder_to_read_must_be_there(tmp_path: Path) -> None:
    for arguments in (["paper", "list"], ["paper", "shl", "--show"]):
        result = call(*arguments, "--results", str(tmp_path / "nosuchdir"))
        assert result.exit_code == 2
        assert "nosuchdir" in re.sub(r"[\s│]", "", result.stderr)


def test_changed_data_is_trained_again(tmp_path: Path, own_file: Path) -> None:
    arrays = dict(np.load(own_file))
    path = tmp_path / "mine.npz"
    for turn in range(2):
        np.savez(path, **{**arrays, "train_x": np.roll(arrays["train_x"], turn, axis=-1)})
        rows("train", "--data", str(path), *QUICK, "--results", str(tmp_path))
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 2


def test_a_users_mistake_in_the_data(tmp_path: Path, own_file: Path) -> None:
    arrays = dict(np.load(own_file))
    path = tmp_path / "bad.npz"
    np.savez(path, **{k: v for k, v in arrays.items() if k != "test_y"})
    result = call("train", "--data", str(path), *QUICK, "--results", str(tmp_path))
    assert result.exit_code == 1
    assert "array 'test_y' is missing" in str(result.exception)


def test_interrupt(tmp_path: Path, own_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps_module, "sweep", interrupted)
    result = call("train", "--data", str(own_file), *QUICK, "--results", str(tmp_path))
    assert result.exit_code == 130
    assert "goes on from here" in result.stderr


def test_a_figure_that_was_asked_for_and_cannot_be_drawn_is_a_failure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    own = ["--out", str(tmp_path), "--format", "svg", "--results", str(tmp_path), "--data-dir", str(tmp_path)]
    result = call("figures", "displacement", *own)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'displacement.svg'}\n")
    result = call("figures", "displacement", "channels_cifar10", *own)
    assert (result.exit_code, result.stdout) == (1, f"{tmp_path / 'displacement.svg'}\n")
    assert "left out: channels_cifar10: no weights" in result.stderr


def test_help_names_the_defaults_of_the_protocol() -> None:
    """They stand there as text: help does not import the protocol, which needs torch."""
    helped = typing.get_type_hints(commands_module.train_command, include_extras=True)
    for option, field in (("lr", "lrs"), ("trials", "trials"), ("epochs", "epochs"), ("batch", "batch")):
        full, quick = (getattr(protocol, field) for protocol in (Protocol(), Protocol.quick()))
        full, quick = (" ".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in (full, quick))
        words = f"{full} by default" + (f", {quick} with --quick" if quick != full else "")
        assert words in helped[option].__metadata__[0].help


def test_options_of_a_class() -> None:
    assert parse_options(["learn_nodes=True"]) == (("learn_nodes", True),)
    with pytest.raises(ValueError, match="name=value"):
        parse_options(["x"])


def test_an_interrupt_keeps_what_has_come_and_gives_up_the_rest(own_file: Path, tmp_path: Path) -> None:
    from torchldr_paper import Run
    from torchldr_paper.ledger.ledger import Ledger
    from torchldr_paper.trainer.parallel import Backend
    from torchldr_paper.trainer.sweep import Library, sweep

    class TwoCome(Backend):
        """The first two runs end, the third never does; then comes the interrupt."""

        width, begun, closed = 3, 0, False

        def submit(self, *arguments: Any) -> Any:
            self.begun += 1
            return super().submit(*arguments) if self.begun < 3 else Future()

        def poll(self, update: Any) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            self.closed = True

    brief = Protocol(epochs=1, batch=30, lrs=(0.01,), trials=1)
    runs = [Run(str(own_file), structure=name, protocol=brief) for name in ("low_rank", "circulant", "dense")]
    ledger, library, backend = Ledger(tmp_path, published=False), Library("cpu"), TwoCome()
    with pytest.raises(KeyboardInterrupt):
        sweep(runs, ledger, library, backend=backend)
    assert backend.closed
    assert len(Ledger(tmp_path, published=False)) == 2
    report = sweep(runs, ledger, library, wait=False)
    assert (len(report.present), len(report.finished), len(report.claimed)) == (2, 1, 0)


@pytest.mark.usefixtures("spawned_as_forks")
def test_several_runs_at_a_time(own_file: Path, tmp_path: Path) -> None:
    from torchldr_paper import Protocol, Run
    from torchldr_paper.ledger.ledger import Ledger
    from torchldr_paper.trainer.parallel import Processes
    from torchldr_paper.trainer.sweep import Library, sweep

    brief = Protocol(epochs=1, batch=30, lrs=(0.01,), trials=1)
    runs = [Run(str(own_file), structure=name, protocol=brief) for name in ("low_rank", "circulant")]
    ledger, library, lines = Ledger(tmp_path), Library("cpu"), list[str]()
    wanted = [*runs, runs[0], Run("norb", protocol=brief)]
    report = sweep(wanted, ledger, library, backend=Processes(2), progress=Progress(2, lines.append))
    assert {run.hash for run in report.finished} == {run.hash for run in runs}
    assert "norb" in report.absent
    assert len([line for line in lines if line.startswith("[")]) == 2  # others say that it is at work
    records = [Ledger(tmp_path).find(run) for run in runs]
    assert [record.result["notes"]["jobs"] for record in records if record is not None] == [2, 2]
    assert len(sweep(runs, ledger, library, backend=Processes(1)).present) == 2
    late = sweep(runs, ledger, library, backend=Processes(2), force=True, max_seconds=0)
    assert len(late.left) == 2


def test_the_quick_list_is_of_its_own(tmp_path: Path) -> None:
    done = {row["name"]: row["done"] for row in rows("paper", "list", "--results", str(tmp_path))}
    quick = {row["name"]: row["done"] for row in rows("paper", "list", "--quick", "--results", str(tmp_path))}
    assert done["rectangles"] == 9
    assert quick["rectangles"] == 0


def test_a_stand_in_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = Protocol(epochs=1, lrs=(0.001,), trials=1, train_limit=120, test_limit=50)
    monkeypatch.setattr(Protocol, "quick", classmethod(lambda cls: brief))
    only = ["--only", "structure=circulant", "--results", str(tmp_path), "--device", "cpu"]
    assert "using a stand-in." in call("paper", "rectangles", "--quick", *only).stderr
    full = call("paper", "rectangles", "--max-seconds", "0", *only)
    assert "the table shows our results on the official data" in full.stderr


def test_what_was_chosen_is_shown(own_file: Path, tmp_path: Path) -> None:
    arguments = ["train", "--data", str(own_file), "--init", "linear", *QUICK, "--results", str(tmp_path)]
    (row,) = rows(*arguments)
    assert (row["init"], row["epochs"], row["hidden"]) == ("linear", 1, None)
    assert 0 <= row["validation"] <= 100
    text = call(*arguments).stdout
    assert "linear" in text
    assert "hidden" not in text
    assert "hidden" in call(*arguments, "--structure", "dense", "--hidden", "5").stdout


def test_structures_joined_by_commas(own_file: Path, tmp_path: Path) -> None:
    found = rows(
        "train",
        "--data",
        str(own_file),
        "--structure",
        "low_rank,circulant",
        *QUICK,
        "--results",
        str(tmp_path),
    )
    assert [row["structure"] for row in found] == ["low_rank", "circulant"]


def test_lines_between_epochs() -> None:
    lines: list[str] = []
    progress = Progress(2, lines.append, pause=0)
    for epoch in (1, 2, 3):
        progress.update("0", Event("a run", "node1", epoch, 4))
    progress.update("1", Event("another", "node2", 0, 4))
    assert progress.shares == 0.75
    progress.finish("0", "a run: test 50.00, 1.0 s")
    assert lines[0] == "    1 at work on node1; a run at epoch 1 of 4"
    assert "a run at epoch 3 of 4; about" in lines[2]
    assert "2 at work on node1, node2; another at epoch 0 of 4; about" in lines[3]
    assert lines[4:] == ["[1/2] a run: test 50.00, 1.0 s, node1"]
    assert [*progress.at_work] == ["1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep", "100000"], "--keep must be at most 2401"),
        (["--rank", "100"], "rank"),
        (["--model", "channels_square"], "--hidden must be at most 49, the size of an"),
    ],
)
def test_what_the_images_decide_is_wrong_use(
    own_file: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = call("train", "--data", str(own_file), *arguments, *QUICK, "--results", str(tmp_path))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("│", "").split())
    assert not (tmp_path / "ledger.jsonl").exists()


def test_runs_that_differ_in_the_protocol_alone_are_one_quick_row() -> None:
    """Of `lstm_dense` the one of full precision, which every quick one has."""
    rows = {
        flags: json.loads(call("paper", "lstm_dense", "--show", "--json", *flags).output)
        for flags in ((), ("--quick",))
    }
    starts = {flags: [row["init"] for row in found] for flags, found in rows.items()}
    assert starts[()] == [*starts["--quick",], "linear, full precision"]
