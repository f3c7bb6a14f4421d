#!/bin/sh
# An agent and a client written on the published Python SDK must work unchanged. It gets an environment of its own, since
# ours has the same name.
set -eu
cd "$(dirname "$0")/../.."
venv=.venv-published
if [ "$(cat $venv/.made-from 2>/dev/null || true)" != "$(cat tests/published/requirements.txt)" ]; then
    python=python3
    [ -x /usr/bin/python3 ] && python=/usr/bin/python3
    rm -rf $venv
    $python -m venv $venv
    $venv/bin/pip install -q --disable-pip-version-check -r tests/published/requirements.txt
    cat tests/published/requirements.txt >$venv/.made-from
fi
exec $venv/bin/python -m pytest -q -p no:cacheprovider tests/published --rootdir tests/published -c /dev/null --confcutdir tests/published
