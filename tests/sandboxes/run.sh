#!/bin/sh
# The sandbox examples with the providers' packages as these publish them, against fakes of their services. They get an
# environment of their own, made from the examples' requirements.
set -eu
cd "$(dirname "$0")/../.."
venv=.venv-sandboxes
examples=examples/integrations/sandbox
wanted=$(cat $examples/*/requirements.txt tests/sandboxes/requirements.txt tests/sandboxes/run.sh sdk/python/pyproject.toml |
    sha256sum | cut -d' ' -f1)
if [ "$(cat $venv/.made-from 2>/dev/null || true)" != "$wanted" ]; then
    python=python3
    [ -x /usr/bin/python3 ] && python=/usr/bin/python3
    rm -rf $venv
    $python -m venv $venv
    sort -u $examples/*/requirements.txt >$venv/examples.txt
    $venv/bin/pip install -q --disable-pip-version-check -r $venv/examples.txt -r tests/sandboxes/requirements.txt \
        -e sdk/python
    $venv/bin/pip check --disable-pip-version-check
    echo "$wanted" >$venv/.made-from
fi
export REBUNO_BIN="${REBUNO_BIN:-$PWD/build/rebuno}" PYTHONPATH=sdk/python/tests:tests/sandboxes PYTHONDONTWRITEBYTECODE=1
exec $venv/bin/python -m pytest -q -p no:cacheprovider -n "$(nproc)" -c tests/sandboxes/pytest.ini --rootdir tests/sandboxes \
    --confcutdir tests/sandboxes tests/sandboxes "$@"
