"""What an export in integers takes and computes, and its files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..files import CReport
from ..steps import Steps
from ..writer import lines, literal
from .ranges import one_by_one
from .scaling import Format
from .writer import IntegerSource

_HEADER = """/* Written by torchldr: {title}. All arithmetic is in integers. */
#ifndef {NAME}_H
#define {NAME}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {NAME}_INPUT_SIZE {input}
#define {NAME}_OUTPUT_SIZE {output}
#define {NAME}_ARENA_BYTES {arena} /* of RAM, static, besides input, output and the stack */
#define {NAME}_WEIGHT_BYTES {flash} /* of flash, besides the code */

/* number = SCALE * (integer - ZERO). The macros are in floating point: use them where that is at hand, or
   scale sensor readings by integers of your own. What is out of range saturates. NaN becomes the lowest
   integer: check for it before. {NAME}_QUANTIZE evaluates x more than once. */
#define {NAME}_INPUT_SCALE {input_scale}
#define {NAME}_INPUT_ZERO {input_zero}
#define {NAME}_QUANTIZE(x) \\
    ((int8_t)((x) / {NAME}_INPUT_SCALE + {NAME}_INPUT_ZERO >= 127 ? 127 \\
     : (x) / {NAME}_INPUT_SCALE + {NAME}_INPUT_ZERO > -128 \\
         ? (int)((x) / {NAME}_INPUT_SCALE + ({NAME}_INPUT_ZERO + 128.5f)) - 128 : -128))
{scales}
/* output = model(input): {input} integers to {output}. Not reentrant: all calls share one arena. */
void {name}_run(const int8_t *input, int8_t *output);

#ifdef __cplusplus
}}
#endif

#endif
"""

_SOURCE = """/* Written by torchldr: {title}. C99 in integers, no allocation, no library.
   Right shifts of negative numbers must be arithmetic, as with GCC, Clang and Arm's compilers. */
#include <stdint.h>

#include "{name}.h"

{text}
static int8_t arena[{bytes}];
static int16_t work[{scratch16}];
static int32_t sums[{scratch32}];

void {name}_run(const int8_t *x, int8_t *y)
{{
    (void)arena;
    (void)work;
    (void)sums;
{body}}}
"""

_TEST = """/* What the model answers to one input, and a program that compares: 0 where {name}.c agrees. */
#include <stdio.h>

#include "{name}.h"

static const int8_t x[] = {{
{x}
}};
static const int8_t expected[] = {{
{y}
}};

int main(void)
{{
    static int8_t y[{NAME}_OUTPUT_SIZE];
    int wrong = 0;
    {name}_run(x, y);
    for (int i = 0; i < {NAME}_OUTPUT_SIZE; i++)
        wrong += y[i] != expected[i];
    printf("%d of %d integers differ\\n", wrong, {NAME}_OUTPUT_SIZE);
    return wrong != 0;
}}
"""

_README = """# {name}

{title}, as C99. `{name}.c` and `{name}.h` are all that a firmware needs (C99, no library):

```c
#include "{name}.h"

static int8_t input[{NAME}_INPUT_SIZE], output[{NAME}_OUTPUT_SIZE];
input[0] = {NAME}_QUANTIZE(0.5f);   /* or integers that you scale yourself */
{name}_run(input, output);
```

The input is {input} integers{shape}, the output {output}. Weights are `const` and stay in flash:
{flash:,} bytes. Working memory is static: {arena:,} bytes.

{table}

`test.c` holds one input with the model's answer:

```
cc -std=c99 -O2 {name}.c test.c -o test && ./test
```
"""


@dataclass(frozen=True)
class IntegerReport(CReport):
    """What `to_c(arithmetic="integer")` wrote, and the same model in torch, bit for bit.

    Attributes:
        input: the format of the input's integers.
        outputs: the format and size of each output; the C writes one output after the other.
        input_shape: the shape of one input, as the model takes it.
    """

    input: Format
    outputs: tuple[tuple[Format, int], ...]
    input_shape: tuple[int, ...]
    run: Callable[[Tensor], Tensor] = field(repr=False, compare=False)

    @property
    def input_size(self) -> int:
        """How many integers go in."""
        return math.prod(self.input_shape)

    def quantize(self, x: Tensor) -> Tensor:
        """The integers that go in, int8 (b, input_size).

        Args:
            x: inputs as the model takes them, batched along axes in front or along that of size 1, or flat.

        Raises:
            ValueError: other shapes, and NaN, which has no integer. Other numbers saturate.
        """
        x = torch.as_tensor(x).detach().cpu()
        rows = one_by_one(x, self.input_shape)
        if rows is None:
            rows = _flat("quantize", x, self.input_size, f"inputs of shape {self.input_shape}")
        if bool(rows.isnan().any()):
            raise ValueError("quantize: the input has a NaN, which has no integer.")
        return self.input.integers(rows.reshape(-1, self.input_size)).to(torch.int8)

    def reference(self, q: Tensor) -> Tensor:
        """What the C gives for integers int8 (b, input_size): int8 (b, output_size)."""
        if q.dtype != torch.int8:
            raise TypeError(f"reference: int8 goes in, got {q.dtype}; use quantize(x).")
        return self.run(_flat("reference", q.cpu(), self.input_size, "integers")).to(torch.int8)

    def dequantize(self, q: Tensor) -> Tensor:
        """The numbers that the C's integers stand for, float32 (b, output_size)."""
        sizes = [size for _, size in self.outputs]
        parts = _flat("dequantize", q, sum(sizes), "integers").split(sizes, -1)
        return torch.cat([f.values(part) for (f, _), part in zip(self.outputs, parts, strict=True)], -1)

    def to_json(self) -> str:
        names = ("folder", "title", "weights", "flash", "arena", "input_size", "input_shape")
        facts = {name: getattr(self, name) for name in names}
        facts |= {"layers": [row._asdict() for row in self.layers], "input": self.input._asdict()}
        return json.dumps({**facts, "outputs": [[f._asdict(), n] for f, n in self.outputs]}, indent=1)


def _flat(who: str, x: Tensor, size: int, what: str) -> Tensor:
    """Rows of this size."""
    if not x.ndim or x.shape[-1] != size:
        raise ValueError(f"{who}: expected {what}, or rows of {size}, got shape {tuple(x.shape)}.")
    return x.reshape(-1, size)


def _scales(name: str, outputs: tuple[tuple[Format, int], ...]) -> str:
    """Of the outputs: numbered where there are several."""
    made = []
    for i, (kind, size) in enumerate(outputs):
        stem = f"{name}_OUTPUT" + (f"_{i}" if len(outputs) > 1 else "")
        made.append(f"#define {stem}_SCALE {literal(kind.scale)}\n#define {stem}_ZERO {kind.zero}\n")
        if len(outputs) > 1:
            made.append(f"#define {stem}_SIZE {size}\n")
        made.append(f"#define {name}_DEQUANTIZE{f'_{i}' if len(outputs) > 1 else ''}(q) ")
        made.append(f"({stem}_SCALE * (float)((q) - {stem}_ZERO))\n")
    return "".join(made)


def render(
    name: str,
    made: Steps,
    source: IntegerSource,
    report: IntegerReport,
    example: Tensor,
    scratch: tuple[int, ...],
) -> dict[str, str]:
    """The files by name; scratch: bytes of the arena, then entries of 16 and of 32 bits."""
    body = "".join(f"    {line}\n" for step in made.steps for line in step.lines())
    if any(step.text.startswith("copy(") for step in made.steps):
        source.use("copy")
    q = report.quantize(example)
    facts = {
        "name": name,
        "NAME": name.upper(),
        "title": report.title,
        "input": report.input_size,
        "output": sum(size for _, size in report.outputs),
        "arena": report.arena,
        "flash": report.flash,
        "input_scale": literal(report.input.scale),
        "input_zero": report.input.zero,
        "scales": _scales(name.upper(), report.outputs),
        "bytes": max(1, scratch[0]),
        "scratch16": max(1, scratch[1]),
        "scratch32": max(1, scratch[2]),
        "shape": "" if example.ndim < 2 else f" ({' x '.join(map(str, example.shape))}, row by row)",
        "table": report.markdown(),
        "x": lines(str(v) for v in q[0].tolist()),
        "y": lines(str(v) for v in report.reference(q)[0].tolist()),
    }
    return {
        f"{name}.h": _HEADER.format(**facts),
        f"{name}.c": _SOURCE.format(**facts, text=source.text(), body=body),
        "test.c": _TEST.format(**facts),
        "README.md": _README.format(**facts),
    }
