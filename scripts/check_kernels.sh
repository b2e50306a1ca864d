#!/usr/bin/env bash
# The tests of the CPU's kernels, with the library built to stop at memory errors and undefined behaviour.
#
#     scripts/check_kernels.sh [arguments of pytest]
#     PYTHON=python3 scripts/check_kernels.sh           in an environment that has what the tests need
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

compiler=${CC:-gcc}
command -v "$compiler" >/dev/null || { echo "no C compiler: the kernels' tests are skipped" >&2; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cp -r src "$folder/src"
"$compiler" -shared -fPIC -std=c11 -O1 -g -fopenmp-simd -DLDR_NO_CLONES -Wall -Wextra -Werror -Wno-unknown-pragmas \
    -fsanitize=address,undefined -fno-sanitize-recover=undefined \
    "$folder"/src/torchldr/kernels/cpu/*.c -o "$folder/src/torchldr/kernels/cpu/_kernels.so" -lm &
library=$!
[[ -n "${PYTHON:-}" ]] || make setup # the rest of the environment, meanwhile
wait "$library"

# Python itself is not sanitized: the runtime comes first, and what an interpreter never frees is no leak of ours.
export LD_PRELOAD ASAN_OPTIONS=detect_leaks=0 PYTHONPATH="$folder/src" OMP_NUM_THREADS=1
LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"
"${PYTHON:-.venv/bin/python}" -m pytest -q -n 2 -p no:cacheprovider "${@:-tests/kernels/cpu}" -k "not float64"
