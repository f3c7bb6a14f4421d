"""docs/openapi.yaml as data: finds the operation of a request, checks requests and answers.

Published answers may grow. These tests must notice growth that nobody described, so an answer is
checked against a closed copy of each schema: an object that lists its properties has no others.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml"
JSON_TYPE = "application/json; charset=utf-8"
METHODS = ("get", "put", "post", "delete", "patch")


class ContractError(AssertionError):
    """A request or an answer is not what docs/openapi.yaml says."""


@dataclass(frozen=True)
class Operation:
    """One method of one path, with what applies to it gathered."""

    id: str
    method: str
    path: str
    parameters: tuple[dict[str, Any], ...]
    body: dict[str, Any] | None
    responses: dict[str, dict[str, Any]]
    pattern: re.Pattern[str] = field(repr=False)


def loads(data: bytes) -> Any:
    """Strict JSON: NaN and Infinity are refused, as is anything that is not UTF-8."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return json.loads(data.decode("utf-8"), parse_constant=refuse)


def closed(schema: Any) -> Any:
    """A copy in which every object that lists its properties allows no others."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        result.setdefault("additionalProperties", False)
    return result


class Api:
    """The description, and which of its operations have been reached."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.reached: set[str] = set()
        resources = {
            "urn:api": copy.deepcopy(dict(document)),
            "urn:api:closed": closed(copy.deepcopy(dict(document))),
        }
        self._registry: Registry[Any] = Registry().with_resources(
            (name, DRAFT202012.create_resource(content)) for name, content in resources.items()
        )
        self._validators: dict[tuple[str, str], Draft202012Validator] = {}
        self.operations = tuple(self._read_operations())

    # What is in the document

    def resolve(self, node: Any) -> Any:
        while isinstance(node, dict) and "$ref" in node and node["$ref"].startswith("#/"):
            target: Any = self.document
            for part in node["$ref"][2:].split("/"):
                target = target[part.replace("~1", "/").replace("~0", "~")]
            node = target
        return node

    def _read_operations(self) -> Iterator[Operation]:
        for path, item in self.document["paths"].items():
            for method in METHODS:
                if method not in item:
                    continue
                spec = item[method]
                shared = item.get("parameters", [])
                body = spec.get("requestBody")
                yield Operation(
                    id=spec["operationId"],
                    method=method.upper(),
                    path=path,
                    parameters=tuple(
                        self.resolve(p) for p in (*shared, *spec.get("parameters", []))
                    ),
                    body=self.resolve(body) if body else None,
                    responses={
                        str(status): self.resolve(answer)
                        for status, answer in spec["responses"].items()
                    },
                    pattern=re.compile(
                        "^" + re.sub(r"\\\{\w+\\\}", "([^/]+)", re.escape(path)) + "$"
                    ),
                )

    @property
    def all_ids(self) -> set[str]:
        return {operation.id for operation in self.operations}

    def find(self, method: str, target: str) -> Operation | None:
        path = urlsplit(target).path
        for operation in self.operations:
            if operation.method == method and operation.pattern.match(path):
                return operation
        return None

    def methods_of(self, target: str) -> set[str]:
        path = urlsplit(target).path
        return {o.method for o in self.operations if o.pattern.match(path)}

    # Checking

    def _validator(self, schema: Mapping[str, Any], *, strict: bool) -> Draft202012Validator:
        key = (json.dumps(schema, sort_keys=True), "closed" if strict else "open")
        found = self._validators.get(key)
        if found is None:
            base = "urn:api:closed" if strict else "urn:api"
            body = closed(schema) if strict else schema
            found = Draft202012Validator(
                _absolute(copy.deepcopy(body), base), registry=self._registry
            )
            self._validators[key] = found
        return found

    def check_value(self, value: Any, schema: Mapping[str, Any], *, what: str) -> None:
        """Checks an answer's value, strictly."""
        self._check(self._validator(schema, strict=True), value, what)

    def check_named(self, value: Any, name: str) -> None:
        """Checks a value against a schema of components, strictly."""
        self.check_value(value, {"$ref": f"#/components/schemas/{name}"}, what=name)

    @staticmethod
    def _check(validator: Draft202012Validator, value: Any, what: str) -> None:
        error = next(iter(validator.iter_errors(value)), None)
        if error is None:
            return
        while error.context:
            error = max(error.context, key=lambda e: len(e.absolute_path))
        where = "/".join(str(part) for part in error.absolute_path) or "(whole)"
        raise ContractError(f"{what}: at {where}: {error.message[:600]}")

    def check_request(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes
    ) -> None:
        """Checks a request that a test means to be good."""
        operation = self.find(method, target)
        if operation is None:
            raise ContractError(f"{method} {target} is no route of the description")
        what = f"request {operation.id}"
        parts = urlsplit(target)
        match = operation.pattern.match(parts.path)
        assert match is not None
        names = re.findall(r"\{(\w+)\}", operation.path)
        given: dict[tuple[str, str], str] = {
            ("path", name): unquote(value)
            for name, value in zip(names, match.groups(), strict=True)
        }
        for name, value in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=False):
            given["query", name] = value
        known = {(p["in"], p["name"]) for p in operation.parameters}
        if unknown := {key for key in given if key not in known}:
            raise ContractError(f"{what}: parameters that are not described: {unknown}")
        lower = {name.lower(): value for name, value in headers.items()}
        for parameter in operation.parameters:
            self._check_parameter(parameter, given, lower, what)
        self._check_body(operation, body, what)

    def _check_parameter(
        self,
        parameter: Mapping[str, Any],
        given: Mapping[tuple[str, str], str],
        headers: Mapping[str, str],
        what: str,
    ) -> None:
        name, place = parameter["name"], parameter["in"]
        raw = headers.get(name.lower()) if place == "header" else given.get((place, name))
        if raw is None:
            if parameter.get("required"):
                raise ContractError(f"{what}: {place} parameter {name} is missing")
            return
        schema = self.resolve(parameter["schema"])
        value: Any = raw
        if schema.get("type") == "integer" and re.fullmatch(r"-?[0-9]+", raw):
            value = int(raw)
        self._check(self._validator(schema, strict=False), value, f"{what}: {place} {name}")

    def _check_body(self, operation: Operation, body: bytes, what: str) -> None:
        if operation.body is None:
            if body:
                raise ContractError(f"{what}: takes no body")
            return
        if not body and not operation.body.get("required", False):
            return
        schema = operation.body["content"]["application/json"]["schema"]
        self._check(self._validator(schema, strict=False), loads(body), what)

    def check_answer(
        self, method: str, target: str, *, status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        """Checks an answer's status, headers and body, and notes the operation as reached.

        `body` of a stream is empty here: its events are checked as they come.
        """
        operation = self.find(method, target)
        if operation is not None:
            self.reached.add(operation.id)
        response = self._response_of(operation, method, target, status)
        what = f"answer {status} of {operation.id if operation else method + ' ' + target}"
        self._check_headers(response, headers, what)
        content = response.get("content")
        if content is None:
            if body:
                raise ContractError(f"{what}: has a body, should have none: {body[:200]!r}")
            return
        media = headers.get("content-type", "")
        kind = media.split(";")[0].strip().lower()
        if kind not in content:
            raise ContractError(f"{what}: Content-Type {media!r}, described: {list(content)}")
        if kind == "application/json":
            if media.lower() != JSON_TYPE:
                raise ContractError(f"{what}: Content-Type is {media!r}, not {JSON_TYPE!r}")
            if method != "HEAD":
                self.check_value(loads(body), content[kind]["schema"], what=what)

    def _response_of(
        self, operation: Operation | None, method: str, target: str, status: int
    ) -> Any:
        if status == 405:
            if operation is not None:
                raise ContractError(f"405 for {method} {target}, which is described")
            return self.document["components"]["responses"]["MethodNotAllowed"]
        if operation is None:
            if status != 404 or self.methods_of(target):
                raise ContractError(f"{status} for {method} {target}, which is not described")
            return self.document["components"]["responses"]["NotFound"]
        response = operation.responses.get(str(status))
        if response is None:
            raise ContractError(f"{operation.id} answered {status}, which is not described")
        return response

    def _check_headers(
        self, response: Mapping[str, Any], headers: Mapping[str, str], what: str
    ) -> None:
        for name, node in response.get("headers", {}).items():
            header = self.resolve(node)
            value = headers.get(name.lower())
            if value is None:
                if header.get("required"):
                    raise ContractError(f"{what}: header {name} is missing")
                continue
            validator = self._validator(header["schema"], strict=True)
            self._check(validator, value, f"{what}: header {name}")

    def event_schema(self, method: str, target: str) -> Mapping[str, Any]:
        """The schema of one event of an operation that answers with a stream."""
        operation = self.find(method, target)
        if operation is None:
            raise ContractError(f"{method} {target} is no route of the description")
        stream = operation.responses["200"]["content"]["text/event-stream"]["schema"]
        schema: Mapping[str, Any] = stream["properties"]["data"]["contentSchema"]
        return schema


def _absolute(schema: Any, base: str) -> Any:
    """Makes local references point into the registered document."""
    if isinstance(schema, list):
        return [_absolute(item, base) for item in schema]
    if isinstance(schema, dict):
        return {
            key: base + value if key == "$ref" and value.startswith("#") else _absolute(value, base)
            for key, value in schema.items()
        }
    return schema


@cache
def load() -> Api:
    return Api(yaml.safe_load(DOCUMENT.read_text(encoding="utf-8")))


API = load()
