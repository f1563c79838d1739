#!/bin/sh
# Build the wheel with the Python $1, install it into an empty environment, and run the README's first example there.
set -eu
python=$1
work=build/wheel
rm -rf "$work"
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work" .
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint requirements.lock "$work"/forebay-*.whl
(cd "$work" && venv/bin/python ../../scripts/first_example.py ../../README.md)
