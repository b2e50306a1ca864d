"""C against PyTorch: every class, on the host under sanitizers and on an emulated Cortex-M4."""

from __future__ import annotations

import copy
import math
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import torchldr
from torchldr import StructuredGRU, StructuredLinear, StructuredLSTM, quantize_, structures
from torchldr.core import rules
from torchldr.export import CReport, ExportError, to_c
from torchldr.export.c.writer import fft_factors, smooth_length
from torchldr.forecast import LinearForecaster

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "microcontroller"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
CLASSES = list(structures().values())
SHAPES = [(1, 1), (1, 5), (5, 1), (12, 12), (9, 20), (20, 9)]
RANKS = (1, 2, 3, 4)
BOUND = 1e-4  # of |factors||x|

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")
EMULATOR = all(map(shutil.which, ("arm-none-eabi-gcc", "qemu-system-arm")))
needs_emulator = pytest.mark.skipif(not EMULATOR, reason="no gcc-arm-none-eabi or qemu-system-arm here")

# Prints the bits of all outputs: no digit is lost on the way.
HARNESS = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "net.h"
static const float x[] = {%s};
int main(void)
{
    static float y[NET_OUTPUT_SIZE];
    net_run(x, y);
    for (int i = 0; i < NET_OUTPUT_SIZE; i++) {
        uint32_t bits;
        memcpy(&bits, &y[i], 4);
        printf("%%08lx\\n", (unsigned long)bits);
    }
    return 0;
}
"""


def command(*arguments: object) -> str:
    ran = subprocess.run([*map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def on_host(folder: Path) -> str:
    flags = ["-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command("gcc", *STRICT, *flags, folder / "net.c", folder / "main.c", "-lm", "-o", folder / "run")
    # The C allocates nothing, and to look for leaks takes seconds on some machines.
    return command("env", "ASAN_OPTIONS=detect_leaks=0", folder / "run")


def on_cortex_m4(folder: Path) -> str:
    flags = re.search(r"-mcpu=cortex-m4.*", (EXAMPLE / "Makefile").read_text())[0].split()
    linked = [
        "-T",
        EXAMPLE / "mps2.ld",
        "-L",
        EXAMPLE,
        "-nostartfiles",
        "--specs=rdimon.specs",
        "-Wl,--no-warn-rwx-segments",
    ]
    sources = [folder / "net.c", folder / "main.c", EXAMPLE / "startup.c"]
    command("arm-none-eabi-gcc", *STRICT, "-O2", *flags, *sources, *linked, "-lm", "-o", folder / "run.elf")
    machine = ["-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none"]
    semihosting = ["-semihosting-config", "enable=on,target=native"]
    return command("qemu-system-arm", *machine, *semihosting, "-kernel", folder / "run.elf")


def write_c(model: nn.Module, x: torch.Tensor, folder: Path, weights: str) -> CReport:
    """The C of a model, with a program that prints its answer to an input."""
    report = to_c(model, x, folder, weights=weights, name="net")
    numbers = ", ".join(f"{v!r}f" for v in x.double().flatten().tolist())
    (folder / "main.c").write_text(HARNESS % numbers)
    return report


def answer(folder: Path, run: Callable[[Path], str] = on_host) -> torch.Tensor:
    """What the C in a folder prints."""
    bits = [int(line, 16) for line in run(folder).split()]
    return torch.tensor(struct.unpack(f"<{len(bits)}f", struct.pack(f"<{len(bits)}I", *bits)))


def run_c(model: nn.Module, x: torch.Tensor, folder: Path, weights: str) -> torch.Tensor:
    """What the C of a model answers."""
    write_c(model, x, folder, weights)
    return answer(folder)


class SideBySide(nn.Module):
    """Layers that each see the first numbers of the input."""

    def __init__(self, layers: list[StructuredLinear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x[:, : layer.in_features]) for layer in self.layers]


def drawn(n: int, m: int, name: str, rank: int | None = None, **options: object) -> StructuredLinear:
    """A layer whose operators have left their start."""
    layer = StructuredLinear(n, m, structure=name, rank=rank, **options)
    with torch.no_grad():
        layer.structure.draw_operators_(dict(layer.named_parameters()))
    return layer


def regimes() -> list[StructuredLinear]:
    """What takes other ways than small layers near their start do."""
    layers = [
        drawn(40, 40, "ldr_sd", 2),  # Fourier transforms
        drawn(30, 50, "ldr_sd", 3),
        drawn(70, 60, "toeplitz_like", 2),
        drawn(45, 45, "hankel_like", 1),
        drawn(64, 64, "block_circulant", block_size=64),
        drawn(250, 200, "circulant"),
        drawn(200, 320, "block_circulant", block_size=160),
        drawn(11, 13, "acdc"),  # a prime: no short transform
        drawn(12, 10, "ldr_td", 2, normalize=True),
        drawn(12, 10, "cauchy_like", 2, learn_nodes=True),
        drawn(12, 10, "vandermonde_like", 2, learn_nodes=True),
        drawn(20, 30, "block_circulant", block_size=7),
    ]
    for factor in (0.5, 1.5, 0.0):  # ranges that transforms in float32 do not bear
        layer = drawn(60, 60, "ldr_sd", 1)
        with torch.no_grad():
            layer.subdiagonal_A[::2] *= factor
        layers.append(layer)
    return [*layers, *drifted()]


def drifted() -> list[StructuredLinear]:
    """Layers whose A is scaled by a factor and C by its inverse, which leaves the matrix as it is."""
    layers = []
    for name, n, factor, zero in (
        ("ldr_sd", 512, 1.2, False),
        ("ldr_sd", 256, 1.5, False),
        ("ldr_sd", 256, 1.5, True),
        ("ldr_td", 256, 1.5, False),
    ):
        layer = drawn(n, n, name, 1)
        with torch.no_grad():
            if name == "ldr_sd":
                layer.subdiagonal_A.sub_(1).mul_(0.1).add_(1)
                layer.subdiagonal_C.sub_(1).mul_(0.1).add_(1)
            if zero:
                layer.subdiagonal_A[100] = 0
                layer.subdiagonal_C[40] *= -1
            for part, p in layer.named_parameters():
                if part.endswith(("_A", "_C")):
                    p.mul_(factor if part.endswith("_A") else 1 / factor)
        layers.append(layer)
    return layers


def small_layers() -> list[StructuredLinear]:
    return [
        drawn(n, m, cls.name, rank)
        for cls in CLASSES
        for m, n in SHAPES
        for rank in ((None,) if not cls.ranked else RANKS if m == n else (1 if min(m, n) == 1 else 3,))
        if rank is None or rank <= min(m, n)
    ]


def check_layers(layers: list[StructuredLinear], x: torch.Tensor, y: torch.Tensor) -> None:
    start = 0
    for layer in layers:
        M, v = layer.matrix().to(torch.float64), x[0, : layer.in_features].double()
        bias = layer.bias.detach().double()
        found, start = y[start : start + layer.out_features].double(), start + layer.out_features
        allowed = BOUND * (M.magnitude() @ v.abs() + bias.abs())
        assert ((found - M.to_dense() @ v - bias).abs() <= allowed).all(), layer


@needs_gcc
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_every_class(weights: str, tmp_path: Path):
    """On the host; those in int8 also on a Cortex-M4, where its emulator is installed."""
    small, others = small_layers(), regimes()
    layers = [*small, *others]
    model, x = SideBySide(layers), torch.randn(1, max(layer.in_features for layer in layers))
    report = write_c(model, x, tmp_path / "net", weights)
    if weights == "int8":
        quantize_(model)
    check_layers(layers, x, answer(tmp_path / "net", on_host))
    if weights == "int8" and EMULATOR:
        check_layers(layers, x, answer(tmp_path / "net", on_cortex_m4))
    ways = [(row.kind.split()[0], row.form.split()[0]) for row in report.layers]
    assert set(ways[len(small) :]) - set(ways[: len(small)]) >= {
        ("ldr_sd", "transforms"),
        ("toeplitz_like", "transforms"),
        ("circulant", "transforms"),
        ("block_circulant", "transforms"),
        ("ldr_sd", "recurrence,"),
        ("acdc", "sums"),
    }


def test_every_class_has_c_of_its_own():
    assert [cls.name for cls in CLASSES if rules.of_product("c", cls) is None] == []


def test_the_range_of_the_operators_decides(tmp_path: Path):
    near, far = drawn(128, 128, "ldr_sd", 2), drawn(128, 128, "ldr_sd", 2)
    with torch.no_grad():
        near.subdiagonal_A.fill_(1), near.subdiagonal_C.fill_(1)
        far.subdiagonal_A.uniform_(0.5, 1.5)
    forms = [to_c(m, torch.randn(1, 128), tmp_path / n).layers[0].form for m, n in ((near, "a"), (far, "b"))]
    assert forms == ["transforms of length 256", "recurrence, for the operators' range"]
    told = [str(to_c(m, torch.randn(1, 128), tmp_path / n)) for m, n in ((near, "c"), (far, "d"))]
    assert ["train with torchldr.compress.parameter_groups" in text for text in told] == [False, True]


def test_a_common_scale_costs_nothing(tmp_path: Path):
    """Plain Adam drifts along it, and the recurrence takes several times the multiplications."""
    layer = drifted()[0]
    form = to_c(layer, torch.randn(1, 512), tmp_path / "c").layers[0].form
    assert form.startswith("transforms")


def test_transform_lengths_are_smooth():
    assert [smooth_length(n) for n in (1, 11, 784, 1025)] == [1, 12, 784, 1029]
    assert all(math.prod(fft_factors(smooth_length(n))) >= n for n in range(1, 300))


class Residual(nn.Module):
    """Nodes that are no layers, and a weight that no layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = StructuredLinear(32, 32, structure="ldr_sd", rank=2), nn.Linear(32, 32)
        self.weight = nn.Parameter(torch.randn(8, 32))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.a(x))
        h = torch.tanh(h + 0.5 * self.b(h) + 1.0) + x
        return linear(h, self.weight).softmax(-1), torch.sigmoid(h) / 3


class Views(nn.Module):
    """Axes of one entry that move, and parts that lie together."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).view(1, 2, 2).permute(1, 0, 2).transpose(0, 1)[0, -1]


class Clamps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = nn.functional.relu6(3 * self.a(x))
        g = nn.functional.hardtanh(self.b(h))
        return (g + h).clamp(min=0.2), torch.clamp(g, -0.1, 0.3), self.b(h).clamp(max=0.1), h.clamp(0.5, 2)


class Last(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, (3, 2), padding="same", dilation=2, groups=2, bias=False), nn.ReLU(inplace=True),
        nn.Conv2d(8, 4, 3, stride=2), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.Flatten(), nn.Dropout(),
        StructuredLinear(36, 10, structure="toeplitz_like"), nn.Softmax(-1),
    )  # fmt: skip


class Rows(nn.Module):
    """Numbers of rows along the last axis, taken off and added, on either side."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        h = torch.tanh(x)
        return [
            h - h[..., :1],  # over what it reads
            h.mean(-1, keepdim=True) + x,
            x - h,
            x - x.mean(-1, keepdim=True) - 0.5,
            h[..., 1].sigmoid().unsqueeze(-1) - h[..., :1],
        ]


def forecast(center: str) -> nn.Module:
    series = torch.randn(600).cumsum(0) / 5
    return LinearForecaster(24, 9, rank=2, ridge=0.1, holdout=0, center=center).fit(series).module()


def less_its_first(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Rows less numbers that stand in the first row: nothing may write there before."""
    x = x.sigmoid()
    return x - x[0, 0, :3].reshape(3, 1)


MODELS = {
    "convolutions": (convolutions, (1, 2, 20, 18)),
    "residual": (Residual, (1, 32)),
    "lstm": (lambda: StructuredLSTM(6, 8, 3, bidirectional=True, which="both"), (5, 1, 6)),
    "gru": (lambda: StructuredGRU(6, 8, 2, which="hidden", bias=False, structure="low_rank"), (4, 6)),
    "last step": (lambda: Last(StructuredGRU(6, 8, batch_first=True, bidirectional=True)), (1, 5, 6)),
    "steps": (lambda: nn.Sequential(StructuredLinear(6, 7, structure="circulant"), nn.ReLU()), (1, 4, 6)),
    "views": (Views, (1, 4)),
    "clamps": (Clamps, (1, 6)),
    "nothing": (nn.Flatten, (1, 2, 3)),
    "rows": (Rows, (1, 6)),
    "rows less their own": (lambda: OwnForward(less_its_first), (1, 3, 4)),
    "forecast by the last": (lambda: forecast("last"), (1, 24)),
    "forecast by the mean": (lambda: forecast("mean"), (1, 24)),
}


@needs_gcc
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, tmp_path: Path):
    """Those with weights of a kind that no other has also in int8."""
    make, shape = MODELS[name]
    model, x = make().eval(), torch.randn(shape)
    for weights in ("float32", "int8") if name in ("convolutions", "residual", "lstm") else ("float32",):
        y = run_c(model, x, tmp_path / weights, weights)
        if weights == "int8":
            quantize_(model)
        with torch.no_grad():
            right = torch.utils._pytree.tree_leaves(model(x))
        torch.testing.assert_close(y, torch.cat([t.flatten() for t in right]), rtol=1e-5, atol=1e-5)


class Broken(nn.Module):
    """All nonlinear nodes, each on its own copy of a sensor's image."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        pooled = nn.functional.max_pool2d(x, 3, 2, 1)
        smooth = [x.softmax(-1), x.sigmoid(), x.tanh()]
        return [
            x.relu(),
            pooled,
            *smooth,
            x + x.relu(),
            pooled.relu(),
            x.clamp(-1, 1),
            nn.functional.relu6(x),
        ]


@needs_gcc
@pytest.mark.parametrize("place", [0, 7, 29, None])
def test_nan_goes_through_as_in_pytorch(place: int | None, tmp_path: Path):
    model, x = Broken(), torch.randn(1, 1, 5, 6)
    if place is not None:
        x.view(-1)[place] = math.nan
    x.view(-1)[11], x.view(-1)[16] = math.inf, -math.inf
    write_c(model, x, tmp_path / "c", "float32")
    main = tmp_path / "c" / "main.c"
    main.write_text(
        "#include <math.h>\n"
        + re.sub(r"(-?)(nan|inf)f", r"\1\2", main.read_text())
        .replace("nan", "NAN")
        .replace("inf,", "INFINITY,")
    )
    right = torch.cat([t.flatten() for t in model(x)])
    torch.testing.assert_close(answer(tmp_path / "c"), right, equal_nan=True)
    assert right.isnan().any() or place is None


@needs_gcc
def test_nan_as_an_error_code(tmp_path: Path):
    to_c(nn.ReLU(), torch.zeros(1, 3), tmp_path / "c", name="net", nan="error")
    (tmp_path / "c" / "main.c").write_text(
        """#include <math.h>
#include <stdio.h>
#include "net.h"
int main(void)
{
    float x[3] = {1.0f, -2.0f, INFINITY}, y[3];
    printf("%d ", net_run(x, y));
    x[1] = NAN;
    printf("%d\\n", net_run(x, y));
    return 0;
}
"""
    )
    assert on_host(tmp_path / "c").split() == ["0", "1"]


@needs_gcc
def test_the_test_program_notices_a_nan_in_any_place(tmp_path: Path):
    to_c(nn.Flatten(), torch.zeros(1, 3), tmp_path / "c", weights="float32")
    text = (tmp_path / "c" / "model.c").read_text()
    (tmp_path / "c" / "model.c").write_text(text.replace("y[i] = x[i]", "y[i] = i ? x[i] : NAN"))
    command(
        "gcc", *STRICT, tmp_path / "c" / "model.c", tmp_path / "c" / "test.c", "-lm", "-o", tmp_path / "t"
    )
    assert subprocess.run([tmp_path / "t"], capture_output=True).returncode == 1


@needs_gcc
def test_a_rounded_model_keeps_its_integers(tmp_path: Path):
    model = quantize_(StructuredLinear(32, 32, structure="ldr_sd", rank=2).eval())
    to_c(model, torch.randn(1, 32), tmp_path / "c")
    text = (tmp_path / "c" / "model.c").read_text()
    found = re.search(r"product_\d+_G\[\] = \{(.*?)\}", text, re.DOTALL)
    numbers = [int(n) for n in found[1].split(",")]
    assert numbers == model.parametrizations.G.original1.flatten().tolist()


@needs_gcc
def test_the_test_vector_and_the_report(tmp_path: Path):
    model = nn.Sequential(
        StructuredLinear(100, 100, structure="ldr_sd", rank=2), nn.ReLU(), nn.Linear(100, 10)
    )
    report = to_c(model, torch.randn(1, 100), tmp_path / "c", name="net2")
    folder = tmp_path / "c"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "net2.c", "net2.h", "test.c"]
    command("gcc", *STRICT, "-Os", "-c", folder / "net2.c", "-o", folder / "net2.o")
    command("gcc", *STRICT, folder / "net2.o", folder / "test.c", "-lm", "-o", folder / "test")
    assert "largest difference" in command(folder / "test")
    # Flash: what the compiler puts into read-only data, but for padding and structs. RAM: zeros.
    sections = dict(
        re.findall(r"^(\.rodata\S*|\.bss)\s+(\d+)", command("size", "-A", folder / "net2.o"), re.M)
    )
    constants = sum(int(size) for name, size in sections.items() if name.startswith(".rodata"))
    assert 0 <= constants - report.flash < 400
    assert abs(int(sections[".bss"]) - report.arena) < 64
    assert report.flash == sum(row.flash for row in report.layers) + 4 * 101 + 3  # a table of sines
    assert [row.name for row in report.layers] == ["0", "2"]
    assert "ldr_sd 100 x 100, rank 2: transforms of length 200" in str(report)
    assert "| 0 | ldr_sd 100 x 100, rank 2 |" in (folder / "README.md").read_text()
    assert '"weights": "int8"' in report.to_json()
    assert {row["layer"] for row in report.rows()} == {"0", "2"}


@needs_gcc
def test_a_class_without_c_falls_back_to_its_dense_matrix(tmp_path: Path):
    class Doubled(torchldr.LowRank):
        def factors(self):
            return [(2 * left, right) for left, right in super().factors()]

        def _matmul(self, x):
            return 2 * super()._matmul(x)

    layer = StructuredLinear(8, 6, structure=Doubled).eval()
    report = to_c(layer, torch.randn(1, 8), tmp_path / "report")
    assert report.layers[0].form == "dense matrix in float32: the class has no C"
    x = torch.randn(1, 8)
    y = run_c(layer, x, tmp_path / "c", "int8")
    torch.testing.assert_close(y, quantize_(copy.deepcopy(layer))(x)[0].detach(), rtol=1e-5, atol=1e-6)


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


class WithState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = StructuredGRU(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, torch.zeros(1, 1, 4))[0]


class OwnForward(nn.Module):
    """A forward pass of one's own, with a layer and a buffer."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.layer, self.written = nn.Linear(4, 4), forward
        self.register_buffer("seen", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.written(self, x)


@needs_gcc
def test_what_is_changed_in_place_is_seen_through_views(tmp_path: Path):
    def forward(self, x):
        y = self.layer(x)
        view = y.view(2, 2)
        y.relu_()
        y += 1
        return view

    model, x = OwnForward(forward), torch.randn(1, 4)
    torch.testing.assert_close(run_c(model, x, tmp_path / "c", "float32"), model(x).detach().flatten())


@needs_gcc
def test_a_number_in_a_tensor_with_more_axes(tmp_path: Path):
    number = torch.full((1, 1, 1), 2.0)
    model, x = OwnForward(lambda self, x: torch.softmax(self.layer(x) * number, 2)), torch.randn(1, 4)
    torch.testing.assert_close(run_c(model, x, tmp_path / "c", "float32"), model(x).detach().flatten())
    model = OwnForward(lambda self, x: torch.softmax(self.layer(x) * number, 1))
    with pytest.raises(ExportError, match="must be over the last axis"):
        to_c(model, x, tmp_path / "d")


@needs_gcc
def test_softmax_of_a_single_number(tmp_path: Path):
    model = OwnForward(lambda self, x: torch.softmax(self.layer(x)[0, 0], 0))
    assert run_c(model, torch.randn(1, 4), tmp_path / "c", "float32").tolist() == [1.0]


@needs_gcc
def test_a_model_that_changes_its_input(tmp_path: Path):
    """What `test.c` gives to the model is the input as it was."""
    to_c(
        OwnForward(lambda self, x: self.layer(x.add_(1))),
        torch.randn(1, 4),
        tmp_path / "c",
        weights="float32",
    )
    subprocess.run(["gcc", "test.c", "model.c", "-o", "test", "-lm"], cwd=tmp_path / "c", check=True)
    subprocess.run([tmp_path / "c" / "test"], check=True)


@pytest.mark.parametrize(
    ("model", "x", "error", "says"),
    [
        (nn.Linear(4, 4), torch.zeros(2, 4), ExportError, "one input at a time"),
        (nn.Linear(4, 4), torch.zeros(1, 4).double(), TypeError, "must be float32"),
        (nn.Linear(4, 4).double(), torch.zeros(1, 4), TypeError, "weight has dtype torch.float64"),
        (nn.Linear(4, 4).bfloat16(), torch.zeros(1, 4), TypeError, "model.float()"),
        (DataDependent(), torch.randn(1, 4), ExportError, "to_c: "),
        (
            nn.Sequential(nn.Linear(4, 4), nn.GELU()),
            torch.zeros(1, 4),
            ExportError,
            "'gelu' .* of 1 has no C",
        ),
        (nn.BatchNorm1d(4), torch.zeros(1, 4), ExportError, "has no C"),
        (nn.Linear(4, 4), torch.zeros(1, 5), ExportError, r"fails on an input of \(1, 5\): mat1 and mat2"),
        (nn.Conv2d(1, 1, 1).eval(), torch.zeros(2, 1, 3, 3), ExportError, "first size must be 1"),
        (nn.Softmax(1), torch.zeros(1, 4, 3), ExportError, "last axis"),
        (WithState(), torch.zeros(3, 1, 4), ExportError, "layer is given a state"),
        (StructuredLSTM(4, 4, proj_size=2), torch.zeros(3, 1, 4), ExportError, "proj_size"),
        (StructuredLSTM(4, 4), torch.zeros(3, 2, 4), ExportError, "batch of 1"),
        (nn.Bilinear(4, 4, 4), (torch.zeros(1, 4), torch.zeros(1, 4)), ExportError, "one tensor"),
        (
            OwnForward(lambda self, x: x.to(torch.int32).float()),
            torch.zeros(1, 4),
            ExportError,
            "makes torch.int32",
        ),
        (OwnForward(lambda self, x: x / 0), torch.zeros(1, 4), ExportError, "not finite"),
        (OwnForward(lambda self, x: x * x), torch.zeros(1, 4), ExportError, "two tensors that are added"),
        (OwnForward(lambda self, x: x[:, :1] - x), torch.zeros(1, 4), ExportError, "number for each row"),
        (OwnForward(lambda self, x: x.view(2, 2) + x[:, :2]), torch.zeros(1, 4), ExportError, "for each row"),
        (OwnForward(lambda self, x: x.view(2, 2).mean(0)), torch.zeros(1, 4), ExportError, "the last axis"),
        (OwnForward(lambda self, x: x.view(2, 2).mT), torch.zeros(1, 4), ExportError, "moves entries"),
        (OwnForward(lambda self, x: x[:, ::2]), torch.zeros(1, 4), ExportError, "that are apart"),
        (OwnForward(lambda self, x: x.expand(2, 4)), torch.zeros(1, 4), ExportError, "the number of entries"),
        (OwnForward(lambda self, x: linear(x, x)), torch.zeros(1, 4), ExportError, "computed from the input"),
        (OwnForward(lambda self, x: torch.ones(2)), torch.zeros(1, 4), ExportError, "is a constant"),
        (OwnForward(lambda self, x: x * 1e39), torch.zeros(1, 4), ExportError, "not finite"),
        (
            OwnForward(lambda self, x: nn.functional.dropout(x)),
            torch.zeros(1, 4),
            ExportError,
            "dropout.* has no C",
        ),
        (
            OwnForward(lambda self, x: x + self.seen.add_(1)),
            torch.zeros(1, 4),
            ExportError,
            "changes its buffer",
        ),
    ],
)
def test_what_cannot_be_written_is_one_clear_error(model, x, error, says, tmp_path: Path):
    with pytest.raises(error, match=says):
        to_c(model, x, tmp_path / "c")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "2net", "my net", "net-1", "int", "main", "ä", None])
def test_a_name_is_a_c_identifier(name, tmp_path: Path):
    with pytest.raises(ValueError, match="C identifier"):
        to_c(nn.Linear(4, 4), torch.zeros(1, 4), tmp_path / "c", name=name)


def test_folders_and_weights(tmp_path: Path):
    model, x = nn.Linear(4, 4), torch.zeros(1, 4)
    with pytest.raises(FileExistsError, match="exists already"):
        to_c(model, x, tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        to_c(model, x, tmp_path / "no" / "c")
    with pytest.raises(ValueError, match="one of int8, float32, got 'int4'"):
        to_c(model, x, tmp_path / "c", weights="int4")
    with torch.no_grad():
        model.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        to_c(model, x, tmp_path / "c", weights="float32")
    assert not list(tmp_path.iterdir())


@needs_emulator
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param((), id="integer"),
        pytest.param(("CPU=cortex-m4", "ARITHMETIC=float"), id="float", marks=pytest.mark.exhaustive),
    ],
)
def test_the_example_runs_in_the_emulator(chosen: tuple[str, ...], tmp_path: Path):
    build = tmp_path / "build"
    build.mkdir()
    options = [f"BUILD={build}", "EPOCHS=1", "IMAGES=5", "EXAMPLES=500", f"PYTHON={sys.executable}", *chosen]
    out = command("make", "-C", EXAMPLE, "run", *options)
    for line in (
        r"predictions +[01] [01]",
        r"accuracy +\d+ of 5",
        r"instructions +\d{6,8} an image",
        "bytes of flash",
        "bytes of RAM",
    ):
        assert re.search(line, out), out
