"""What an export takes, and its files: model.h, model.c, a test vector and a page that says what is there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...json_text import json_text
from .kernels import PRELUDES
from .steps import LayerRow, Steps
from .writer import Source, lines, literal

DRIFTED = "for the operators' range"  # in the form of a product that training could make cheaper
_COLUMNS = ("layer", "what", "how", "flash", "RAM", "multiplications")

_HEADER = """/* Written by torchldr: {title}. */
#ifndef {NAME}_H
#define {NAME}_H

#ifdef __cplusplus
extern "C" {{
#endif

#define {NAME}_INPUT_SIZE {input}
#define {NAME}_OUTPUT_SIZE {output}
#define {NAME}_ARENA_BYTES {arena} /* of RAM, static, besides x, y and the stack */
#define {NAME}_WEIGHT_BYTES {flash} /* of flash, besides the code */

/* y = model(x): {input} numbers to {output}. Not reentrant: all calls share one arena.
   {nan} */
{returns} {name}_run(const float *x, float *y);

#ifdef __cplusplus
}}
#endif

#endif
"""

_SOURCE = """/* Written by torchldr: {title}. C99, no allocation, nothing but math.h. */
#include <math.h>
#include <stdint.h>

#include "{name}.h"

{prelude}{text}
static float arena[{floats}];

{returns} {name}_run(const float *x, float *y)
{{
{before}    (void)arena;
{body}{after}}}
"""

NAN = {  # what becomes of NaN: a comment, the function's type, its first and last line
    "pass": ("NaN goes through as in PyTorch.", "void", "", ""),
    "error": (
        "Returns 1 where x or y has a NaN, else 0.",
        "int",
        "    int wrong = has_nan(x, {input});\n",
        "    return wrong | has_nan(y, {output});\n",
    ),
}

_TEST = """/* What the model answers to one input, and a program that compares: 0 where {name}.c agrees. */
#include <math.h>
#include <stdio.h>

#include "{name}.h"

static const float x[] = {{
{x}
}};
static const float expected[] = {{
{y}
}};

int main(void)
{{
    static float y[{NAME}_OUTPUT_SIZE];
    float largest = 0.0f, difference = 0.0f;
    {name}_run(x, y);
    for (int i = 0; i < {NAME}_OUTPUT_SIZE; i++) {{
        float here = fabsf(y[i] - expected[i]);
        largest = fmaxf(largest, fabsf(expected[i]));
        difference = here > difference || here != here ? here : difference; /* NaN stays */
    }}
    printf("largest difference %g of %g\\n", (double)difference, (double)largest);
    return difference <= 1e-3f * largest ? 0 : 1;
}}
"""

_README = """# {name}

{title}, as C. `{name}.c` and `{name}.h` are all that a firmware needs (C99 and `math.h`):

```c
#include "{name}.h"

static float x[{NAME}_INPUT_SIZE], y[{NAME}_OUTPUT_SIZE];
{name}_run(x, y);
```

The input is {input} numbers{shape}, the output {output}. Weights are `const` and stay in
flash: {flash:,} bytes.
Working memory is one static arena: {arena:,} bytes. Arithmetic is in float.

{table}

`test.c` holds one input with the model's answer:

```
cc -std=c99 -O2 {name}.c test.c -lm -o test && ./test
```
"""


@dataclass(frozen=True)
class CReport:
    """What `to_c` wrote.

    Attributes:
        folder: where it is.
        title: what the model is.
        weights: "int8" or "float32".
        layers: what became of each layer: its constants in flash, its output and working memory in RAM.
        flash: bytes of all constants, with the tables that layers share.
        arena: bytes of the one block of memory that layers share in turn.
    """

    folder: str
    title: str
    weights: str
    layers: tuple[LayerRow, ...]
    flash: int
    arena: int

    def to_json(self) -> str:
        return json_text({**asdict(self), "layers": [row._asdict() for row in self.layers]}, indent=1)

    def rows(self) -> list[dict[str, object]]:
        """The layers as a command prints them."""
        return [dict(zip(_COLUMNS, row, strict=True)) for row in self.layers]

    def markdown(self) -> str:
        lines: list[tuple[str, ...]] = [_COLUMNS, ("---", "---", "---", "---:", "---:", "---:")]
        lines += [(r.name, r.kind, r.form, *(f"{v:,}" for v in r[3:])) for r in self.layers]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def __str__(self) -> str:
        head = f"{self.folder}: {self.weights}, {self.flash:,} bytes of flash for constants, "
        lines = [head + f"{self.arena:,} bytes of RAM"]
        for r in self.layers:
            size = f"{r.flash:,} bytes of flash, {r.ram:,} of RAM, {r.multiplications:,} multiplications"
            lines.append(f"  {r.name}: {r.kind}: {r.form}, {size}")
        if any(DRIFTED in r.form for r in self.layers):
            lines.append(
                "  Cheaper: train with torchldr.compress.parameter_groups; operators then stay near one."
            )
        return "\n".join(lines)


def render(
    name: str, made: Steps, source: Source, report: CReport, example: Any, answer: Any, nan: str
) -> dict[str, str]:
    """The files by name."""
    outputs = sum(value.size for value in made.outputs)
    body = "".join(f"    {line}\n" for step in made.steps for line in step.lines())
    facts = {
        "name": name,
        "NAME": name.upper(),
        "title": report.title,
        "input": made.input_size,
        "output": outputs,
        "arena": report.arena,
        "flash": report.flash,
    }
    facts |= zip(("nan", "returns", "before", "after"), (t.format(**facts) for t in NAN[nan]), strict=True)
    if nan == "error":
        source.use("has_nan")
    floats = max(1, report.arena // 4)
    if any(step.text.startswith("copy(") for step in made.steps):
        source.use("copy")
    shape = "" if example.ndim < 2 else f" ({' x '.join(map(str, example.shape))}, row by row)"
    return {
        f"{name}.h": _HEADER.format(**facts),
        f"{name}.c": _SOURCE.format(
            **facts, prelude=PRELUDES[source.weights], text=source.text(), floats=floats, body=body
        ),
        "test.c": _TEST.format(
            **facts, x=lines(map(literal, example.flatten().tolist())), y=lines(map(literal, answer))
        ),
        "README.md": _README.format(**facts, shape=shape, table=report.markdown()),
    }
