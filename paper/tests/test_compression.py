"""The tables of compression: matrices against their classes, training against torch, runs that resume."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import torchldr
from torchldr_paper.compression import __main__ as command
from torchldr_paper.compression import images, language
from torchldr_paper.compression.fleet import Distilled, Examples, Fleet, Member, joined
from torchldr_paper.compression.loop import run_table
from torchldr_paper.compression.methods import (
    FIXED,
    LATER,
    Method,
    kept,
    methods,
    parameters,
    reaches,
    structure_for,
)
from torchldr_paper.compression.starts import descend, fresh_start, projected_start, residuals
from torchldr_paper.compression.tables import FILE, Rows, render
from torchldr_paper.compression.texts import GPTModel, LSTMModel
from torchldr_paper.compression.training import Adam, Trainer

ROOT = Path(__file__).parents[2]
SHAPES = [(12, 12), (7, 20), (20, 7), (13, 13)]


# Matrices.


# Budgets.


@pytest.mark.parametrize("shape", [(64, 64), (48, 192), (192, 48), (50, 61)])
def test_methods_stay_within_their_budget_and_use_it(shape: tuple[int, int]):
    for method in methods():
        if method.name in ("dense", *FIXED) or not reaches(method, [shape]):
            continue
        budget = shape[0] * shape[1] // method.factor
        assert parameters(method, *shape) <= budget
        structure = None if method.name == "pruned" else structure_for(method, *shape)
        if structure is not None and structure.rank is not None:
            more = torchldr.Structure(structure.name, rank=structure.rank + 1, **structure.options)
            assert more.parameters(*shape) > budget
    assert not reaches(Method("ldr_td", 20), [(32, 32)])
    assert {method.name for method in methods()} == {*torchldr.structures(), "pruned"} - {*LATER}


# Starts.


def weights(count: int = 2, m: int = 40, n: int = 40) -> Tensor:
    torch.manual_seed(3)
    return torch.randn(count, m, n) @ torch.diag(torch.logspace(0, -1.5, n))


@pytest.mark.parametrize("shape", [(40, 40), (24, 60), (60, 24)])
@pytest.mark.parametrize(
    "name",
    ["low_rank", "toeplitz_like", "hankel_like", "cauchy_like", "vandermonde_like", "ldr_sd", "ldr_td"],
)
def test_starts_are_truncated_svds(name: str, shape: tuple[int, int]):
    """Of the whole rank, of half the rank for fixed operators, and nearly so for small operators."""
    W = weights(2, *shape)
    method = Method(name, 3)
    stack = projected_start(method, W)
    rank = stack.learned["G"].shape[1]
    assert rank == structure_for(method, *shape).rank
    same = name in ("low_rank", "ldr_sd", "ldr_td")
    U, s, V = torch.linalg.svd(W.double(), full_matrices=False)
    q = rank if same else rank // 2
    expected = (U[..., :q] * s[:, None, :q]) @ V[:, :q]
    error = (stack.dense() - expected).norm() / expected.norm()
    assert error < (0.05 if name.startswith("ldr") else 2e-3 if rank % 2 else 1e-4)


def test_pruning_keeps_the_largest_and_averages_are_the_projection():
    W = weights()
    pruned = projected_start(Method("pruned", 10), W)
    assert [int(m.sum()) for m in pruned.constants["mask"]] == [kept(Method("pruned", 10), 40, 40)] * 2
    dropped = W[pruned.constants["mask"] == 0].abs().max()
    assert pruned.dense()[0].abs().max() == W[0].abs().max()
    assert dropped <= W.abs().max()
    block = projected_start(Method("block_circulant", 5), W)
    wanted = torchldr.from_dense(W[1], "block_circulant", block_size=5).matrix.to_dense()
    torch.testing.assert_close(block.dense()[1], wanted)


@pytest.mark.parametrize("name", ["cauchy_like", "ldr_sd", "fastfood"])
def test_descent_lowers_the_residual_of_each_matrix_and_never_raises_it(name: str):
    W = weights(3)
    method = Method(name, None if name in FIXED else 4)
    start = projected_start(method, W)
    after = descend(start, W, 25)
    assert (residuals(after, W) < residuals(start, W)).all()
    start.learned["G" if "G" in start.learned else "S"][1] *= 1e20  # one that cannot be mended
    assert torch.equal(residuals(descend(start, W, 2), W)[1].isnan(), residuals(start, W)[1].isnan())


def test_fresh_starts_have_the_scale_of_a_linear_layer():
    W = weights(2)
    for method in methods((5,)):
        stack = fresh_start(method, W, 0)
        if method.name not in ("pruned", "dense"):
            norms = stack.dense().norm(dim=(1, 2))
            torch.testing.assert_close(norms, torch.full((2,), (40 / 3) ** 0.5))
        assert torch.equal(stack.dense(), fresh_start(method, W, 0).dense())


# Training.


def test_adam_is_torchs():
    torch.manual_seed(0)
    ours = {"a": torch.randn(3, 4).requires_grad_(), "b": torch.randn(3).requires_grad_()}
    theirs = [t.detach().clone().requires_grad_() for t in ours.values()]
    target = torch.randn(3, 4)
    adam = Adam(ours, {"a": 0.1, "b": 0.02}, 10, clip=0.7, decay=0.3, decayed=["a"])

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return ((a - target).square().sum(1) * b.exp()).sum().unsqueeze(0)

    Trainer(adam, lambda now: loss(now["a"], now["b"])).run(10)
    groups = [
        {"params": [theirs[0]], "lr": 0.1, "weight_decay": 0.3},
        {"params": [theirs[1]], "lr": 0.02, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))
    for step in range(10):
        factor = 1.0 if step < 1 else 0.5 * (1 + torch.cos(torch.tensor(torch.pi * (step - 1) / 9)).item())
        for group, rate in zip(optimizer.param_groups, (0.1, 0.02), strict=True):
            group["lr"] = rate * factor
        optimizer.zero_grad()
        loss(*theirs).sum().backward()
        nn.utils.clip_grad_norm_(theirs, 0.7)
        optimizer.step()
    for mine, other in zip(ours.values(), theirs, strict=True):
        torch.testing.assert_close(mine.detach(), other.detach(), rtol=1e-4, atol=1e-6)


def examples() -> Examples:
    generator = torch.Generator().manual_seed(4)
    x, test = torch.randn(90, 16, generator=generator), torch.randn(30, 16, generator=generator)
    W = torch.randn(16, 3, generator=generator)
    rows = torch.arange(90)
    hidden = torch.randn(90, 16, generator=generator)
    logits = torch.randn(90, 3, generator=generator)
    y, test_y = (x @ W).argmax(1), (test @ W).argmax(1)
    return Examples(x, y, rows[:60], rows[60:], hidden, logits, test, test_y)


def test_models_of_a_fleet_do_not_know_of_each_other():
    """Ranks that are filled up, clipping and rates: each is what it is alone, but for rounding."""
    torch.manual_seed(0)
    W, data = torch.randn(1, 16, 16) / 4, examples()
    head = {
        "logits.weight": torch.randn(3, 16),
        "logits.bias": torch.zeros(3),
        "hidden.bias": torch.zeros(16),
    }
    members, stacks = [], []
    for name, factor, rate in (("low_rank", 2, 0.01), ("low_rank", 4, 0.003), ("ldr_sd", 2, 0.01)):
        members.append(Member(Method(name, factor), "projection", rate))
        stacks.append(projected_start(members[-1].method, W))
    table = images.ImageTable("tiny", "mine", "shl", epochs=2, batch=20)
    together = Fleet(table, members, stacks, head, data)
    for epoch in range(2):
        together.train_epoch(epoch)
    scores = dict(zip(together.members, zip(*together.accuracies(), strict=True), strict=True))
    for member, stack in zip(members, stacks, strict=True):
        alone = Fleet(table, [member], [stack], head, data)
        for epoch in range(2):
            alone.train_epoch(epoch)
        place = together.members.index(member)
        for name in head:
            torch.testing.assert_close(
                together.adam.tensors[name][place], alone.adam.tensors[name][0], rtol=1e-3, atol=1e-4
            )
        validation, test = alone.accuracies()
        assert scores[member] == pytest.approx((validation[0], test[0]), abs=3.4)  # one image of 30
    ranks = joined(stacks[:2]).learned["G"].shape[1]
    small = stacks[1].learned["G"].shape[1]
    g = next(i for i, (_, stack) in enumerate(together.groups) if stack.name == "low_rank")
    filled = together.adam.tensors[f"{g}.G"][1, small:]
    assert ranks > small
    assert not filled.any()


def test_the_loss_of_a_fleet_is_the_distillation_that_is_told():
    torch.manual_seed(0)
    W, data = torch.randn(1, 16, 16) / 4, examples()
    head = {"logits.weight": torch.randn(3, 16), "logits.bias": torch.randn(3)}
    member = Member(Method("dense", 1), "projection", 0.0)
    how = Distilled(logits=0.3, layer=0.7, temperature=1.5)
    table = images.ImageTable("tiny", "mine", "shl", epochs=1, batch=20, distilled=how)
    stack = projected_start(member.method, W)
    fleet = Fleet(table, [member], [stack], head, data)
    fleet.feed.begin(0)
    rows = fleet.feed.order[:20]
    loss = fleet._losses(fleet.adam.tensors)
    hidden = data.x[rows] @ W[0].T
    logits = hidden.relu() @ head["logits.weight"].T + head["logits.bias"]
    soft = nn.functional.kl_div(
        (logits / 1.5).log_softmax(-1), (data.logits[rows] / 1.5).softmax(-1), reduction="batchmean"
    )
    wanted = data.hidden[rows]
    layer = (hidden - wanted).square().mean() / wanted.square().mean()
    expected = 0.7 * cross_entropy(logits, data.y[rows]) + 0.3 * 1.5**2 * soft + 0.7 * layer
    torch.testing.assert_close(loss[0], expected)


# Tables.


def tiny_table(own_file: Path, **more: object) -> images.ImageTable:
    table = images.ImageTable(
        "tiny",
        str(own_file),
        "shl",
        dense_epochs=3,
        dense_batch=20,
        dense_rates=(0.003,),
        epochs=2,
        batch=20,
        descent=3,
        factors=(2, 10),
    )
    return replace(table, **more)


def test_an_image_table_runs_resumes_and_is_shown(own_file: Path, tmp_path: Path):
    said: list[str] = []
    table, device = tiny_table(own_file), torch.device("cpu")
    assert not run_table(table, Rows(tmp_path), device, deadline=0, say=said.append)
    assert "no time left" in said[-1]
    assert not (tmp_path / FILE).exists()
    assert run_table(table, Rows(tmp_path), device, thorough=True, say=said.append)
    rows = Rows(tmp_path)
    found = {(row["method"], row["factor"]): row for row in rows.of("tiny")}
    wanted = {(m.name, m.factor) for m in methods((2, 10)) if reaches(m, [(49, 49)])}
    assert set(found) == wanted
    assert ("ldr_td", 2) in wanted
    for row in found.values():
        assert 0 <= row["before"] <= 100
        assert 0 <= row["after"] <= 100
        assert row["seconds"] > 0
        assert row["model_parameters"] == row["parameters"] + 49 * 2 + 2
    assert found["dense", 1]["before"] == pytest.approx(found["dense", 1]["dense"])
    lines = (tmp_path / FILE).read_text()
    # Cut off the last line, as a kill would: that row alone is run again.
    (tmp_path / FILE).write_text(lines[:-30])
    again = Rows(tmp_path)
    assert len(again.problems) == 1
    assert run_table(table, again, device, thorough=True, say=said.append)
    assert " -> " in said[-1]
    last = json.loads((tmp_path / FILE).read_text().splitlines()[-1])
    lost = json.loads(lines.splitlines()[-1])
    assert (last["method"], last["before"]) == (lost["method"], pytest.approx(lost["before"]))
    text = render(Rows(tmp_path).of("tiny"))
    assert "| class | 2 times | 10 times |" in text
    assert "`ldr_sd`" in text
    assert text.count("**") == 4


def test_a_damaged_dense_model_is_trained_anew(own_file: Path, tmp_path: Path, caplog):
    table, device = tiny_table(own_file), torch.device("cpu")
    trained = table.begin(tmp_path, device, None)
    (path,) = (tmp_path / "weights").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    again = table.begin(tmp_path, device, None)
    assert "trained anew" in caplog.text
    assert (again.dense, again.key) == (trained.dense, trained.key)
    caplog.clear()
    assert table.begin(tmp_path, device, None).dense == trained.dense
    assert not caplog.text


@pytest.mark.parametrize("there", [False, True])
def test_methods_that_fail_are_told_and_the_others_run(
    there: bool, own_file: Path, tmp_path: Path, monkeypatch
):
    """Here what has no memory, elsewhere whatever it is; another error of this process is a fault to see."""
    table, device, said = tiny_table(own_file, factors=(10,)), torch.device("cpu"), list[str]()
    rows = images.ImageRun.rows

    def failing(self, group):
        if group[0].name == "circulant":
            raise (KeyError if there else RuntimeError)("out of\n memory")
        return rows(self, group)

    def each(self, methods):
        return [[method] for method in methods if method.name in ("low_rank", "circulant", "pruned")]

    monkeypatch.setattr(images.ImageRun, "rows", failing)
    monkeypatch.setattr(images.ImageRun, "groups", each)
    executor = ThreadPoolExecutor(1) if there else None
    assert not run_table(table, Rows(tmp_path), device, executor=executor, say=said.append)
    assert {row["method"] for row in Rows(tmp_path).of("tiny")} == {"low_rank", "pruned"}
    (line,) = [line for line in said if "failed" in line]
    assert line.startswith("tiny: circulant/fixed failed: ")
    assert "\n" not in line
    if not there:
        monkeypatch.setattr(images.ImageRun, "rows", lambda self, group: {}["x"])
        with pytest.raises(KeyError):
            run_table(table, Rows(tmp_path), device, say=said.append)


class Elsewhere(ThreadPoolExecutor):
    """What is called travels as it would to another process."""

    def submit(self, fn, /, *args, **kwargs):
        fn, args = pickle.loads(pickle.dumps((fn, args)))
        return super().submit(fn, *args, **kwargs)


def test_rows_do_not_depend_on_where_they_are_trained(own_file: Path, tmp_path: Path):
    table, device = tiny_table(own_file, factors=(10,)), torch.device("cpu")
    found = []
    for folder, executor in ((tmp_path / "here", None), (tmp_path / "there", Elsewhere(1))):
        assert run_table(table, Rows(folder), device, executor=executor, say=lambda line: None)
        rows = Rows(folder).of("tiny")
        found.append({row["method"]: (row["before"], row["after"], row["epoch"]) for row in rows})
    assert found[0] == found[1]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "valid", "test"):
        drawn = torch.randint(20, (120, 10), generator=generator).tolist()
        (folder / f"{part}.txt").write_text("\n".join(" ".join(f"w{i}" for i in line) for line in drawn))
    monkeypatch.setenv("TORCHLDR_DATA", str(tmp_path / "data"))
    return folder


@pytest.mark.parametrize("name", ["lstm", "gpt"])
def test_a_language_table_runs_and_resumes(name: str, corpus: Path, tmp_path: Path, capsys: object):
    results = ["--results", str(tmp_path / "results")]
    assert command.main([name, "--quick", "--max-seconds", "0", *results]) == 1
    assert command.main([name, "--quick", *results]) == 0
    rows = Rows(tmp_path / "results")
    found = {(row["method"], row["factor"]) for row in rows.of(name, quick=True)}
    table = language.LANGUAGE_TABLES[name].quick()
    shapes = [(48, 48)] if name == "lstm" else [(48, 48), (192, 48), (48, 192)]
    assert found == {(m.name, m.factor) for m in methods(table.factors) if reaches(m, shapes)}
    assert not rows.of(name)  # quick rows are no rows of the table itself
    before = (tmp_path / "results" / FILE).read_text()
    assert command.main([name, "--quick", *results]) == 0
    assert (tmp_path / "results" / FILE).read_text() == before


@pytest.mark.parametrize("name", ["lstm", "gpt"])
def test_rows_of_language_models_are_the_same_every_time(name: str, corpus: Path, tmp_path: Path):
    """Dropout does not depend on what has drawn random numbers before."""
    table = replace(language.LANGUAGE_TABLES[name].quick(), dense_steps=2, steps=4)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        run = language.LanguageRun(table, tmp_path / str(seed), torch.device("cpu"), None)
        row = run.compressed(Method("low_rank", 10))
        found.append((run.dense, row["before"], row["validation"]))
    assert found[0] == found[1]


@pytest.mark.parametrize(("rate", "stays"), [(100.0, True), (0.003, False)])
def test_validation_says_where_fine_tuning_stops(rate: float, stays: bool, corpus: Path, tmp_path: Path):
    table = replace(language.LANGUAGE_TABLES["lstm"].quick(), rate=rate, steps=8)
    row = language.LanguageRun(table, tmp_path, torch.device("cpu"), None).compressed(Method("low_rank", 10))
    assert (row["stopped"] == 0) == stays
    assert (row["after"] == row["before"]) == stays
    assert row["after"] <= row["before"]


def test_missing_data_is_one_line_and_exit_code_1(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHLDR_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert command.main(["lstm", "--quick", "--results", str(tmp_path), "--data-dir", str(tmp_path)]) == 1
    assert "its files are not here" in capsys.readouterr().err


# Language models.


def test_the_lstm_is_torchs():
    model = LSTMModel(30, 8, 5, 2, drop=0.0)
    tensors = model.initial(0)
    text = torch.randint(30, (61,), generator=torch.Generator().manual_seed(1))
    layer = nn.LSTM(8, 8)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(layer, f"{name}_l0").copy_(tensors[name])
        columns = text[:60].view(2, 30).T
        out, _ = layer(tensors["embedding"][columns[:-1]])
        logits = out @ tensors["embedding"].T + tensors["decoder_bias"]
        expected = cross_entropy(logits.flatten(0, 1), columns[1:].flatten())
    assert model.loss(tensors, text) == pytest.approx(float(expected), rel=1e-5)
    read, state = model.reader(text, 10, 0)
    with torch.no_grad():
        losses = torch.stack([read(tensors) for _ in range(5)])
    torch.testing.assert_close(
        losses.mean(), cross_entropy(logits[:25].flatten(0, 1), columns[1:26].flatten())
    )
    assert int(state[1]) == 0  # 29 words to predict: a sixth step does not fit, the text begins anew
    assert not state[0].any()
    (group,) = model.groups
    assert torch.equal(group.take(tensors)[5], tensors["weight_hh"][8:16])
    assert all(torch.equal(t, tensors[name]) for name, t in group.put(group.take(tensors)).items())


def test_the_gpts_linear_layers_are_compressed_and_its_head_is_not():
    model = GPTModel(50, {"width": 24, "layers": 2, "heads": 2}, 8, 3)
    assert [(group.shape, len(group.names)) for group in model.groups] == [
        ((24, 24), 8),
        ((96, 24), 2),
        ((24, 96), 2),
    ]
    tensors, text = model.initial(0), torch.randint(50, (200,))
    assert "head.weight" not in tensors
    before = model.loss(tensors, text)
    assert before == pytest.approx(torch.log(torch.tensor(64.0)).item(), abs=0.2)
    changed = {**tensors, "embedding.weight": 3 * tensors["embedding.weight"]}
    assert model.loss(changed, text) != pytest.approx(before, abs=1e-3)  # the tied head follows
