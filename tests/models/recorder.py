# SPDX-License-Identifier: Apache-2.0
"""A scripted kernel with a memory: what one execution recorded, another one replays."""

import json
from collections import Counter
from typing import Any

from scripted_kernel import Call, ScriptedKernel
from starlette.responses import Response


class Recorder(ScriptedKernel):
    """Steps are told apart as the kernel does: by kind, target, arguments and occurrence."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[tuple[str, ...], dict[str, Any]] = {}
        self.order: list[tuple[str, str]] = []  # of the steps, as they were submitted first
        self._keys: dict[str, tuple[str, ...]] = {}
        self._seen: Counter[tuple[str, ...]] = Counter()

    def _default(self, call: Call) -> Response:
        parts = call.path.split("/")  # "", v0, executions, id, steps, id, verb
        if call.name == "steps" and call.method == "POST":
            return self._submit(parts[3], call)
        if call.name in ("complete", "fail") and "steps" in parts:
            self.outcomes[self._keys[parts[5]]] = call.body
        return super()._default(call)

    def _submit(self, execution_id: str, call: Call) -> Response:
        body = call.body
        args = json.dumps(body["args"], sort_keys=True)
        identity = (execution_id, body["kind"], body["target"], args)
        self._seen[identity] += 1
        key = (*identity[1:], str(self._seen[identity]))
        outcome = self.outcomes.get(key)
        if outcome is None:
            self.order.append((body["kind"], body["target"]))
        else:
            known = {name: outcome[name] for name in ("result", "error") if name in outcome}
            self.decisions.setdefault(body["target"], []).insert(0, {"decision": "replay"} | known)
        self._keys[f"s{self.steps + 1}"] = key
        return super()._default(call)
