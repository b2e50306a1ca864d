"""C in integers: the reference in torch gives the bits of the C, on the host and on emulated machines."""

from __future__ import annotations

import copy
import math
import re
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import torchldr
from torchldr import StructuredGRU, StructuredLinear, StructuredLSTM, quantize_, structures, testing
from torchldr.core import rules
from torchldr.export import ExportError, to_c
from torchldr.export.c import IntegerReport
from torchldr.export.c.integer.scaling import Format, on_grid, rescaling
from torchldr.export.c.integer.writer import FEW
from torchldr.matrices.ldr_sd.integer import fixed_columns

from .test_c import EXAMPLE, MODELS, STRICT, OwnForward, SideBySide, command, drawn, needs_gcc

WARNINGS = [*STRICT, "-Wconversion"]
CLASSES = list(structures().values())
COUNT = 1000  # inputs, the first of them extreme

# Makes inputs by a generator that Python repeats, and prints a hash of what each layer gives.
HARNESS = """
#include <stdio.h>
#include "net.h"
static const int sizes[] = {%s};
static uint32_t hashes[sizeof sizes / sizeof sizes[0]];
static int8_t x[NET_INPUT_SIZE], y[NET_OUTPUT_SIZE];
int main(void)
{
    uint32_t state = 1u;
    for (int i = 0; i < %d; i++) {
        const int8_t *at = y;
        for (int j = 0; j < NET_INPUT_SIZE; j++) {
            state = state * 1664525u + 1013904223u;
            x[j] = (int8_t)((int)(state >> 24) - 128);
            if (i < 4)
                x[j] = (int8_t)((i < 2 ? i : (i + j) %% 2) != 0 ? 127 : -128);
        }
        net_run(x, y);
        for (unsigned k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
            for (int j = 0; j < sizes[k]; j++)
                hashes[k] = (hashes[k] ^ (uint32_t)(*at++ + 128)) * 16777619u;
    }
    for (unsigned k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        printf("%%08lx\\n", (unsigned long)hashes[k]);
    return 0;
}
"""


def inputs(size: int) -> torch.Tensor:
    """What the harness makes."""
    states, state = np.empty(COUNT * size, np.uint32), 1
    for i in range(len(states)):
        state = (state * 1664525 + 1013904223) % 2**32
        states[i] = state
    q = ((states >> 24).astype(np.int64) - 128).reshape(COUNT, size)
    j = np.arange(size)
    q[:4] = [np.where(pattern, 127, -128) for pattern in (0 * j, 0 * j + 1, j % 2, (1 + j) % 2)]
    return torch.from_numpy(q).to(torch.int8)


def hashes(y: torch.Tensor, sizes: list[int]) -> list[str]:
    """One a layer, over all inputs."""
    found = []
    for part in y.split(sizes, 1):
        value = 0
        for byte in (part.flatten().numpy().astype(np.int64) + 128).tolist():
            value = ((value ^ byte) * 16777619) % 2**32
        found.append(f"{value:08x}")
    return found


def on_host(folder: Path) -> str:
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command("gcc", *WARNINGS, *flags, folder / "net.c", folder / "main.c", "-o", folder / "run")
    return command("env", "ASAN_OPTIONS=detect_leaks=0", folder / "run")


def on_aarch64(folder: Path) -> str:
    files = [folder / "net.c", folder / "main.c"]
    command("aarch64-linux-gnu-gcc", *WARNINGS, "-O2", "-static", *files, "-o", folder / "arm")
    return command("qemu-aarch64", folder / "arm")


def on_cortex(folder: Path, flags: list[str], board: str, script: str) -> str:
    linked = ["-T", EXAMPLE / script, "-L", EXAMPLE, "-nostartfiles", "--specs=nano.specs"]
    linked += ["--specs=rdimon.specs", "-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments"]
    sources = [folder / "net.c", folder / "main.c", EXAMPLE / "startup.c"]
    elf = folder / f"{board}.elf"
    command("arm-none-eabi-gcc", *WARNINGS, "-Os", *flags, *sources, *linked, "-lm", "-o", elf)
    machine = ["-M", board, "-nographic", "-monitor", "none", "-serial", "none"]
    return command(
        "qemu-system-arm", *machine, "-semihosting-config", "enable=on,target=native", "-kernel", elf
    )


M0, M4 = ["-mcpu=cortex-m0", "-mthumb"], ["-mcpu=cortex-m4", "-mthumb"]
MACHINES: dict[str, tuple[list[str], Callable[[Path], str]]] = {
    "host": (["gcc"], on_host),
    "aarch64": (["aarch64-linux-gnu-gcc", "qemu-aarch64"], on_aarch64),
    "cortex-m0": (
        ["arm-none-eabi-gcc", "qemu-system-arm"],
        lambda folder: on_cortex(folder, M0, "microbit", "microbit.ld"),
    ),
    "cortex-m4": (
        ["arm-none-eabi-gcc", "qemu-system-arm"],
        lambda folder: on_cortex(folder, M4, "mps2-an386", "mps2.ld"),
    ),
}


def layers_of_every_class() -> list[StructuredLinear]:
    """Of every class: tall, wide and square, ranks 1 and 2, and what takes other ways."""
    made = [
        drawn(n, m, cls.name, rank if cls.ranked else None)
        for cls in CLASSES
        for m, n, rank in ((9, 20, 1), (20, 9, 2), (12, 12, 2))
    ]
    made += [
        drawn(5, 1, "ldr_sd", 1),
        drawn(1, 5, "toeplitz_like", 1),
        drawn(20, 30, "block_circulant", block_size=7),
        drawn(12, 10, "ldr_td", 2, normalize=True),
        drawn(12, 10, "cauchy_like", 2, learn_nodes=True),
        drawn(12, 10, "vandermonde_like", 2, learn_nodes=True),
        drawn(40, 40, "dense"),
        StructuredLinear(40, 40, structure="ldr_sd", rank=1),  # no corner
    ]
    for factor in (0.8, -1.25, 0.0):  # ranges of the recurrence, or with signs and zeros
        layer = drawn(40, 40, "ldr_sd", 1)
        with torch.no_grad():
            layer.subdiagonal_A[::3] *= factor
            layer.subdiagonal_C[::2] *= abs(factor)
        made.append(layer)
    return made


class Written(NamedTuple):
    layers: list[StructuredLinear]
    folder: Path
    report: IntegerReport
    calibration: torch.Tensor


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    torch.manual_seed(0)
    layers, folder = layers_of_every_class(), tmp_path_factory.mktemp("c") / "net"
    calibration = torch.randn(100, 40)
    report = to_c(
        SideBySide(layers),
        torch.zeros(1, 40),
        folder,
        arithmetic="integer",
        calibration=calibration,
        name="net",
    )
    assert isinstance(report, IntegerReport)
    sizes = ", ".join(str(layer.out_features) for layer in layers)
    (folder / "main.c").write_text(HARNESS % (sizes, COUNT))
    return Written(layers, folder, report, calibration)


@pytest.fixture(scope="module")
def expected(written: Written) -> list[str]:
    y = written.report.reference(inputs(40))
    return hashes(y, [layer.out_features for layer in written.layers])


@pytest.mark.parametrize("machine", MACHINES)
def test_every_class_is_the_reference_bit_for_bit(machine: str, written: Written, expected: list[str]):
    tools, run = MACHINES[machine]
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"no {missing[0]} here")
    found = run(written.folder).split()
    wrong = [layer for layer, a, b in zip(written.layers, found, expected, strict=True) if a != b]
    assert not wrong


def test_every_class_is_close_to_floats(written: Written):
    x = written.calibration  # others may saturate
    y = written.report.dequantize(written.report.reference(written.report.quantize(x)))
    start = 0
    for layer, row in zip(written.layers, written.report.layers, strict=True):
        found, start = y[:, start : start + layer.out_features], start + layer.out_features
        with torch.no_grad():
            right = layer(x[:, : layer.in_features])
        assert (found - right).norm() <= 0.03 * right.norm(), row


def test_every_class_has_integers_and_regimes_take_the_recurrence(written: Written):
    assert [cls.name for cls in CLASSES if rules.of_product("c_integer", cls) is None] == []
    forms = {(row.kind.split()[0], row.form.split(";")[0]) for row in written.report.layers}
    assert forms >= {
        ("ldr_sd", "shifts, exact"),
        ("ldr_sd", "recurrence in 16 bits, for the operators' range"),
        ("ldr_td", "recurrence in 16 bits"),
    }


def test_no_floating_point_and_the_sizes_that_are_told(written: Written):
    text = (written.folder / "net.c").read_text()
    assert not re.search(r"float|double|math\.h|\d\.\d|malloc", text)
    if shutil.which("gcc") is None:
        return
    command("gcc", *WARNINGS, "-Os", "-c", written.folder / "net.c", "-o", written.folder / "net.o")
    sections = command("size", "-A", written.folder / "net.o")
    bss = sum(int(n) for n in re.findall(r"^\.bss\s+(\d+)", sections, re.M))
    assert 0 <= bss - written.report.arena < 64
    constants = sum(int(n) for n in re.findall(r"^\.(?:data\.rel\.ro|rodata)\S*\s+(\d+)", sections, re.M))
    structs = len(written.layers) * 300  # pointers are wider on the host
    assert -structs / 10 < constants - written.report.flash < structs


# Rescaling and dense layers, as the TFLite specification has them.


class Row(NamedTuple):
    """Of a fully connected layer, by the specification, in whole numbers of Python."""

    weights: list[int]
    bias: int
    scale: float
    fraction: int  # the multiplier, of 31 bits
    exponent: int

    @property
    def multiplier(self) -> Fraction:
        return Fraction(self.fraction, 2**31) * Fraction(2) ** self.exponent


def rows_of(layer: nn.Linear, report: IntegerReport) -> list[Row]:
    (out, _), taken = report.outputs[0], report.input
    ratio, rows = out.scale / taken.scale, []
    for w, b in zip(layer.weight.detach(), layer.bias.detach(), strict=True):
        scale = float(w.abs().max() / 127)
        if layer.out_features >= FEW:  # a power of 2^(1/32), times the ratio
            scale = 2.0 ** -((math.floor(-32 * math.log2(scale / ratio) - 1) + 1) / 32) * ratio
        weights = [min(max(round(v / scale), -127), 127) for v in w.double().tolist()]
        fraction, exponent = math.frexp(scale / ratio)
        bias = round(float(b) / (taken.scale * scale))
        rows.append(Row(weights, bias, scale, round(fraction * 2**31), exponent))
    return rows


def sums_of(q: torch.Tensor, rows: list[Row], report: IntegerReport) -> list[list[int]]:
    """One list a row."""
    zero = report.input.zero
    return [
        [row.bias + sum(v * (a - zero) for v, a in zip(row.weights, x, strict=True)) for x in q.tolist()]
        for row in rows
    ]


def specified(q: torch.Tensor, layer: nn.Linear, report: IntegerReport) -> torch.Tensor:
    """The layer by the specification."""
    (out, _), rows, made = report.outputs[0], rows_of(layer, report), []
    for row, sums in zip(rows, sums_of(q, rows, report), strict=True):
        exact = [math.floor(total * row.multiplier + Fraction(1, 2)) + out.zero for total in sums]
        made.append([min(max(y, -128), 127) for y in exact])
    return torch.tensor(made).mT


@pytest.mark.parametrize("units", [17, FEW])
def test_dense_layers_are_those_of_the_specification(units: int, tmp_path: Path):
    torch.manual_seed(1)
    layer = nn.Linear(30, units)
    x = torch.randn(50, 30)
    report = to_c(layer, x[:1], tmp_path / "c", arithmetic="integer", calibration=x)
    q = inputs(30)[:200]
    assert torch.equal(report.reference(q).long(), specified(q, layer, report))
    assert ("multiplier_table" in (tmp_path / "c" / "model.c").read_text()) == (units >= FEW)


@pytest.mark.parametrize("spread", [1.0, 300.0, 1e6])
def test_rows_of_few_multipliers_have_scales_that_reach(spread: float):
    least = 0.3 * torch.rand(200).double() / torch.linspace(1, spread, 200)
    made = on_grid(least, Format(1.0))
    assert made is not None
    q = made.multipliers / 2.0**made.shifts
    assert (q >= least * (1 - 1e-9)).all()
    near = least > least.max() / 100  # eight octaves are 256 times
    assert (q[near] <= least[near] * 2 ** (1 / 32) * (1 + 1e-9)).all()
    assert ((made.codes >= 0) & (made.codes < 256)).all()


def test_rows_without_few_multipliers_have_their_own(tmp_path: Path):
    layer, x = nn.Linear(20, FEW, bias=False), torch.randn(40, 20)
    rounded = quantize_(copy.deepcopy(layer))  # its integers stay
    shifted = nn.Linear(20, FEW)
    nn.init.constant_(shifted.bias, 3e4)  # of more than 24 bits
    for i, each in enumerate((rounded, shifted)):
        report = to_c(each, x[:1], tmp_path / str(i), arithmetic="integer", calibration=x)
        assert "multiplier_table" not in (tmp_path / str(i) / "model.c").read_text()
        right = each(x)
        assert (report.dequantize(report.reference(report.quantize(x))) - right).norm() <= 0.02 * right.norm()


@pytest.mark.parametrize("factor", [0.0, 1e-4, 1e-12, 1e-35])
@pytest.mark.parametrize("units", [5, FEW, 0])
def test_rows_of_next_to_nothing_keep_their_bias(units: int, factor: float, tmp_path: Path):
    torch.manual_seed(0)
    x = 255 * torch.rand(60, 3, 6, 6)  # as a camera gives them
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, units)) if units else nn.Conv2d(3, 5, 3)
    layer = model[1] if units else model
    with torch.no_grad():
        layer.weight *= 0.01
        layer.weight[2] *= factor
        layer.bias[2] = -0.3
        right = model(x).flatten(1)
    report = to_c(model, x[:1], tmp_path / "c", arithmetic="integer", calibration=x)
    found = report.dequantize(report.reference(report.quantize(x)))
    assert (found - right).abs().max() <= 2.5 * report.outputs[0][0].scale
    if shutil.which("gcc"):
        files = [tmp_path / "c" / "model.c", tmp_path / "c" / "test.c"]
        command("gcc", *WARNINGS, *files, "-o", tmp_path / "test")
        assert command(tmp_path / "test").startswith("0 of ")


@pytest.mark.parametrize("which", [slice(None), 0])
def test_blocks_of_zeros_keep_their_bias(which: object, tmp_path: Path):
    torch.manual_seed(0)
    layer, x = StructuredLinear(24, 12, structure="block_circulant", block_size=6), 255 * torch.rand(60, 24)
    with torch.no_grad():
        layer.column *= 0.01
        layer.column[which] = 0
        layer.bias.copy_(torch.linspace(-1, 1, 12))
        right = layer(x)
    report = to_c(layer, x[:1], tmp_path / "c", arithmetic="integer", calibration=x)
    found = report.dequantize(report.reference(report.quantize(x)))
    assert (found - right).abs().max() <= 2.5 * report.outputs[0][0].scale


@pytest.mark.parametrize("name", ["S", "A"])
def test_rows_that_round_to_nothing_keep_their_bias(name: str, tmp_path: Path):
    torch.manual_seed(0)
    layer = StructuredLinear(60, 60, structure={"S": "fastfood", "A": "acdc"}[name]).requires_grad_(False)
    rows, x = getattr(layer, name), torch.randn(60, 60)
    rows.mul_(torch.randn(60))
    rows[:4] = torch.tensor([0.0, -1e-9, 1e-4, 0.01])
    layer.bias[0] = 0
    right = layer(x)
    report = to_c(layer, x[:1], tmp_path / "c", arithmetic="integer", calibration=x)
    found = report.dequantize(report.reference(report.quantize(x)))
    assert (found - right).abs().max() <= 3 * report.outputs[0][0].scale


@pytest.mark.parametrize("q", [0.9, 0.3, 1e-3, 3e-8, -0.2])
def test_rescaling_rounds_once(q: float):
    most = 10**5 if abs(q) > 0.1 else 2 * 10**9
    made = rescaling(torch.tensor([q]).double(), None, Format(1.0, 3, -32768, 32767), float(most))
    sums = torch.randint(-most, most, (1000,))
    multiplier = Fraction(int(made.multipliers[0]), 2 ** int(made.shifts[0]))
    assert abs(multiplier - Fraction(q)) <= abs(Fraction(q)) * Fraction(1, 2**24)
    right = [math.floor(multiplier * s + Fraction(1, 2)) + 3 for s in sums.tolist()]
    assert made(sums.unsqueeze(-1)).flatten().tolist() == [min(max(v, -32768), 32767) for v in right]


def test_sums_that_leave_32_bits_are_refused():
    for q, bound in ((1e-3, 2.0**31), (1.0, 2.0**30)):
        with pytest.raises(OverflowError, match="leave 32 bits"):
            rescaling(torch.tensor([q]), None, Format(1.0), bound)


# The recurrence.


@pytest.mark.parametrize("regime", testing.REGIMES)
@pytest.mark.parametrize("tridiagonal", [False, True])
def test_the_drift_of_the_recurrence_is_bounded(regime: str, tridiagonal: bool):
    m, k = 60, 60
    g = torch.Generator().manual_seed(0)
    lower = torch.cat((torch.tensor([0.5]), testing.REGIMES[regime](torch.ones(m - 1), g))).double()
    if regime == "1.05":
        lower[1:] = 1.02
    parts = [lower]
    if tridiagonal:
        parts += [0.01 * torch.randn(m, generator=g).double(), 0.01 * torch.randn(m, generator=g).double()]
    V = torch.randint(-127, 128, (2, m), generator=g).double()
    if regime == "uniform":
        with pytest.raises(OverflowError, match="grow"):
            fixed_columns([10 * part for part in parts], V, k, math.inf)
    made = fixed_columns(parts, V, k, math.inf)
    a, true = V * 2**made.start, []
    for _ in range(k):
        true.append(a)
        y = lower * a.roll(1, -1)
        if tridiagonal:
            y = y + parts[1] * a + parts[2] * a.roll(-1, -1)
        a = y
    error = (made.columns - torch.stack(true, -1)).abs()
    assert (error <= made.bound + 1e-6).all()
    assert made.columns.abs().max() <= 32767
    assert error[..., 1:].max() > 0 or regime in ("ones", "signs")


def test_columns_of_zeros_are_zeros():
    made = fixed_columns([torch.ones(5).double()], torch.zeros(2, 5).double(), 5, math.inf)
    assert not made.columns.any()


# Models.


class Sequence(nn.Module):
    """The output of a recurrent layer alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


INTEGER_MODELS = {name: made for name, made in MODELS.items() if name != "lstm"} | {
    "lstm": (lambda: Sequence(StructuredLSTM(6, 8, 3, bidirectional=True, which="both")), (5, 1, 6)),
    "one lstm": (lambda: Sequence(StructuredLSTM(6, 8, structure="acdc", batch_first=True)), (1, 9, 6)),
}  # fmt: skip
READER = """
#include <stdio.h>
#include "net.h"
static int8_t x[NET_INPUT_SIZE], y[NET_OUTPUT_SIZE];
int main(void)
{
    static const int8_t given[][NET_INPUT_SIZE] = {%s};
    for (unsigned i = 0; i < sizeof given / sizeof given[0]; i++) {
        for (int j = 0; j < NET_INPUT_SIZE; j++)
            x[j] = given[i][j];
        net_run(x, y);
        for (int j = 0; j < NET_OUTPUT_SIZE; j++)
            printf("%%d ", y[j]);
    }
    return 0;
}
"""


@needs_gcc
@pytest.mark.parametrize("name", INTEGER_MODELS)
def test_models(name: str, tmp_path: Path):
    torch.manual_seed(0)
    make, shape = INTEGER_MODELS[name]
    model = make().eval()
    calibration = torch.randn(60, *shape)
    report = to_c(
        model, calibration[0], tmp_path / "c", arithmetic="integer", calibration=calibration, name="net"
    )
    q = torch.cat((report.quantize(calibration[:20]), inputs(report.input_size)[:10]))
    rows = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in q.tolist())
    (tmp_path / "c" / "main.c").write_text(READER % rows)
    found = torch.tensor([int(v) for v in on_host(tmp_path / "c").split()]).reshape(len(q), -1)
    assert torch.equal(found, report.reference(q).long())
    with torch.no_grad():
        right = [torch.utils._pytree.tree_leaves(model(x)) for x in calibration[:20]]
    expected = torch.stack([torch.cat([t.flatten() for t in y]) for y in right])
    y = report.dequantize(report.reference(q[:20]))
    assert (y - expected).norm() <= 0.04 * expected.norm()


@needs_gcc
@pytest.mark.parametrize("cls", [StructuredLSTM, StructuredGRU])
def test_gates_whose_parts_are_large_and_cancel(cls: type[nn.Module], tmp_path: Path):
    torch.manual_seed(0)
    model, x = Sequence(cls(3, 4, batch_first=True)), torch.randn(60, 1, 5, 3)
    with torch.no_grad():
        model.layer.bias_ih_l0 += 40
        model.layer.bias_hh_l0 -= 40
    report = to_c(model, x[0], tmp_path / "c", arithmetic="integer", calibration=x, name="net")
    q = torch.cat((report.quantize(x), inputs(report.input_size)[:10]))
    rows = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in q.tolist())
    (tmp_path / "c" / "main.c").write_text(READER % rows)
    found = torch.tensor([int(v) for v in on_host(tmp_path / "c").split()]).reshape(len(q), -1)
    assert torch.equal(found, report.reference(q).long())
    with torch.no_grad():
        right = torch.stack([model(v).flatten() for v in x])
    assert (report.dequantize(found[:60]) - right).norm() <= 0.1 * right.norm()


def far_node() -> StructuredLinear:
    layer = StructuredLinear(1, 5, structure="vandermonde_like", rank=1, learn_nodes=True)
    nn.init.constant_(layer.nodes, 1e6)
    return layer


ALONE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    cls.name: (lambda cls=cls: drawn(12, 9, cls.name, 2 if cls.ranked else None), (1, 12)) for cls in CLASSES
} | {
    "one column of a far node": (far_node, (1, 1)),
    "clamp": (lambda: nn.Hardtanh(-0.5, 0.25), (1, 12)),
    "relu": (nn.ReLU, (1, 12)),
    "clamp of all": (lambda: nn.Hardtanh(-100, 100), (1, 12)),
    "sigmoid": (nn.Sigmoid, (1, 12)),
    "softmax": (lambda: nn.Softmax(-1), (1, 12)),
    "a number added": (lambda: OwnForward(lambda self, x: x + 1.5), (1, 12)),
    "halves added": (lambda: OwnForward(lambda self, x: x[:, :6] + x[:, 6:]), (1, 12)),
    "mean": (lambda: OwnForward(lambda self, x: x.mean(-1, keepdim=True)), (1, 12)),
    "minus the last": (lambda: OwnForward(lambda self, x: x - x[:, -1:]), (1, 12)),
    "flatten": (nn.Flatten, (1, 3, 4)),
    "convolution": (lambda: nn.Conv2d(1, 2, 2), (1, 1, 3, 4)),
    "pooling": (lambda: nn.MaxPool2d(2), (1, 1, 4, 4)),
    "lstm": (lambda: Sequence(StructuredLSTM(4, 4)), (3, 1, 4)),
    "gru": (lambda: Sequence(StructuredGRU(4, 4)), (3, 1, 4)),
}


@needs_gcc
@pytest.mark.parametrize("name", ALONE)
def test_what_stands_alone_compiles_without_a_warning(name: str, tmp_path: Path):
    """The C has what it uses and no more: nothing else of the model hides what is unused."""
    torch.manual_seed(0)
    make, shape = ALONE[name]
    model, calibration = make().eval(), torch.randn(30, *shape)
    report = to_c(
        model, calibration[0], tmp_path / "c", arithmetic="integer", calibration=calibration, name="net"
    )
    folder = tmp_path / "c"
    flags = [*WARNINGS, "-fsanitize=undefined", "-fno-sanitize-recover=all"]
    command("gcc", *flags, folder / "net.c", folder / "test.c", "-o", folder / "test")
    assert command(folder / "test").startswith("0 of ")
    with torch.no_grad():
        right = torch.stack([model(x).flatten() for x in calibration])
    y = report.dequantize(report.reference(report.quantize(calibration)))
    assert (y - right).norm() <= 0.04 * right.norm()


@needs_gcc
def test_the_files(tmp_path: Path):
    model = nn.Sequential(StructuredLinear(30, 30, structure="ldr_sd", rank=2), nn.ReLU(), nn.Linear(30, 4))
    batches = [(torch.randn(16, 30), torch.zeros(16)) for _ in range(3)]  # as of a DataLoader
    report = to_c(model, torch.zeros(1, 30), tmp_path / "c", arithmetic="integer", calibration=batches)
    folder = tmp_path / "c"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "model.c", "model.h", "test.c"]
    command("gcc", *WARNINGS, folder / "model.c", folder / "test.c", "-o", folder / "test")
    assert command(folder / "test") == "0 of 4 integers differ\n"
    header = (folder / "model.h").read_text()
    assert f"#define MODEL_ARENA_BYTES {report.arena} " in header
    (folder / "main.c").write_text(
        '#include <stdio.h>\n#include "model.h"\nint main(void)\n{\n'
        '    for (int i = -400; i < 400; i++)\n        printf("%d ", MODEL_QUANTIZE((float)i / 64.0f));\n'
        "    return 0;\n}\n"
    )
    command("gcc", *STRICT, folder / "main.c", "-o", folder / "macro")
    x = torch.arange(-400, 400).repeat_interleave(30).reshape(-1, 30) / 64
    found = torch.tensor([int(v) for v in command(folder / "macro").split()])
    assert (found - report.quantize(x)[:, 0]).abs().max() <= 1  # the macro divides in float32
    assert set(found.tolist()) >= {-128, 127}
    assert '"input_size": 30' in report.to_json()


@needs_gcc
def test_scales_that_are_whole_numbers(tmp_path: Path):
    x = torch.arange(256.0).reshape(-1, 1)  # a byte, as a sensor gives it
    to_c(nn.ReLU(), x[:1], tmp_path / "c", arithmetic="integer", calibration=x)
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "model.h"\nint main(void)\n{\n    for (int i = 0; i < 256; i++) {\n'
        "        int8_t q = MODEL_QUANTIZE(i), y;\n        model_run(&q, &y);\n"
        '        printf("%g ", (double)MODEL_DEQUANTIZE(y));\n    }\n    return 0;\n}\n'
    )
    folder = tmp_path / "c"
    command("gcc", *STRICT, f"-I{folder}", folder / "model.c", tmp_path / "main.c", "-o", tmp_path / "run")
    assert command(tmp_path / "run").split() == [str(i) for i in range(256)]


def test_inputs_saturate_and_nan_is_an_error(tmp_path: Path):
    report = to_c(
        nn.Linear(3, 2),
        torch.zeros(1, 3),
        tmp_path / "c",
        arithmetic="integer",
        calibration=torch.randn(9, 3),
    )
    assert report.quantize(torch.tensor([[math.inf, -math.inf, 0.0]])).tolist() == [
        [127, -128, report.input.zero]
    ]
    with pytest.raises(ValueError, match="NaN, which has no integer"):
        report.quantize(torch.tensor([[math.nan, 0.0, 0.0]]))
    for q in (torch.zeros(1, 3), torch.full((1, 3), 300)):
        with pytest.raises(TypeError, match="use quantize"):
            report.reference(q)
    for method, x in (
        ("quantize", torch.zeros(2, 4)),
        ("reference", torch.zeros(1, 4, dtype=torch.int8)),
        ("dequantize", torch.zeros(1, 3, dtype=torch.int8)),
    ):
        with pytest.raises(ValueError, match=f"{method}: expected .* got shape"):
            getattr(report, method)(x)


def test_inputs_are_batched_as_the_calibration_is(tmp_path: Path):
    model, x = Sequence(StructuredGRU(4, 3)), torch.randn(5, 60, 4)  # steps come first
    report = to_c(model, x[:, :1], tmp_path / "c", arithmetic="integer", calibration=x)
    rows = x.movedim(1, 0)
    q = report.quantize(x)
    for same in (rows.unsqueeze(2), rows.flatten(1), rows.unsqueeze(2).numpy()):
        assert torch.equal(report.quantize(same), q)
    with torch.no_grad():
        right = model(x).movedim(1, 0).flatten(1)
    assert (report.dequantize(report.reference(q)) - right).norm() <= 0.04 * right.norm()


def test_a_quantized_model_keeps_its_integers(tmp_path: Path):
    model = StructuredLinear(16, 16, structure="low_rank", rank=2).eval()
    x = torch.randn(20, 16)
    texts = []
    for i, each in enumerate((model, quantize_(copy.deepcopy(model)))):
        to_c(each, x[:1], tmp_path / str(i), arithmetic="integer", calibration=x)
        text = (tmp_path / str(i) / "model.c").read_text()
        texts.append(re.search(r"product_\d+_G\[\] = \{(.*?)\}", text, re.DOTALL)[1])
    assert texts[0] == texts[1]


def test_a_class_without_integers_is_dense(tmp_path: Path):
    class Twice(torchldr.LowRank):
        def factors(self):
            return [(2 * left, right) for left, right in super().factors()]

        def _matmul(self, x):
            return 2 * super()._matmul(x)

    layer, x = StructuredLinear(8, 6, structure=Twice).eval(), torch.randn(30, 8)
    report = to_c(layer, x[:1], tmp_path / "c", arithmetic="integer", calibration=x)
    assert report.layers[0].form.startswith("dense: the class has no integers")
    right = x @ layer.matrix().to_dense().detach().mT + layer.bias.detach()
    assert (report.dequantize(report.reference(report.quantize(x))) - right).norm() <= 0.03 * right.norm()


def wild() -> StructuredLinear:
    layer = drawn(60, 60, "ldr_sd", 1)
    with torch.no_grad():
        layer.subdiagonal_A[::2] *= 3
    return layer


def dead() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    nn.init.constant_(model[0].bias, -100.0)
    return model


def still(scale: float) -> nn.Module:
    model = Sequence(StructuredGRU(4, 4, bias=False))
    with torch.no_grad():
        model.layer.weight_ih_l0.G *= scale
    return model


def many_inputs() -> nn.Module:
    model = nn.Linear(200_000, 2)
    nn.init.constant_(model.weight, 1.0)
    return model


class ManyExponentials(nn.Softmax):
    in_features = 70_000


@pytest.mark.parametrize(
    ("model", "calibration", "options", "error", "says"),
    [
        (nn.Linear(4, 4), None, {}, ValueError, "needs calibration"),
        (nn.Linear(4, 4), torch.randn(9, 4), {"weights": "float32"}, ValueError, 'takes weights="int8"'),
        (nn.Linear(4, 4), torch.randn(9, 4), {"nan": "error"}, ValueError, "integers have no NaN"),
        (nn.Linear(4, 4), torch.randn(9, 4), {"arithmetic": "float"}, ValueError, "floats need none"),
        (nn.Linear(4, 4), torch.randn(9, 4), {"arithmetic": "fixed"}, ValueError, "one of float, integer"),
        (nn.Linear(4, 4), torch.zeros(9, 4), {}, ExportError, "never moves the input"),
        (dead(), torch.randn(9, 4), {}, ExportError, "never moves node"),
        (nn.Linear(4, 4), torch.randn(9, 5), {}, ValueError, r"batch of shape \(9, 5\)"),
        (nn.Linear(4, 4), [], {}, ValueError, "no inputs"),
        (nn.Linear(4, 4), ["a"], {}, TypeError, "must be tensors, got str"),
        (nn.Linear(4, 4), torch.full((9, 4), math.nan), {}, ValueError, "not finite"),
        (nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(9, 4), {}, ExportError, "'gelu' .* has no C"),
        (OwnForward(lambda self, x: x * x), torch.randn(9, 4), {}, ExportError, "two tensors .* added"),
        (wild(), torch.randn(9, 60), {}, ExportError, "has no C in integers: powers of an operator grow"),
        (Sequence(StructuredGRU(4, 4, proj_size=0)), torch.zeros(9, 3, 1, 4), {}, ExportError, "never moves"),
        (StructuredLSTM(4, 4), torch.randn(9, 3, 1, 4), {}, ExportError, "gives its cell state"),
        (still(0.0), torch.randn(9, 3, 1, 4), {}, ExportError, "never moves the states of layer"),
        (still(1e-9), torch.randn(9, 3, 1, 4), {}, ExportError, "its states are below"),
        (many_inputs(), torch.randn(2, 200_000), {}, ExportError, "sums of up to .*e.09 leave 32 bits"),
        (ManyExponentials(-1), torch.randn(2, 70_000), {}, ExportError, "more than 65,536 exponentials"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_clear_error(model, calibration, options, error, says, tmp_path: Path):
    shape = (
        (3, 1, 4) if isinstance(model, StructuredLSTM | Sequence) else (1, getattr(model, "in_features", 4))
    )
    with pytest.raises(error, match=says):
        to_c(
            model.eval(),
            torch.zeros(shape),
            tmp_path / "c",
            calibration=calibration,
            **{"arithmetic": "integer", **options},
        )
    assert not list(tmp_path.iterdir())
