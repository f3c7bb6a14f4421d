"""Bundles as tests write them: rules as Python values, YAML on the wire."""

import hashlib
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Says everything in full: bundles have no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def rule(
    identity: str, decision: str, when: dict[str, Any] | None = None, **then: Any
) -> dict[str, Any]:
    made: dict[str, Any] = {"id": identity}
    if when is not None:
        made["when"] = when
    made["then"] = {"decision": decision, **then}
    return made


def bundle(*rules: dict[str, Any], default: str | None = None) -> str:
    """A policy of these rules. Without a default the kernel's own holds: deny."""
    policy: dict[str, Any] = {"default_action": default} if default is not None else {}
    policy["rules"] = list(rules)
    return str(yaml.dump(policy, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def hash_of(text: str) -> str:
    """The policy_hash of the events that this bundle decided."""
    return hashlib.sha256(text.encode()).hexdigest()
