#!/bin/sh
# The model frameworks as their makers publish them, over `http_client()`, against a scripted model. They get an environment
# of their own, with both major versions of the mcp package: version 1 in a folder beside.
set -eu
cd "$(dirname "$0")/../.."
venv=.venv-models
wanted=$(cat tests/models/requirements.txt tests/models/run.sh sdk/python/pyproject.toml | sha256sum | cut -d' ' -f1)
if [ "$(cat $venv/.made-from 2>/dev/null || true)" != "$wanted" ]; then
    python=python3
    [ -x /usr/bin/python3 ] && python=/usr/bin/python3
    rm -rf $venv
    $python -m venv $venv
    $venv/bin/pip install -q --disable-pip-version-check -r tests/models/requirements.txt -e sdk/python
    $venv/bin/pip install -q --disable-pip-version-check --no-deps --target $venv/mcp1 mcp==1.30.0 httpx-sse==0.4.3 \
        pydantic-settings==2.16.3
    echo "$wanted" >$venv/.made-from
fi
export REBUNO_BIN="${REBUNO_BIN:-$PWD/build/rebuno}" PYTHONPATH=sdk/python/tests:tests/models PYTHONDONTWRITEBYTECODE=1
exec $venv/bin/python -m pytest -q -p no:cacheprovider -n "$(nproc)" -c tests/models/pytest.ini --rootdir tests/models \
    --confcutdir tests/models tests/models "$@"
