"""Resources: registered and bound."""

from typing import Any

import pytest

from conftest import NewAgent, NewRun
from harness import Attempt, BearerClient, FakeAgent
from harness.resources import affect, last_seq, new_events, of_key, state, submit

UNKNOWN = "01920000-0000-7000-8000-000000000000"
KEY_MAX = 128
JSON_MAX = 64 * 1024
RESOURCES_MAX = 100
EVERY_MAX = 1000 * 1000

Json = dict[str, Any]


class TestRegistering:
    def test_what_is_answered_and_recorded(self, client: BearerClient, run: Attempt) -> None:
        seq = last_seq(client, run)
        found = state(run, driver_id="d.v1", configuration={"timeout": 600}, every_steps=5)
        policy = {"every_steps": 5, "on_completion": True}
        fixed = {"driver_id": "d.v1", "configuration": {"timeout": 600}, "coverage_reuse": False}
        assert found == {
            "key": "disk",
            **fixed,
            **policy,
            "generation": 0,
            "count": 0,
            "registered_seq": seq + 1,
            "covered": False,
        }
        assert new_events(client, run, seq) == [
            ("resource.registered", {"key": "disk", **fixed, **policy})
        ]

    def test_the_least_that_can_be_said(self, client: BearerClient, run: Attempt) -> None:
        seq = last_seq(client, run)
        found = state(run)
        policy = {"coverage_reuse": False, "every_steps": 0, "on_completion": False}
        assert {name: found[name] for name in policy} == policy
        assert "configuration" not in found
        payload = {"key": "disk", "driver_id": "test.driver", **policy}
        assert new_events(client, run, seq) == [("resource.registered", payload)]

    def test_as_published_agents_send_it(self, run: Attempt) -> None:
        fields: Json = {"coverage_reuse": False, "every_steps": 0, "on_completion": False}
        found = state(run, configuration=None, **fields)
        assert "configuration" not in found
        assert state(run, configuration=None, **fields) == found
        assert state(run) == found

    @pytest.mark.parametrize(
        ("fields", "every_steps", "on_completion"),
        [
            ({}, 0, False),
            ({"every_steps": 0}, 0, False),
            ({"every_steps": 0, "on_completion": True}, 0, False),
            ({"on_completion": True}, 0, False),
            ({"every_steps": None, "on_completion": None}, 0, False),
            ({"every_steps": 1}, 1, True),
            ({"every_steps": 3, "on_completion": None}, 3, True),
            ({"every_steps": 3, "on_completion": True}, 3, True),
            ({"every_steps": 3, "on_completion": False}, 3, False),
            ({"every_steps": EVERY_MAX}, EVERY_MAX, True),
        ],
    )
    def test_the_policy_in_force(
        self, run: Attempt, fields: Json, every_steps: int, on_completion: bool
    ) -> None:
        found = state(run, **fields)
        assert (found["every_steps"], found["on_completion"]) == (every_steps, on_completion)

    @pytest.mark.parametrize(
        "key", ["a", "A-Z_0.9", "...", ".a", "a.", "-", "_", "checkpoints", "x" * KEY_MAX]
    )
    def test_keys(self, run: Attempt, key: str) -> None:
        assert state(run, key)["key"] == key
        run.bind(key, {"id": key}).expect(204)
        assert state(run, key)["binding"] == {"id": key}

    @pytest.mark.parametrize(
        "key", ["", ".", "..", "a/b", "a b", "é", "a\n", "a%20b", "a:b", "x" * (KEY_MAX + 1), "\0"]
    )
    def test_bad_keys(self, client: BearerClient, run: Attempt, key: str) -> None:
        before = client.events(run.id)
        body = {"key": key, "driver_id": "d"}
        run.client.post(run.path("/resources"), body, bad=True).invalid("key")
        assert client.events(run.id) == before

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("key", None), ("key", 1), ("driver_id", None), ("driver_id", ""), ("driver_id", 1),
            ("driver_id", "x" * 257), ("driver_id", "a\tb"), ("coverage_reuse", 1),
            ("coverage_reuse", "true"), ("every_steps", -1), ("every_steps", 1.5),
            ("every_steps", "1"), ("every_steps", True), ("every_steps", EVERY_MAX + 1),
            ("every_steps", 2**70), ("on_completion", 0), ("on_completion", "false"),
            ("configuration", "x" * JSON_MAX), ("binding", {}), ("other", None),
        ],
    )  # fmt: skip
    def test_bad_fields(self, client: BearerClient, run: Attempt, field: str, value: Any) -> None:
        before = client.events(run.id)
        body = {"key": "disk", "driver_id": "d", "every_steps": 1, field: value}
        answer = run.client.post(run.path("/resources"), body, bad=True)
        answer.invalid(field)
        assert client.events(run.id) == before

    def test_a_configuration_that_says_a_key_twice(
        self, client: BearerClient, run: Attempt
    ) -> None:
        before = client.events(run.id)
        run.register("disk", configuration=b'{"a":{"b":1,"\\u0062":2}}').invalid("configuration")
        assert client.events(run.id) == before

    @pytest.mark.parametrize(
        "text",
        [b'{ "b" : 1.00, "a":"\\u00e9" }', b"[]", b"false", b'""', b"0", b'{"a":{"n":1e400}}'],
    )
    def test_the_configuration_is_kept_byte_for_byte(self, run: Attempt, text: bytes) -> None:
        body = run.register("disk", configuration=text).expect(200).body
        assert b'"configuration":' + text in body
        assert run.register("disk", configuration=text).expect(200).body == body

    def test_a_configuration_of_the_largest_size(self, run: Attempt) -> None:
        text = "x" * (JSON_MAX - 2)
        assert state(run, configuration=text)["configuration"] == text

    def test_many(self, client: BearerClient, run: Attempt) -> None:
        keys = [f"r{n:03}" for n in range(RESOURCES_MAX)]
        for key in reversed(keys):
            run.register(key).expect(200)
        before = client.events(run.id)
        run.register("one-more").expect(409, "conflict")
        assert client.events(run.id) == before
        points = client.fork_points(run.id)
        assert sorted(points["resources"]) == keys
        decision = submit(run, "write", keys)
        assert [r["key"] for r in decision["resources"]] == keys[::-1]

    def test_under_no_delivery(self, client: BearerClient, run: Attempt) -> None:
        body = {"key": "disk", "driver_id": "d"}
        unsigned = run.agent.client()
        for target in ("/resources", "/resources/disk/binding", "/resources/checkpoints"):
            fields = body if target == "/resources" else {"binding": 1}
            answer = unsigned.post(run.path(target), fields, bad=True)
            answer.invalid("Rebuno-Dispatch-Id")
            client.post(run.path(target), fields, bad=True).expect(401)

    def test_of_anothers_execution(self, run: Attempt, new_agent: NewAgent) -> None:
        other = new_agent().client()
        other.dispatch = run.client.dispatch
        body = {"key": "disk", "driver_id": "d"}
        other.post(run.path("/resources"), body).expect(403, "forbidden")
        other.post(run.path("/resources/disk/binding"), {"binding": 1}).expect(403, "forbidden")
        other.post(run.path("/resources/checkpoints"), {}).expect(403, "forbidden")
        run.client.post(f"/v0/executions/{UNKNOWN}/resources", body).expect(404, "not_found")

    def test_after_the_end(self, client: BearerClient, run: Attempt) -> None:
        run.register("disk").expect(200)
        run.complete().expect(204)
        before = client.events(run.id)
        run.register("disk").expect(409, "execution_terminal")
        run.register("other").expect(409, "execution_terminal")
        run.bind("disk", 1).expect(409, "execution_terminal")
        run.capture(of_key("disk", 0)).expect(409, "execution_terminal")
        assert client.events(run.id) == before

    def test_by_a_superseded_attempt(self, client: BearerClient, run: Attempt) -> None:
        run.register("disk").expect(200)
        later = run.released()
        seq = last_seq(client, run)
        run.register("disk").expect(409, "lease_superseded")
        run.register("other").expect(409, "lease_superseded")
        run.bind("disk", 1).expect(409, "lease_superseded")
        run.capture(of_key("disk", 0)).expect(409, "lease_superseded")
        later.heartbeat().expect(204)
        assert [t for t, _ in new_events(client, run, seq) if t.startswith("resource")] == []


BASE: Json = {
    "driver_id": "d",
    "configuration": b'{"a":1.0,"b":["x"]}',
    "coverage_reuse": True,
}


class TestRegisteringAgain:
    @pytest.mark.parametrize(
        "same", [b'{"b":["x"],"a":1.0}', b'{ "a" : 1.0 , "\\u0062" : [ "\\u0078" ] }']
    )
    def test_the_same_configuration_in_other_words(
        self, client: BearerClient, run: Attempt, same: bytes
    ) -> None:
        first = run.register("disk", **BASE).expect(200)
        seq = last_seq(client, run)
        again = run.register("disk", **{**BASE, "configuration": same}).expect(200)
        assert again.body == first.body
        assert new_events(client, run, seq) == []

    @pytest.mark.parametrize(
        "change",
        [
            {"driver_id": "e"},
            {"configuration": b'{"a":1,"b":["x"]}'},
            {"configuration": b'{"a":1.0,"b":["x"],"c":null}'},
            {"configuration": None},
            {"coverage_reuse": False},
            {"coverage_reuse": None},
            {"driver_id": "e", "every_steps": 1},
        ],
    )
    def test_as_something_else(self, client: BearerClient, run: Attempt, change: Json) -> None:
        before = run.register("disk", **BASE).expect(200)
        seq = last_seq(client, run)
        answer = run.register("disk", **{**BASE, **change}).expect(409, "conflict")
        assert "disk" in answer.message
        assert new_events(client, run, seq) == []
        assert run.register("disk", **BASE).expect(200).body == before.body

    def test_one_without_a_configuration_gets_none(self, run: Attempt) -> None:
        run.register("disk").expect(200)
        run.register("disk", configuration={}).expect(409, "conflict")
        run.register("disk", configuration=b"null").expect(200)

    def test_checkpointing_is_turned_on_later(self, client: BearerClient, run: Attempt) -> None:
        first = state(run)
        affect(run, 0)
        seq = last_seq(client, run)
        later = state(run, every_steps=2, on_completion=False)
        assert (later["every_steps"], later["on_completion"]) == (2, False)
        assert later["registered_seq"] == first["registered_seq"]
        assert (later["generation"], later["count"]) == (1, 1)
        fields = {"driver_id": "test.driver", "coverage_reuse": False}
        payload = {"key": "disk", **fields, "every_steps": 2, "on_completion": False}
        assert new_events(client, run, seq) == [("resource.registered", payload)]
        assert client.fork_points(run.id)["resources"] == {"disk": first["registered_seq"]}

    @pytest.mark.parametrize(
        "policy", [{}, {"every_steps": 0}, {"every_steps": 7}, {"every_steps": 2}]
    )
    def test_and_then_stays_as_it_is(
        self, client: BearerClient, run: Attempt, policy: Json
    ) -> None:
        kept = state(run, every_steps=2, on_completion=False)
        seq = last_seq(client, run)
        assert state(run, **policy) == kept
        assert state(run, on_completion=True, **policy) == kept
        assert new_events(client, run, seq) == []

    def test_in_a_later_delivery(self, client: BearerClient, run: Attempt) -> None:
        first = state(run, every_steps=1)
        run.bind("disk", {"id": "sandbox-1"}).expect(204)
        later = run.released()
        seq = last_seq(client, run)
        assert state(later) == {**first, "binding": {"id": "sandbox-1"}}
        types = [t for t, _ in new_events(client, run, seq)]
        assert [t for t in types if t.startswith("resource")] == []

    def test_is_of_one_execution_alone(self, run: Attempt, new_run: NewRun) -> None:
        state(run, configuration={"n": 1})
        affect(run, 0)
        other = new_run()
        found = state(other, configuration={"n": 2})
        assert (found["generation"], found["count"]) == (0, 0)


class TestBinding:
    def test_is_recorded_once(self, client: BearerClient, run: Attempt) -> None:
        run.register("disk").expect(200)
        seq = last_seq(client, run)
        text = b'{ "sandbox_id": "s-1", "n": 1.50 }'
        run.bind("disk", text).expect(204)
        payload = {"key": "disk", "binding": {"sandbox_id": "s-1", "n": 1.5}}
        assert new_events(client, run, seq) == [("resource.bound", payload)]
        assert b'"binding":' + text in run.register("disk").expect(200).body
        for same in (text, b'{"n":1.50,"sandbox_id":"s-1"}'):
            run.bind("disk", same).expect(204)
        for other in (b'{"n":1.5,"sandbox_id":"s-1"}', b'{"sandbox_id":"s-2","n":1.50}', b"[]"):
            run.bind("disk", other).expect(409, "conflict")
        assert last_seq(client, run) == seq + 1
        assert b'"binding":' + text in run.register("disk").expect(200).body

    @pytest.mark.parametrize("text", [b"0", b"false", b'""', b"[]", b"{}", b'"x"', b"[null]"])
    def test_any_json(self, run: Attempt, text: bytes) -> None:
        run.register("disk").expect(200)
        run.bind("disk", text).expect(204)
        run.bind("disk", text).expect(204)
        assert b'"binding":' + text in run.register("disk").expect(200).body

    def test_one_that_says_a_key_twice_is_kept_as_it_came(self, run: Attempt) -> None:
        run.register("disk").expect(200)
        text = b'{"id":1,"id":2}'
        run.bind("disk", text).expect(204)
        run.bind("disk", text).expect(204)
        run.bind("disk", b'{"id":2}').expect(409, "conflict")
        assert b'"binding":' + text in run.register("disk").expect(200).body

    @pytest.mark.parametrize("body", [{}, {"binding": None}, {"binding": {}, "x": 1}, [], None])
    def test_none(self, client: BearerClient, run: Attempt, body: Any) -> None:
        run.register("disk").expect(200)
        before = client.events(run.id)
        answer = run.client.post(run.path("/resources/disk/binding"), body, bad=True)
        answer.expect(400, "validation_error")
        assert client.events(run.id) == before
        assert "binding" not in state(run)

    def test_too_large(self, run: Attempt) -> None:
        run.register("disk").expect(200)
        run.bind("disk", "x" * (JSON_MAX - 1)).invalid("binding")
        run.bind("disk", "x" * (JSON_MAX - 2)).expect(204)

    def test_of_a_key_that_is_not_registered(self, client: BearerClient, run: Attempt) -> None:
        run.register("disk").expect(200)
        before = client.events(run.id)
        run.bind("disc", 1).invalid("disc")
        run.client.post(run.path("/resources/a%2Fb/binding"), {"binding": 1}, bad=True).invalid(
            "key"
        )
        assert client.events(run.id) == before


def test_two_agents_never_meet(client: BearerClient, agent: FakeAgent, new_run: NewRun) -> None:
    """Two runs with the same key; what one does is none of the other's."""
    one, two = new_run(), new_run()
    for run in (one, two):
        state(run, configuration={"run": run.id})
        run.bind("disk", {"run": run.id}).expect(204)
    affect(one, 0, captures=[of_key("disk", 1)])
    assert state(two, configuration={"run": two.id})["generation"] == 0
    assert client.fork_points(two.id)["checkpoints"] == []
