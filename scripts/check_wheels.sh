#!/usr/bin/env bash
# Both packages as a user gets them: sdists and wheels built, their metadata checked, the wheels installed in a new
# environment and tried there, away from the checkout.
#
#     scripts/check_wheels.sh                       with python3
#     PYTHON=python3.13 scripts/check_wheels.sh     with another interpreter
#     scripts/check_wheels.sh dist                  keeps what was built in this folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
dist=${1:-$folder/dist}
mkdir -p "$dist"
export PIP_DISABLE_PIP_VERSION_CHECK=1

"$python" -m venv "$folder/tools"
"$folder/tools/bin/pip" install --quiet build twine
for package in . paper; do
    "$folder/tools/bin/python" -m build --outdir "$dist" "$package" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
done
wheel=$(ls "$dist"/torchldr-*-py3-none-*.whl) # one for every Python of the platform
if command -v cc >/dev/null; then
    "$python" -m zipfile -l "$wheel" | grep -q _kernels.so
fi
"$folder/tools/bin/twine" check --strict "$dist"/torchldr*

"$python" -m venv "$folder/clean"
"$folder/clean/bin/pip" install --quiet --constraint constraints.txt "$dist"/torchldr*.whl
cp scripts/smoke.py "$folder"
cd "$folder"
PATH="$folder/clean/bin:$PATH" "$folder/clean/bin/python" -I smoke.py
