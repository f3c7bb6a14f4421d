"""Policies for the measurements. Steps go to `search`, with an English sentence under `text`."""

import json
from typing import Any

Rule = dict[str, Any]

# As people write them. None is found in the sentences of the load generator.
REGEXES = (
    r"(?i)\b(drop|truncate)\s+table\b",
    r"rm\s+-[a-z]*[rf]",
    r"^/etc/|/\.ssh/",
    r"\b\d{3}-\d{2}-\d{4}\b",
    r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}",
    r"AKIA[0-9A-Z]{16}",
    r"https?://(\d{1,3}\.){3}\d{1,3}",
    r"(?i)(password|secret)\s*[:=]",
    r"[;&|]\s*(curl|wget)\b",
    r"^\s*sudo\b",
)

# Each has to keep many possibilities in mind, for a text of a and b at random.
PATHOLOGICAL = (
    r"(a|b)*a(a|b){12}c",
    r"(a|b)*a(a|b){18}c",
    r"((a|b)*b(a|b){9}){3}c",
    r"(a|b)*a(a|b){60}c",
    r"(x*a*b*)*c$",
)


def _rule(id_: str, when: Rule, decision: str = "deny") -> Rule:
    return {"id": id_, "when": when, "then": {"decision": decision}}


def _bundle(rules: list[Rule]) -> str:
    """JSON is YAML."""
    return json.dumps({"default_action": "deny", "rules": rules}, indent=1)


def hundred_rules() -> str:
    """The last one allows the step: all are looked at, and the ten regexes are searched."""
    rules = [_rule(f"tool-{i}", {"target": f"tool_{i}"}) for i in range(40)]
    rules += [_rule(f"glob-{i}", {"target": f"fs_*_{i}"}) for i in range(20)]
    rules += [_rule(f"list-{i}", {"targets": [f"git_{i}", f"db_{i}_*"]}) for i in range(10)]
    rules += [_rule(f"agent-{i}", {"agent_id": f"agent-{i}"}) for i in range(10)]
    for i in range(9):
        rules.append(_rule(f"text-{i}", _text({"contains": f"no such text {i}"})))
    for i, regex in enumerate(REGEXES):
        rules.append(_rule(f"regex-{i}", _text({"regex": regex})))
    rules.append(_rule("search", {"target": "search"}, "allow"))
    assert len(rules) == 100
    return _bundle(rules)


def _text(predicate: Rule) -> Rule:
    return {"target": "search", "arguments": {"text": predicate}}


def pathological() -> str:
    rules = [_rule(f"slow-{i}", _text({"regex": r})) for i, r in enumerate(PATHOLOGICAL)]
    return _bundle([*rules, _rule("search", {"target": "search"}, "allow")])


def held() -> str:
    return _bundle([_rule("search", {"target": "search"}, "require_approval")])
