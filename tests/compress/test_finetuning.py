"""finetune: groups, distillation, accumulation, a callback; each against a plain loop or by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div
from torch.utils.data import DataLoader, TensorDataset

import torchldr
from torchldr.compress.finetuning.groups import even_factors, operator_names, parameter_groups
from torchldr.compress.finetuning.loop import Step, finetune
from torchldr.compress.finetuning.teacher import Distillation, replaced_layers


def small(structure: str = "ldr_sd", **more: object) -> nn.Sequential:
    torch.manual_seed(1)
    hidden = torchldr.StructuredLinear(16, 16, structure=structure, rank=2, **more)
    return nn.Sequential(hidden, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


def data(count: int = 60) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 16, generator=generator)
    return TensorDataset(x, (x @ torch.randn(16, 4, generator=generator)).argmax(1))


def loader(**more: object) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(data(), batch_size=10, shuffle=True, **more)


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return all(torch.equal(left[name], right[name]) for name in left)


# Groups.


@pytest.mark.parametrize("name", torchldr.structures())
def test_operators_are_what_the_matrix_is_not_linear_in(name: str):
    """By the definition: doubling a parameter that is no operator doubles M, with all of its like."""
    cls = torchldr.get_structure(name)
    for options in ({}, {"learn_nodes": True}):
        if options and "learn_nodes" not in cls.default_options():
            continue
        M = cls.random(8, 8, 2 if cls.ranked else None, dtype=torch.float64, **options)
        shapes = cls.parameter_shapes(8, 8, 2, **M.options)
        for key in shapes:
            doubled = cls(8, 8, **{**M.tensors, key: 2 * M.tensors[key]}, **M.options)
            linear = torch.allclose(doubled.to_dense(), 2 * M.to_dense())
            assert linear == (key not in operator_names(cls, **options)), key


def test_groups_hold_every_parameter_once_and_only_weights_decay():
    model = small("ldr_td")
    model.append(nn.LayerNorm(4)).append(nn.Linear(4, 4))
    model[-1].weight = nn.Parameter(torch.randn(4, 4))
    model.append(model[-1])  # used twice
    model[3].bias.requires_grad_(False)
    groups = {group["name"]: group for group in parameter_groups(model, 0.1, weight_decay=0.5, even=False)}
    ids = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(ids) == sorted({id(p) for p in model.parameters() if p.requires_grad})
    hidden = model[0]
    assert {id(p) for p in groups["weights"]["params"]} == {
        id(p) for p in (hidden.G, hidden.H, model[3].weight, model[5].weight)
    }
    operators = [p for name, p in hidden.named_parameters() if name not in ("G", "H", "bias")]
    assert {id(p) for p in groups["operators"]["params"]} == set(map(id, operators))
    assert [groups[k]["weight_decay"] for k in ("weights", "others", "operators")] == [0.5, 0, 0]
    assert groups["operators"]["lr"] == pytest.approx(0.01)
    assert parameter_groups(model, 0.1, operator_lr=0.3, even=False)[-1]["lr"] == 0.3


def test_groups_find_the_operators_of_recurrent_and_channel_layers():
    model = nn.ModuleList(
        [
            torchldr.StructuredLSTM(8, 8, structure="ldr_sd"),
            torchldr.StructuredChannels(2, 2, (4, 4), structure="ldr_sd"),
        ]
    )
    found = parameter_groups(model, 1.0, even=False)[-1]
    assert found["name"] == "operators"
    by_name = [p for name, p in model.named_parameters() if "subdiagonal" in name or "corner" in name]
    assert set(map(id, found["params"])) == set(map(id, by_name))
    assert by_name


@pytest.mark.parametrize(
    "options", [{"structure": "monarch", "blocks": 8}, {"structure": "blast", "rank": 2, "blocks": 8}]
)
def test_groups_take_options_that_need_room(options: dict):
    layer = torchldr.StructuredLinear(32, 32, **options)
    assert {id(p) for group in parameter_groups(layer, 1e-3) for p in group["params"]} == {
        id(p) for p in layer.parameters()
    }


@pytest.mark.parametrize("name", torchldr.structures())
def test_even_rates_move_every_class_as_far(name: str):
    """A step of all rates with random signs, on the dense matrix: as far as it moves a dense one."""
    torch.manual_seed(2)
    cls = torchldr.get_structure(name)
    layer = torchldr.StructuredLinear(48, 40, structure=name, rank=3 if cls.ranked else None).double()
    M = layer.weight.detach()
    groups = {group["name"]: group for group in parameter_groups(layer, 1e-5)}
    learned = [key for key, _ in layer.named_parameters() if key in groups]
    assert learned == [k for k in layer._learned if k not in operator_names(cls)]
    for key in learned:
        moved = []
        for _ in range(8):
            again = copy.deepcopy(layer)
            p = again.get_parameter(key) if key != "weight" else again._parameters["weight"]
            with torch.no_grad():
                p.add_(groups[key]["lr"] * torch.randint(0, 2, p.shape).mul(2).sub(1))
            moved.append((again.weight - M).norm().item())
        dense = 1e-5 * (48 * 40) ** 0.5
        assert 0.6 < sum(moved) / 8 / dense < 1.6, key


@pytest.mark.parametrize("name", torchldr.structures())
def test_even_steps_of_gradient_descent_are_those_of_a_dense_matrix(name: str):
    """On average over the directions that a tensor has: trace(J J^T) times its rate is its size."""
    torch.manual_seed(3)
    cls = torchldr.get_structure(name)
    layer = torchldr.StructuredLinear(24, 20, structure=name, rank=2 if cls.ranked else None).double()
    groups = {group["name"]: group for group in parameter_groups(layer, 1.0, even="sgd")}
    M = layer.matrix()
    W = M.to_dense().detach()
    assert set(groups) == {*layer._learned, "others"}
    for key in layer._learned:
        t, squares = M.tensors[key].detach(), 0.0
        for place in range(t.numel()):
            step = torch.zeros(t.numel(), dtype=t.dtype)
            step[place] = 1e-6
            near = cls.unchecked(20, 24, {**M.tensors, key: t + step.reshape(t.shape)}, M.options)
            squares += float((near.to_dense().detach() - W).square().sum()) * 1e12
        rate = groups[key]["lr"] / (0.1 if key in operator_names(cls) else 1.0)
        assert 0.5 < rate * squares / t.numel() < 2, key


def test_a_wrong_kind_of_steps_is_refused():
    with pytest.raises(ValueError, match="even must be True, False or one of"):
        parameter_groups(small(), 1.0, even="lion")


def test_even_groups_hold_every_parameter_once():
    model = nn.Sequential(small("toeplitz_like"), nn.LayerNorm(4))
    ids = [id(p) for group in parameter_groups(model, 1.0, weight_decay=0.1) for p in group["params"]]
    assert sorted(ids) == sorted({id(p) for p in model.parameters()})
    groups = {group["name"]: group for group in parameter_groups(model, 1.0, weight_decay=0.1)}
    assert groups["0.0.G"]["weight_decay"] == 0.1
    assert groups["0.0.G"]["lr"] == even_factors(model[0][0].matrix())["G"]
    assert groups["weights"]["lr"] == 1


# Training.


def test_it_is_the_plain_loop():
    """Groups, clipping, warm-up and cosine by hand."""
    model, batches = small(), [(x, y) for x, y in DataLoader(data(), batch_size=10)]
    model[2].p = 0.0
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(parameter_groups(plain, 0.01, weight_decay=0.1))
    rates = [group["lr"] for group in optimizer.param_groups]
    losses = []
    for step in range(12):
        factor = (
            (step + 1) / 3 if step < 2 else 0.5 * (1 + torch.cos(torch.tensor((step - 2) / 10 * torch.pi)))
        )
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * float(factor)
        x, y = batches[step % 6]
        optimizer.zero_grad()
        loss = cross_entropy(plain(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    result = finetune(model, batches, epochs=2, lr=0.01, weight_decay=0.1, max_grad_norm=0.5, warmup=0.1)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    assert result.losses == pytest.approx((sum(losses[:6]) / 6, sum(losses[6:]) / 6), rel=1e-5)
    assert not model.training
    assert (result.steps, result.stopped) == (12, False)


def test_accumulated_batches_are_one_larger_batch():
    """Five batches in twos: the last step has one alone."""
    batches = [(x, y) for x, y in DataLoader(data(50), batch_size=10)]
    joint = [tuple(map(torch.cat, zip(*batches[i : i + 2], strict=True))) for i in (0, 2, 4)]
    one, other = small().eval(), small().eval()
    one[2].p = other[2].p = 0.0
    results = (
        finetune(one, batches, epochs=2, lr=0.01, accumulate=2),
        finetune(other, joint, epochs=2, lr=0.01),
    )
    assert [result.steps for result in results] == [6, 6]
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_an_optimizer_of_the_users():
    model, plain = small(), small()
    model[2].p = plain[2].p = 0.0
    batches = [(x, y) for x, y in DataLoader(data(20), batch_size=10)]
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    finetune(model, batches, optimizer=sgd, warmup=0.0, max_grad_norm=None)
    for (x, y), rate in zip(batches, (0.1, 0.05), strict=True):
        learned = [*plain.parameters()]
        for p, g in zip(learned, torch.autograd.grad(cross_entropy(plain(x), y), learned), strict=True):
            p.data -= rate * g
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_callback_sees_every_step_and_stops():
    """Early stop as one writes it: the best of what was validated is put back."""
    model, seen, best = small(), [], {}

    def callback(step: Step) -> bool:
        seen.append((step.step, step.steps, step.epoch, float(step.loss)))
        assert model.training
        model.eval()  # to validate it
        if step.step == 2:
            best.update(copy.deepcopy(model.state_dict()))
        return step.step == 8

    result = finetune(model, loader(), epochs=5, lr=0.01, callback=callback)
    assert result.stopped
    assert result.steps == 8
    assert [entry[:3] for entry in seen] == [(i, 30, (i - 1) // 6) for i in range(1, 9)]
    assert sum(entry[3] for entry in seen[:6]) / 6 == pytest.approx(result.losses[0], rel=1e-5)
    assert not all(torch.equal(best[name], tensor) for name, tensor in model.state_dict().items())


def test_mappings():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torchldr.StructuredLinear(16, 4, structure="low_rank", rank=2)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": cross_entropy(self.layer(x), labels)}

    batches = [{"x": x, "labels": y} for x, y in DataLoader(data(), batch_size=10)]
    losses = finetune(Model(), batches, epochs=2, lr=0.03).losses
    assert losses[1] < losses[0]


class IterTwice:
    """An iterable without a length."""

    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __iter__(self):
        return iter(self.items)


def test_bf16_trains_float32_weights_to_nearly_the_same():
    losses = []
    for amp in (None, torch.bfloat16):
        torch.manual_seed(3)
        model = small("low_rank")
        result = finetune(model, loader(), epochs=6, lr=0.02, amp=amp)
        assert all(p.dtype == torch.float32 for p in model.parameters())
        losses.append(result.losses)
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.03)
    assert losses[1][-1] < losses[1][0]


# Distillation.


def test_distillation_is_what_it_says():
    """One step's loss, by hand: targets, softened logits, and outputs of the replaced layer."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    model = copy.deepcopy(teacher)
    torchldr.compress_(model, torchldr.Structure("low_rank", rank=2))
    assert replaced_layers(model, teacher) == ["0"]
    x, y = torch.randn(10, 32), torch.randint(4, (10,))
    how = Distillation(task=0.7, logits=0.5, layers=0.3, temperature=3.0)
    with torch.no_grad():
        ours, theirs = model(x), teacher(x)
        soft = kl_div((ours / 3).log_softmax(-1), (theirs / 3).softmax(-1), reduction="batchmean")
        hidden, wanted = model[0](x), teacher[0](x)
        relative = (hidden - wanted).square().mean() / wanted.square().mean()
        expected = 0.7 * cross_entropy(ours, y) + 0.5 * 9 * soft + 0.3 * relative
    teacher.train()
    before = copy.deepcopy(teacher.state_dict())
    result = finetune(model, [(x, y)], lr=0.0, teacher=teacher, distillation=how)
    assert result.losses[0] == pytest.approx(float(expected), rel=1e-5)
    assert teacher.training
    assert all(torch.equal(before[k], v) for k, v in teacher.state_dict().items())
    assert not teacher[0]._forward_hooks
    assert not model[0]._forward_hooks


def test_distillation_brings_the_student_to_the_teacher():
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    model = copy.deepcopy(teacher)
    torchldr.compress_(model, torchldr.Structure("block_circulant", block_size=2))
    x = torch.randn(200, 32)
    gap = (model(x) - teacher(x)).square().mean().item()
    batches = [(part, torch.zeros(20, dtype=torch.long)) for part in x.split(20)]
    how = Distillation(task=0.0)
    finetune(model, batches, epochs=10, lr=5e-3, teacher=teacher, distillation=how)
    with torch.no_grad():
        assert (model(x) - teacher(x)).square().mean().item() < 0.5 * gap


def test_a_teacher_of_other_outputs_is_refused():
    teacher = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    torchldr.compress_(model, torchldr.Structure("low_rank", rank=4))
    batches = [(torch.randn(3, 32), torch.zeros(3, dtype=torch.long))]
    with pytest.raises(ValueError, match=r"logits of shape \(3, 4\), the teacher of shape \(3, 5\)"):
        finetune(model, batches, epochs=1, lr=1e-3, teacher=teacher)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.lstm, self.head = nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.attention(x, x, x, need_weights=False)[0])[0][:, -1])


def test_attention_and_recurrent_outputs_are_matched():
    torch.manual_seed(0)
    teacher = Reader()
    model = copy.deepcopy(teacher)
    torchldr.compress_(model, torchldr.Structure("low_rank", rank=4))
    assert {"attention", "lstm"} <= set(replaced_layers(model, teacher))
    x, how = torch.randn(10, 6, 32), Distillation(task=0.0, logits=0.0, layers=1.0)
    with torch.no_grad():
        outputs = []
        for one in (model, teacher):
            attended = one.attention(x, x, x, need_weights=False)[0]
            outputs.append((attended, one.lstm(attended)[0]))
        errors = [(a - b).square().mean() / b.square().mean() for a, b in zip(*outputs, strict=True)]
    batch = [(x, torch.zeros(10, dtype=torch.long))]
    result = finetune(model, batch, lr=0.0, teacher=teacher, distillation=how)
    assert result.losses[0] == pytest.approx(float(sum(errors)) / 2, rel=1e-4)


def test_a_loss_that_is_not_finite_is_an_error():
    def broken(output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output, target) * float("inf")

    with pytest.raises(FloatingPointError, match="the loss is not finite in pass 1"):
        finetune(small(), loader(), loss=broken)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs must be an int of at least 1, got 0"),
        ({"accumulate": 0}, "accumulate must be an int of at least 1, got 0"),
        ({"warmup": 1.0}, r"warmup must lie in \[0, 1\), got 1.0"),
        ({"amp": "bf16"}, "amp must be torch.bfloat16, torch.float16 or None, got 'bf16'"),
        ({"lr": -1}, "lr must be a number of at least 0, got -1"),
        ({"max_grad_norm": 0}, "max_grad_norm must be positive or None, got 0"),
        ({"distillation": Distillation()}, "distillation needs a teacher"),
    ],
)
def test_wrong_arguments(wrong: dict[str, object], message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        finetune(small(), loader(), **wrong)  # type: ignore[arg-type]


def test_loaders_that_do_not_serve():
    with pytest.raises(TypeError, match="a batch must be a mapping, or a tuple or list"):
        finetune(small(), [torch.randn(3, 16)])
    with pytest.raises(ValueError, match="the loader needs a length"):
        finetune(small(), IterTwice([]))
    with pytest.raises(ValueError, match="the loader gave no batch"):
        finetune(small(), [])

    class Once(IterTwice):
        def __len__(self) -> int:
            return 1

    with pytest.raises(ValueError, match="an iterator can be used only once"):
        finetune(small(), Once(iter([(torch.randn(2, 16), torch.zeros(2, dtype=torch.long))])), epochs=2)


class _Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return {"tokens": self.layer(x), "sentence_embedding": self.layer(x).mean(1)}


@pytest.mark.parametrize("output", [None, "tokens"])
@pytest.mark.parametrize("logits", [1.0, 0.0])
def test_an_encoder_distils_without_a_task(output, logits):
    """Batches are inputs alone and the output has no loss: with task=0 none is asked for."""
    torch.manual_seed(0)
    teacher = _Embedder()
    student = copy.deepcopy(teacher)
    torchldr.compress_(student, torchldr.Structure("low_rank", rank=16))
    batches = [{"x": torch.randn(8, 4, 32)} for _ in range(4)]

    def error() -> float:
        with torch.no_grad():
            x = batches[0]["x"]
            return (student(x)["tokens"] - teacher(x)["tokens"]).norm().item()

    how, before = torchldr.compress.Distillation(task=0, logits=logits, layers=1.0, output=output), error()
    torchldr.finetune(student, batches, epochs=10, lr=3e-3, teacher=teacher, distillation=how)
    assert error() < 0.95 * before


def test_outputs_that_are_not_there_are_named():
    teacher = _Embedder()
    student = copy.deepcopy(teacher)
    torchldr.compress_(student, torchldr.Structure("low_rank", rank=16))
    how = torchldr.compress.Distillation(task=0, output="nothing")
    with pytest.raises(TypeError, match="has no entry 'nothing': it has 'tokens', 'sentence_embedding'"):
        torchldr.finetune(student, [{"x": torch.randn(2, 4, 32)}], teacher=teacher, distillation=how)
