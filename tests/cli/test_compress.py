"""`torchldr analyze` and `torchldr compress`: what they print and write, and what they refuse."""

from __future__ import annotations

import io
import itertools
import json
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import torchldr
from torchldr import cli
from torchldr.compress import errors

LOW = ("--structures", "low_rank")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A checkpoint with two layers, a table, a small head and other tensors."""
    path = tmp_path / "model.safetensors"
    tensors = {
        "body.0.weight": torch.randn(48, 40),
        "body.0.bias": torch.randn(48),
        "body.2.weight": torchldr.LowRank.random(40, 48, rank=2).to_dense().contiguous(),
        "table": torch.randn(64, 40),
        "head.weight": torch.randn(4, 40),
        "steps": torch.arange(3),
    }
    save_file(tensors, path)
    return path


def flat(text: str) -> str:
    """Without a box's borders and line ends."""
    return " ".join(text.replace("│", " ").split())


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_analyze_prints_a_table(run, file):
    code, out, err = run("analyze", file, *LOW)
    assert (code, err) == (0, "")
    assert "low_rank rank=2: 0.000" in out
    assert out.splitlines()[0].split() == ["weight", "shape", "1/2", "1/5", "1/10", "1/20"]
    assert "left alone: head.weight (has 4 features, fewer than min_features=32)" in out


def test_reports_fit_80_columns_and_cut_no_name(run, tmp_path, monkeypatch):
    path = tmp_path / "long.safetensors"
    names = [f"transformer.encoder_layers.{i}.attention.query_projection.weight" for i in range(2)]
    save_file({**{name: torch.randn(64, 64) for name in names}, "head": torch.randn(4, 64)}, path)
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in (("analyze",), ("compress", "--budget", "0.4", "-o", tmp_path / "small")):
        code, out, _ = run(arguments[0], path, *arguments[1:], "--structures", "low_rank", "block_circulant")
        lines = out.splitlines()
        assert code == 0
        assert max(map(len, lines)) <= 80
        assert {*names} <= {*lines}
        assert "no room for" not in out


def test_analyze_as_json_with_a_picture_and_a_plan_that_compress_takes(run, file, tmp_path):
    picture, plan, out_folder = tmp_path / "a.png", tmp_path / "plan.json", tmp_path / "out"
    code, out, err = run(
        "analyze", file, "--budget", "0.3", "--json", "--plot", picture, "--save-plan", plan,
        "--skip", "table", "--ranks", 1, 2, 3, 5, *LOW,
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0
    assert err == f"picture: {picture}\nplan: {plan}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert found["plans"][0]["plan"] == json.loads(plan.read_text())
    assert found["left"]["table"] == "skipped"
    assert {t["rank"] for t in found["weights"][0]["trials"]} == {1, 2, 3, 5, None}
    assert torchldr.compress.read_plan(plan)["body.2.weight"] == torchldr.Structure("low_rank", rank=2)
    code, out, _ = run("compress", file, "--plan", plan, "-o", out_folder, "--json")
    assert code == 0
    report = json.loads(out)
    assert report == json.loads((out_folder / "report.json").read_text())
    assert {row["name"]: row["rank"] for row in report["layers"]}["body.2.weight"] == 2


def test_compress_writes_a_folder_that_loads(run, file, tmp_path):
    """Also the dense file beside it, for programs that know nothing of us."""
    code, out, err = run(
        "compress", file, "--budget", "40%", "-o", tmp_path / "out", "--skip", "ta*",
        "--dense", tmp_path / "dense.safetensors", "--structures", "low_rank",
    )  # fmt: skip
    assert (code, err) == (0, f"written: {tmp_path / 'out'}\n")
    assert "weights: 3,840 -> 1," in out
    before, dense = load_file(file), load_file(tmp_path / "dense.safetensors")
    weights = torchldr.compress.load_weights(tmp_path / "out")
    assert set(weights) == set(dense) == set(before)
    for name, W in weights.items():
        assert torch.equal(W, dense[name])
        assert torch.equal(W, before[name]) == (name not in ("body.0.weight", "body.2.weight"))
    assert torch.allclose(weights["body.2.weight"], before["body.2.weight"], atol=1e-5)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, 40, False))
            self.table = nn.Parameter(torch.zeros(64, 40))
            self.head = nn.Linear(40, 4, False)
            self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))

    model, plain = Model(), Model()
    torchldr.load_compressed(model, tmp_path / "out")
    plain.load_state_dict(dense)
    assert isinstance(model.body[2], torchldr.StructuredLinear)
    x = torch.randn(3, 40)
    assert torch.allclose(model.body(x), plain.body(x), atol=1e-5)


@pytest.mark.parametrize("budget", ["1500", "1/5", "6 kB", "1e3 ms"])
def test_every_kind_of_budget(run, file, tmp_path, budget):
    code, out, _ = run("compress", file, "--budget", budget, "-o", tmp_path / "out", "--json", *LOW)
    report = json.loads(out)
    assert code == 0
    limits = {"1500": 1500, "1/5": (48 * 40 * 2 + 64 * 40) / 5, "6 kB": 1500, "1e3 ms": 10**6}
    assert report["parameters_after"] <= limits[budget]
    assert report["latency_after"] > 0
    assert report["vectors"] == (1 if budget == "1e3 ms" else 64)


def test_structures_by_commas_as_in_train(run, file, tmp_path):
    texts = []
    for index, names in enumerate((["low_rank,toeplitz_like"], ["low_rank", "toeplitz_like"])):
        out = tmp_path / f"out{index}"
        options = ("--budget", 0.3, "--structures", *names, "--json")
        code, printed, _ = run("compress", file, "-o", out, *options)
        assert code == 0
        texts.append(json.loads(printed)["layers"])
    assert [row["structure"] for row in texts[0]] == [row["structure"] for row in texts[1]]
    assert run("compress", file, "-o", tmp_path / "x", "--budget", 0.3, "--structures", "low_rank,x")[0] == 2


def test_nothing_is_overwritten_without_force(run, file, tmp_path, monkeypatch):
    out = tmp_path / "out"
    arguments = ("compress", file, "-o", out, *LOW)
    assert run(*arguments, "--budget", 0.5)[0] == 0
    before = {name: (out / name).read_bytes() for name in listing(out)}
    code, stdout, err = run(*arguments, "--budget", 0.3)
    assert (code, stdout) == (1, "")
    assert err == f"torchldr: {out} exists already; --force (force=True) replaces it.\n"
    assert before == {name: (out / name).read_bytes() for name in listing(out)}
    (out / "notes.txt").write_text("mine")
    moved, replace = [], Path.replace
    monkeypatch.setattr(Path, "replace", lambda old, new: moved.append(Path(new)) or replace(old, new))
    assert run(*arguments, "--budget", 0.3, "--force")[0] == 0
    # The manifest last: whoever reads meanwhile finds the old model or the new one.
    assert [path.name for path in moved if path.parent == out][-1] == "manifest.json"
    after = listing(out)
    assert len(after) == 4  # manifest, report, one tensors file and what was there
    assert "notes.txt" in after
    assert json.loads((out / "report.json").read_text())["parameters_after"] <= 0.3 * 6400
    torchldr.compress.load_weights(out)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    code, _, err = run("compress", file, "-o", foreign, "--budget", 0.3, "--force", *LOW)
    assert (code, err) == (
        1,
        f"torchldr: {foreign} exists and is not a compressed model: it will not be replaced.\n",
    )
    assert listing(foreign) == ["thesis.txt"]
    dense = tmp_path / "dense.safetensors"
    dense.write_text("mine")
    code, _, err = run("compress", file, "-o", tmp_path / "new", "--dense", dense, "--budget", 0.3, *LOW)
    assert (code, err) == (1, f"torchldr: {dense} exists already; --force replaces it.\n")
    assert not (tmp_path / "new").exists()


def test_the_checkpoint_and_the_folder_are_not_written_over(run, file: Path, tmp_path: Path) -> None:
    content, new = file.read_bytes(), tmp_path / "new"
    for dense, message in (
        (file, "is the checkpoint itself"),
        (new, "which holds the compressed model"),
        (new / "dense.safetensors", "which holds the compressed model"),
        (tmp_path, "is a folder"),
    ):
        code, _, err = run("compress", file, "-o", new, "--dense", dense, "--budget", 0.3, "--force", *LOW)
        assert code == 1, dense
        assert message in err
        assert not new.exists()
    for option in ("--save-plan", "--plot"):
        code, _, err = run("analyze", file, "--budget", 0.3, option, file, *LOW)
        assert (code, err.count("\n")) == (1, 1)
        assert f"{option} {file} is the checkpoint itself" in err
    assert file.read_bytes() == content


def _truncated(path: Path) -> str:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 100])
    return "is damaged or no .safetensors file (Error while deserializing header: incomplete metadata"


def _header(path: Path) -> str:
    path.write_bytes(b"\xff" * 200)
    return "is damaged or no .safetensors file (Error while deserializing header: header too large"


def _json_header(path: Path) -> str:
    content = bytearray(path.read_bytes())
    content[8:12] = b"!!!!"
    path.write_bytes(bytes(content))
    return "is damaged or no .safetensors file (Error while deserializing header: invalid"


def _pickle(path: Path) -> str:
    torch.save({"W": torch.zeros(64, 64)}, path)
    return "is damaged or no .safetensors file"


def _empty(path: Path) -> str:
    path.write_bytes(b"")
    return "is damaged or no .safetensors file (Error while deserializing header: header too small"


def _missing(path: Path) -> str:
    path.unlink()
    return "model.safetensors does not exist."


def _folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "has no .safetensors file."


def _nan(path: Path) -> str:
    tensors = load_file(path)
    tensors["body.2.weight"][3, 4] = torch.nan
    save_file(tensors, path)
    return "body.2.weight has entries that are not finite."


def _nothing(path: Path) -> str:
    save_file({"bias": torch.zeros(40), "head.weight": torch.zeros(4, 40)}, path)
    return "two axes of 32 or more"


BAD = [_truncated, _header, _json_header, _pickle, _empty, _missing, _folder, _nan, _nothing]


@pytest.mark.parametrize("damage", BAD)
@pytest.mark.parametrize("command", ["analyze", "compress"])
def test_bad_files_are_one_line_and_nothing_is_written(run, file, tmp_path, damage, command):
    wanted = damage(file)
    before = listing(tmp_path)
    more = (
        ["-o", tmp_path / "out", "--dense", tmp_path / "dense.safetensors"] if command == "compress" else []
    )
    code, out, err = run(command, file, "--budget", 0.3, *more, *LOW)
    assert (code, out) == (1, "")
    assert err.startswith("torchldr: ")
    assert err.count("\n") == 1
    assert wanted in err
    assert listing(tmp_path) == before


PLANS = [
    ('{"body.9": {"structure": "low_rank"}}', "'body.9' matches no tensor that can be replaced."),
    ('{"body.0.bias": {"structure": "low_rank"}}', "'body.0.bias' matches no tensor that can be replaced."),
    ('{"head": {"structure": "low_rank"}}', "no tensor that can be replaced (head.weight has 4 features"),
    ('{"body.*": {"structure": "lowrank"}}', "unknown structure 'lowrank'. Did you mean 'low_rank'?"),
    ('{"body.*": {"structure": "low_rank", "rank": 41}}', "rank must be between 1 and 40"),
    ('{"body.*": {"structure": "low_rank", "rank": "2"}}', "Structure: rank must be an int, got '2'."),
    ('{"body.*": {"structure": "low_rank", "ranks": 2}}', "'body.*': unknown entry 'ranks'"),
    ('{"body.*": {"structure": "low_rank", "options": 2}}', "'body.*': options must be an object, got 2."),
    ('{"body.*": "low_rank"}', "'body.*': a plan must be"),
    ('{"body.*": {"structure": "low_rank", "options": {"block_size": 2}}}', "'body.*': "),
    ("[1, 2]", "a plan must be {"),
    ("{}", "a plan must be {"),
    ("{", "is not a JSON file ("),
    (None, "plan.json does not exist."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), PLANS)
def test_bad_plans_are_one_line_and_nothing_is_written(run, file, tmp_path, text, wanted):
    plan = tmp_path / "plan.json"
    if text is not None:
        plan.write_text(text)
    before = listing(tmp_path)
    code, out, err = run("compress", file, "--plan", plan, "-o", tmp_path / "out")
    assert (code, out) == (1, "")
    assert err.startswith("torchldr: ")
    assert err.count("\n") == 1
    assert wanted in err
    assert listing(tmp_path) == before


def test_a_budget_that_cannot_be_met(run, file, tmp_path):
    code, out, err = run("compress", file, "--budget", 10, "-o", tmp_path / "out", *LOW)
    assert (code, out) == (2, "")
    assert "Invalid value for --budget: compress_weights: a budget of 10 parameters is too small" in flat(err)
    assert "the smallest candidates have 280; for 10 % write 0.1." in flat(err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("budgets", [[2], [2, "10 B", 0.0001]])
def test_analyze_tries_nothing_for_budgets_that_cannot_be_met(run, file, monkeypatch, budgets):
    monkeypatch.setattr("torchldr.compress.analysis.analyze.errors_of", None)
    code, out, err = run("analyze", file, "--budget", *budgets)
    assert (code, out) == (2, "")
    assert "a budget of 2 parameters is too small" in flat(err)
    assert "for 2 % write 0.02." in flat(err)


USES = [
    ("compress", "-o", "out"),
    ("compress", "-o", "out", "--budget", "0.1", "--plan", "plan.json"),
    ("compress", "-o", "out", "--plan", "plan.json", "--structures", "low_rank"),
    ("compress", "--budget", "0.1"),
    ("compress", "-o", "out", "--budget", "much"),
    ("compress", "-o", "out", "--budget", "0.1", "--structures", "lowrank"),
    ("compress", "-o", "out", "--budget", "0.1", "--time-limit", "0"),
    ("analyze", "--budget", "1.5"),
    ("analyze", "--plot", "picture.txt"),
    ("analyze", "--save-plan", "plan.json"),
    ("analyze", "--ranks", "0"),
    ("analyze", "--seed", "9" * 30),
]


@pytest.mark.parametrize("use", USES, ids=" ".join)
def test_wrong_use_is_exit_code_2(run, file, tmp_path, use, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = listing(tmp_path)
    code, out, err = run(use[0], file, *use[1:])
    assert (code, out) == (2, "")
    assert "Usage: torchldr" in err
    assert listing(tmp_path) == before


def test_an_unwritable_place_is_one_line(run, file, tmp_path):
    (tmp_path / "taken").write_text("mine")
    code, out, err = run("compress", file, "-o", tmp_path / "taken" / "out", "--budget", 0.3, *LOW)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_failure_while_writing_leaves_nothing(run, file, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("torchldr.compress.report.CompressionReport.save", full)
    before = listing(tmp_path)
    dense = tmp_path / "dense.safetensors"
    code, out, err = run("compress", file, "-o", tmp_path / "out", "--dense", dense, "--budget", 0.3, *LOW)
    assert (code, out, err) == (1, "", "torchldr: no space left\n")
    assert listing(tmp_path) == before


@pytest.mark.parametrize("command", ["analyze", "compress"])
def test_without_safetensors_one_line_says_what_to_install(run, file, tmp_path, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    more = ["-o", tmp_path / "out", "--budget", 0.3] if command == "compress" else []
    code, out, err = run(command, file, *more, *LOW)
    assert (code, out) == (1, "")
    assert (
        err == "torchldr: reading .safetensors files needs the package safetensors: pip install safetensors\n"
    )


def test_without_matplotlib_one_line_says_what_to_install(run, file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("analyze", file, "--plot", tmp_path / "a.png", *LOW)
    assert (code, err) == (1, "torchldr: pictures need matplotlib; pip install matplotlib\n")


@pytest.fixture
def interrupted(interruptible, monkeypatch):
    """Somebody presses Ctrl-C in the second piece of work."""
    work, calls = errors.projection_errors, itertools.count()

    def then(*given):
        if next(calls):
            signal.raise_signal(signal.SIGINT)
        return work(*given)

    monkeypatch.setattr(errors, "projection_errors", then)


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_analysis_shows_what_it_has(run, file):
    code, out, err = run("analyze", file, *LOW)
    assert (code, err) == (130, "interrupted: not all classes were tried\n")
    assert out


@pytest.mark.usefixtures("interrupted")
def test_an_interrupt_is_exit_code_130_and_writes_nothing(run, file, tmp_path):
    before = listing(tmp_path)
    found = run("compress", file, "-o", tmp_path / "out", "--budget", 0.3, *LOW)
    assert found == (130, "", "interrupted: nothing was written\n")
    assert listing(tmp_path) == before


def test_shards_of_a_folder(run, file, tmp_path):
    tensors = load_file(file)
    folder = tmp_path / "shards"
    folder.mkdir()
    names = sorted(tensors)
    for i, part in enumerate((names[:3], names[3:])):
        save_file({name: tensors[name] for name in part}, folder / f"model-{i}.safetensors")
    for source, out in ((file, "one"), (folder, "many")):
        code, *_ = run("compress", source, "--budget", "1/5", "-o", tmp_path / out, *LOW)
        assert code == 0
    one, many = (torchldr.compress.load_weights(tmp_path / out) for out in ("one", "many"))
    assert all(torch.equal(one[name], many[name]) for name in tensors)
    save_file({names[0]: tensors[names[0]]}, folder / "more.safetensors")
    code, _, err = run("compress", folder, "--budget", "1/5", "-o", tmp_path / "third", *LOW)
    assert code == 1
    assert "model-0.safetensors and more.safetensors" in err


@pytest.mark.parametrize("inside", [False, True])
def test_pickles_get_a_hint(run, tmp_path, inside):
    folder = tmp_path / "old"
    folder.mkdir()
    torch.save({}, folder / "pytorch_model.bin")
    source = folder if inside else folder / "pytorch_model.bin"
    code, _, err = run("compress", source, "--budget", "1/5", "-o", tmp_path / "out", *LOW)
    assert code == 1
    assert "pickle" in err
    assert "safetensors" in err


def test_names_that_the_terminal_cannot_show(tmp_path, monkeypatch):
    file, shown = tmp_path / "m.safetensors", io.BytesIO()
    save_file({"w\u00e4.weight": torch.randn(32, 32)}, file)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    with pytest.raises(SystemExit) as found:
        cli.main(["compress", str(file), "--budget", ".5", *LOW, "--out", str(tmp_path / "out")])
    sys.stdout.flush()
    assert found.value.code == 0
    assert rb"w\xe4" in shown.getvalue()
