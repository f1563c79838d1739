#!/bin/sh
# Make the virtual environment $1 with the locked versions, or say in one line what has to be installed first.
set -eu
venv=$1

python=
for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null 2>&1 &&
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "forebay needs Python 3.11 or later, which pyspark 4.3 requires: install it, for example with 'apt-get install python3 python3-venv'." >&2
    exit 1
fi

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || version=
if [ "${version:-0}" -lt 17 ]; then
    echo "forebay needs Java 17 or later (found: ${version:-none}): install it, for example with 'apt-get install openjdk-17-jre-headless', or set JAVA_HOME." >&2
    exit 1
fi

if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "forebay needs Python's venv module: install it, for example with 'apt-get install python3-venv'." >&2
    exit 1
fi
echo "setting up $venv (once; needs PyPI)"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --editable .
