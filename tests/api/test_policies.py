"""Bundles set for an agent: what is taken, what is refused, and from when on it counts."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from conftest import NewAgent, NewKernel, SetPolicy
from harness import Attempt, BearerClient, FakeAgent, bundle, eventually, hash_of, rule

BUNDLE_MAX = 4 * 1024 * 1024
ALLOW = bundle(rule("all", "allow"))


def put(client: BearerClient, agent: FakeAgent, text: Any, **options: Any) -> Any:
    return client.post(f"/v0/policies/{agent.id}", {"bundle": text}, **options)


def shown(client: BearerClient, agent: FakeAgent) -> str | None:
    found: dict[str, Any] = client.get(f"/v0/agents/{agent.id}").expect(200).json
    return found.get("policy_bundle")


class TestSetting:
    def test_byte_for_byte(self, client: BearerClient, agent: FakeAgent) -> None:
        assert shown(client, agent) is None
        text = '# über\r\nrules:\n  - id: "a b"   # 😀\n    then: {decision: allow}\n\n'
        put(client, agent, text).expect(204)
        assert shown(client, agent) == text
        listed = {a["id"]: a for a in client.get("/v0/agents").expect(200).json}
        assert listed[agent.id]["policy_bundle"] == text

    def test_replaces_the_one_before(self, client: BearerClient, agent: FakeAgent) -> None:
        put(client, agent, ALLOW).expect(204)
        put(client, agent, bundle(rule("none", "deny"))).expect(204)
        assert shown(client, agent) == bundle(rule("none", "deny"))
        put(client, agent, bundle(rule("none", "deny"))).expect(204)

    def test_registering_again_keeps_it(self, client: BearerClient, agent: FakeAgent) -> None:
        put(client, agent, ALLOW).expect(204)
        again = client.post("/v0/agents", agent.registration(lease_timeout_seconds=60)).expect(201)
        assert again.json["policy_bundle"] == ALLOW
        assert shown(client, agent) == ALLOW

    def test_describing_keeps_it(self, client: BearerClient, agent: FakeAgent) -> None:
        put(client, agent, ALLOW).expect(204)
        target = f"/v0/agents/{agent.id}/metadata"
        agent.client().request("PUT", target, body={"description": "d"}).expect(204)
        found = client.get(f"/v0/agents/{agent.id}").expect(200).json
        assert (found["policy_bundle"], found["description"]) == (ALLOW, "d")
        put(client, agent, bundle(rule("none", "deny"))).expect(204)
        assert client.get(f"/v0/agents/{agent.id}").expect(200).json["description"] == "d"

    def test_goes_with_the_agent(self, client: BearerClient, agent: FakeAgent) -> None:
        put(client, agent, ALLOW).expect(204)
        client.delete(f"/v0/agents/{agent.id}").expect(204)
        client.post("/v0/agents", agent.registration()).expect(201)
        assert shown(client, agent) is None
        run = agent.take_attempt(client.create(agent.id)["id"])
        run.proceed("x")
        allowed = next(e for e in client.events(run.id) if e["type"] == "step.allowed")
        assert allowed["payload"]["rule_id"] == "permissive"

    def test_unknown_agent(self, client: BearerClient) -> None:
        client.post("/v0/policies/nobody", {"bundle": ALLOW}).expect(404, "not_found")

    def test_an_id_that_needs_escapes(self, client: BearerClient, new_agent: Any) -> None:
        agent = new_agent(agent_id="zoë+x:y@z")
        client.set_policy(agent.id, ALLOW)
        client.test_policy(agent.id).expect(200)

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "bundle"),
            ({"bundle": None}, "bundle"),
            ({"bundle": 1}, "bundle"),
            ({"bundle": {"rules": []}}, "bundle"),
            ({"bundle": ALLOW, "policy": ALLOW}, "policy"),
            ({"yaml": ALLOW}, "yaml"),
        ],
    )
    def test_bad_fields(
        self, client: BearerClient, agent: FakeAgent, body: dict[str, Any], field: str
    ) -> None:
        client.post(f"/v0/policies/{agent.id}", body, bad=True).invalid(field)
        assert shown(client, agent) is None

    def test_bad_bodies(self, client: BearerClient, agent: FakeAgent) -> None:
        target = f"/v0/policies/{agent.id}"
        for body in (b"", b"[]", b"rules: []", b'{"bundle":"a', b'{"bundle":"\xff"}'):
            client.post(target, body, bad=True).expect(400, "validation_error")
        twice = b'{"bundle":"rules: []","bundle":"rules: []"}'
        client.post(target, twice, bad=True).invalid("bundle")


# Each: the bundle, and what the message says; `line 3, column 5` is where the mistake is.
REFUSED = {
    "unknown key": ("rules:\n  - id: a\n    then: {decision: allow, reson: x}\n", "reson", 3, 29),
    "unknown key at the top": ("rule: []\n", "rule", 1, 1),
    "unknown key of a rule": ("rules:\n  - {id: a, if: {}, then: {decision: deny}}\n", "if", 2, 13),
    "unknown key of when": (
        "rules:\n  - {id: a, when: {tool: x}, then: {decision: deny}}\n",
        "tool",
        2,
        20,
    ),
    "unknown decision": (
        "rules:\n  - {id: a, then: {decision: maybe}}\n",
        "decision must be",
        2,
        30,
    ),
    "no decision": ("rules:\n  - {id: a, then: {reason: x}}\n", "decision", 2, 19),
    "no id": ("rules:\n  - {then: {decision: deny}}\n", "id", 2, 5),
    "repeated id": (
        "rules:\n  - {id: a, then: {decision: deny}}\n  - {id: a, then: {decision: deny}}\n",
        "a",
        3,
        10,
    ),
    "duplicate key": (
        "rules:\n  - id: a\n    then:\n      decision: deny\n      decision: allow\n",
        "decision",
        5,
        7,
    ),
    "duplicate key at the top": (
        "rules: [{id: a, then: {decision: deny}}]\nrules: [{id: b, then: {decision: deny}}]\n",
        "rules",
        2,
        1,
    ),
    "bad regex": (
        "rules:\n  - id: a\n    when: {arguments: {x: {regex: '('}}}\n    then: {decision: deny}\n",
        "regex",
        3,
        35,
    ),
    "bad glob": (
        "rules:\n  - {id: a, when: {target: '[a'}, then: {decision: deny}}\n",
        "[a",
        2,
        28,
    ),
    "bad duration": (
        "rules:\n"
        "  - id: a\n"
        "    then: {decision: require_approval, approval_config: {timeout: 5 minutes}}\n",
        "duration",
        3,
        67,
    ),
    "a tab": ("rules:\n\t- {id: a, then: {decision: deny}}\n", "tab", 2, 1),
    "not YAML": ("rules: [\n", "", 2, 1),
    "an anchor": ("rules: &r\n  - {id: a, then: {decision: deny}}\n", "anchor", 1, 8),
    "an alias": ("rules:\n  - {id: a, then: *t}\n", "alias", 2, 19),
    "a tag": ("rules: !!set\n  - {id: a, then: {decision: deny}}\n", "tag", 1, 8),
    "judge options elsewhere": (
        "rules:\n  - {id: a, then: {decision: deny, judge: {threshold: 0.5}}}\n",
        "judge",
        2,
        36,
    ),
    "a threshold": (
        "rules:\n  - {id: a, then: {decision: judge, judge: {threshold: 1.5}}}\n",
        "threshold",
        2,
        56,
    ),
}


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "word", "line", "column"), REFUSED.values(), ids=REFUSED.keys()
    )
    def test_says_where_and_changes_nothing(
        self,
        client: BearerClient,
        agent: FakeAgent,
        text: str,
        word: str,
        line: int,
        column: int,
    ) -> None:
        put(client, agent, ALLOW).expect(204)
        message = put(client, agent, text).expect(400, "validation_error").message
        assert word in message
        assert f"line {line}, column {column}" in message
        assert shown(client, agent) == ALLOW
        tested = client.test_policy(agent.id, bundle=text).expect(400, "validation_error")
        assert tested.message == message

    @pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "[]", "text", "null"])
    def test_no_policy_at_all(self, client: BearerClient, agent: FakeAgent, text: str) -> None:
        put(client, agent, text).expect(400, "validation_error")
        assert shown(client, agent) is None

    @pytest.mark.parametrize(
        "text", ["rules: []\x00", "rules: [{id: 'a\x00', then: {decision: deny}}]", "\ufffe"]
    )
    def test_bytes_that_are_no_text(
        self, client: BearerClient, agent: FakeAgent, text: str
    ) -> None:
        put(client, agent, text).expect(400, "validation_error")

    def test_the_rule_is_named(self, client: BearerClient, agent: FakeAgent) -> None:
        text = bundle(rule("fine", "allow"), rule("approve-fs", "deny", reson="x"))
        assert '"approve-fs"' in put(client, agent, text).expect(400).message

    def test_an_explosion_of_anchors(self, client: BearerClient, agent: FakeAgent) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
        put(client, agent, "\n".join(lines)).expect(400, "validation_error")

    def test_deep_nesting(self, client: BearerClient, agent: FakeAgent) -> None:
        for text in ("rules: " + "[" * 100_000, "rules: " + "{a: " * 100_000, "- " * 100_000):
            put(client, agent, text).expect(400, "validation_error")


class TestSize:
    def padded(self, size: int) -> str:
        return ALLOW + "#" * (size - len(ALLOW) - 1) + "\n"

    def test_the_largest(self, client: BearerClient, agent: FakeAgent) -> None:
        text = self.padded(BUNDLE_MAX)
        put(client, agent, text).expect(204)
        assert shown(client, agent) == text
        run = agent.take_attempt(client.create(agent.id)["id"])
        run.proceed("x")

    def test_larger(self, client: BearerClient, agent: FakeAgent) -> None:
        put(client, agent, ALLOW).expect(204)
        put(client, agent, self.padded(BUNDLE_MAX + 1)).expect(400, "validation_error")
        put(client, agent, self.padded(10 * 1024 * 1024 - 100)).expect(400, "validation_error")
        put(client, agent, self.padded(10 * 1024 * 1024)).expect(413, "payload_too_large")
        assert shown(client, agent) == ALLOW

    def test_ten_thousand_rules(self, client: BearerClient, agent: FakeAgent) -> None:
        rules = [
            rule(f"r{n}", "deny", {"target": f"t{n}_*", "arguments": {"x": {"regex": f"^{n}$"}}})
            for n in range(10_000)
        ]
        text = json.dumps({"rules": [*rules, rule("last", "allow", {"target": "end"})]})
        put(client, agent, text).expect(204)
        run = agent.take_attempt(client.create(agent.id)["id"])
        run.proceed("end")
        assert run.denied("t9999_x", {"x": "9999"})["rule_id"] == "r9999"
        assert run.denied("t9999_x", {"x": "9998"})["rule_id"] == "default"


class TestWhenItCounts:
    def test_for_the_next_new_step(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        run.record("x", 1)
        texts = [policy(rule(f"r{n}", "allow")) for n in range(3)]
        policy(rule("r0", "allow"))
        run.record("x", 2)
        allowed = [e["payload"] for e in client.events(run.id) if e["type"] == "step.allowed"]
        assert [a["rule_id"] for a in allowed] == ["permissive", "r0"]
        assert "policy_hash" not in allowed[0]
        assert allowed[1]["policy_hash"] == hash_of(texts[0])

    def test_each_change_counts_at_once(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        for n in range(20):
            policy(rule(f"r{n}", ("allow", "deny")[n % 2]))
            answer = run.submit("x", n).expect(200).json
            assert answer["decision"] == ("proceed", "denied")[n % 2]

    def test_of_its_agent_alone(self, client: BearerClient, run: Attempt, new_agent: Any) -> None:
        other = new_agent()
        client.set_policy(other.id, bundle(rule("none", "deny")))
        run.proceed("x")

    def test_after_a_restart(self, new_kernel: NewKernel, new_agent: Any) -> None:
        kernel = new_kernel()
        agent = new_agent(kernel)
        text = bundle(rule("r", "allow", {"target": "x"}))
        kernel.client().set_policy(agent.id, text)
        for kill in (False, True):
            kernel.restart(kill=kill)
            client = kernel.client()
            assert shown(client, agent) == text
            run = agent.take_attempt(client.create(agent.id)["id"])
            run.proceed("x")
            assert run.denied("y")["rule_id"] == "default"
            run.complete().expect(204)

    def test_changed_while_steps_are_submitted(
        self, client: BearerClient, new_run: Callable[..., Attempt], policy: SetPolicy
    ) -> None:
        """Each step is decided by one of them whole, and says by which."""
        runs = [new_run() for _ in range(4)]
        texts = [
            bundle(rule("yes", "allow"), rule("filler", "deny", reason=f"v{n}")) for n in range(4)
        ]
        hashes = {hash_of(text) for text in texts}
        agent = runs[0].agent
        client.set_policy(agent.id, texts[0])
        stop = threading.Event()

        def change() -> None:
            n = 0
            while not stop.is_set():
                client.set_policy(agent.id, texts[n % 4])
                n += 1

        changer = threading.Thread(target=change)
        changer.start()
        try:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda r: [r.proceed("x", n) for n in range(25)], runs))
        finally:
            stop.set()
            changer.join()
        for run in runs:
            allowed = [e["payload"] for e in client.events(run.id) if e["type"] == "step.allowed"]
            assert len(allowed) == 25
            assert {a["policy_hash"] for a in allowed} <= hashes

    def test_two_writers(self, client: BearerClient, agent: FakeAgent) -> None:
        texts = [bundle(rule(f"r{n}", "allow")) for n in range(20)]
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda text: client.set_policy(agent.id, text), texts))
        assert shown(client, agent) in texts


def register(client: BearerClient, agent: FakeAgent, **fields: Any) -> Any:
    return client.post("/v0/agents", agent.registration(**fields))


class TestWithTheRegistration:
    """A bundle that POST /v0/agents brings: the agent and its policy are one write."""

    NONE = bundle(rule("none", "deny"))

    @pytest.fixture
    def stranger(self, new_agent: NewAgent) -> FakeAgent:
        return new_agent(register=False)

    def test_decides_the_first_step(self, client: BearerClient, stranger: FakeAgent) -> None:
        text = '# über\r\nrules:\n  - id: "a b"   # 😀\n    then: {decision: allow}\n\n'
        answer = register(client, stranger, policy_bundle=text).expect(201).json
        assert answer["policy_bundle"] == text
        assert client.get(f"/v0/agents/{stranger.id}").expect(200).json == answer
        run = stranger.take_attempt(client.create(stranger.id)["id"])
        run.proceed("x")
        [allowed] = [e["payload"] for e in client.events(run.id) if e["type"] == "step.allowed"]
        assert (allowed["rule_id"], allowed["policy_hash"]) == ("a b", hash_of(text))

    def test_no_step_comes_before_it(self, client: BearerClient, new_agent: NewAgent) -> None:
        """Runs are created from the moment on at which the agent is there."""

        def first_step(agent: FakeAgent) -> str:
            body = {"agent_id": agent.id}
            created = eventually(
                lambda: client.post("/v0/executions", body).expect(201).json, interval=0
            )
            decision = agent.take_attempt(created["id"]).submit("x").expect(200).json
            return str(decision.get("rule_id", decision["decision"]))

        agents = [new_agent(register=False) for _ in range(10)]
        with ThreadPoolExecutor(1) as pool:
            for agent in agents:
                first = pool.submit(first_step, agent)
                register(client, agent, policy_bundle=self.NONE).expect(201)
                assert first.result() == "none"

    @pytest.mark.parametrize("fields", [{}, {"policy_bundle": None}], ids=["missing", "null"])
    def test_without_one_it_stays(
        self, client: BearerClient, stranger: FakeAgent, fields: dict[str, Any]
    ) -> None:
        assert "policy_bundle" not in register(client, stranger, **fields).expect(201).json
        register(client, stranger, policy_bundle=ALLOW).expect(201)
        assert register(client, stranger, **fields).expect(201).json["policy_bundle"] == ALLOW
        assert shown(client, stranger) == ALLOW

    def test_replaces_the_one_before(self, client: BearerClient, run: Attempt) -> None:
        """And what else was registered; what the agent said of itself stays."""
        agent = run.agent
        target = f"/v0/agents/{agent.id}/metadata"
        agent.client().request("PUT", target, body={"description": "d"}).expect(204)
        client.set_policy(agent.id, ALLOW)
        run.proceed("x", 1)
        fields = {"policy_bundle": self.NONE, "lease_timeout_seconds": 60}
        again = register(client, agent, **fields).expect(201).json
        assert {name: again[name] for name in fields} == fields
        assert again["description"] == "d"
        assert run.denied("x", 2)["rule_id"] == "none"
        client.set_policy(agent.id, ALLOW)
        run.proceed("x", 3)

    @pytest.mark.parametrize(
        ("text", "word", "line", "column"), REFUSED.values(), ids=REFUSED.keys()
    )
    def test_one_that_does_not_compile_registers_nothing(
        self,
        client: BearerClient,
        stranger: FakeAgent,
        text: str,
        word: str,
        line: int,
        column: int,
    ) -> None:
        refused = register(client, stranger, policy_bundle=text).expect(400, "validation_error")
        assert word in refused.message
        assert f"line {line}, column {column}" in refused.message
        client.get(f"/v0/agents/{stranger.id}").expect(404, "not_found")

    @pytest.mark.parametrize("text", ["", "rules: [{id: a, then: {decision: maybe}}]"])
    def test_one_that_does_not_compile_changes_nothing(
        self, client: BearerClient, run: Attempt, text: str
    ) -> None:
        agent = run.agent
        client.set_policy(agent.id, ALLOW)
        before = client.get(f"/v0/agents/{agent.id}").expect(200).json
        changed = {
            **agent.registration(lease_timeout_seconds=60, policy_bundle=text),
            "webhook_url": "http://127.0.0.1:9/elsewhere",
            "secret": "another",
        }
        client.post("/v0/agents", changed).expect(400, "validation_error")
        assert client.get(f"/v0/agents/{agent.id}").expect(200).json == before
        run.proceed("x")
        agent.take_attempt(client.create(agent.id)["id"])  # signed with the secret of before

    @pytest.mark.parametrize("value", [5, True, [], {"rules": []}])
    def test_what_is_no_text(self, client: BearerClient, stranger: FakeAgent, value: Any) -> None:
        body = stranger.registration(policy_bundle=value)
        client.post("/v0/agents", body, bad=True).invalid("policy_bundle")
        client.get(f"/v0/agents/{stranger.id}").expect(404, "not_found")

    def test_a_good_one_with_a_bad_registration(
        self, client: BearerClient, stranger: FakeAgent
    ) -> None:
        body = {**stranger.registration(policy_bundle=ALLOW), "webhook_url": "ftp://example.com"}
        client.post("/v0/agents", body, bad=True).invalid("webhook_url")
        client.get(f"/v0/agents/{stranger.id}").expect(404, "not_found")

    def test_size(self, client: BearerClient, stranger: FakeAgent) -> None:
        largest = ALLOW + "#" * (BUNDLE_MAX - len(ALLOW) - 1) + "\n"
        register(client, stranger, policy_bundle=largest + "\n").expect(400, "validation_error")
        client.get(f"/v0/agents/{stranger.id}").expect(404, "not_found")
        register(client, stranger, policy_bundle=largest).expect(201)
        assert shown(client, stranger) == largest
        stranger.take_attempt(client.create(stranger.id)["id"]).proceed("x")

    def test_many_at_once(self, client: BearerClient, stranger: FakeAgent) -> None:
        """Each is whole: the lease and the bundle are those of one of them."""

        def nth(n: int) -> dict[str, Any]:
            text = bundle(rule(f"r{n}", "allow"))
            return {"lease_timeout_seconds": 60 + n, "policy_bundle": text}

        with ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda n: register(client, stranger, **nth(n)).expect(201), range(20)))
        found = client.get(f"/v0/agents/{stranger.id}").expect(200).json
        assert nth(found["lease_timeout_seconds"] - 60)["policy_bundle"] == found["policy_bundle"]

    @pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "SIGTERM"])
    def test_after_a_restart(self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool) -> None:
        kernel = new_kernel()
        agent = new_agent(kernel, policy_bundle=self.NONE)
        kernel.restart(kill=kill)
        client = kernel.client()
        assert shown(client, agent) == self.NONE
        run = agent.take_attempt(client.create(agent.id)["id"])
        assert run.denied("x")["rule_id"] == "none"


def test_json_is_yaml(client: BearerClient, agent: FakeAgent) -> None:
    text = json.dumps(yaml.safe_load(ALLOW))
    put(client, agent, text).expect(204)
    run = agent.take_attempt(client.create(agent.id)["id"])
    run.proceed("x")
