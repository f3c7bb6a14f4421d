"""docs/policy.md does what it says: its bundles decide as their cases have it, its tables are
whole, and its first page can be followed."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import FakeAgent, Kernel, eventually
from harness.cli import Cli, Following
from harness.documents import Block, Row, code, read, source
from harness.kernel import TOKEN

PolicyTest = Callable[..., "subprocess.CompletedProcess[str]"]
GUIDE = read("docs/policy.md")


# The first page


def first_page() -> tuple[dict[str, str], list[list[str]]]:
    """(files by name, commands) of the first page."""
    blocks = [b for b in GUIDE.blocks if b.heading == "Two minutes"]
    named = [(re.match(r"# (\S+)\n", b.text), b.text) for b in blocks if b.language == "yaml"]
    files = {name[1]: text for name, text in named if name is not None}
    lines = [line for b in blocks if b.language == "bash" for line in b.text.splitlines()]
    commands = [shlex.split(line) for line in lines]
    last = re.findall(r"`rebuno (approval deny ID [^`]+)`", GUIDE.text)[0]
    return files, [command[1:] for command in commands] + [shlex.split(last)]


def test_the_first_page_can_be_followed(
    launch: Callable[..., Kernel], new_agent: Callable[..., FakeAgent], tmp_path: Path
) -> None:
    kernel = launch(mode="dev", args=["--memory", "--bearer-token", TOKEN])
    agent = new_agent(kernel, agent_id="hello")
    cli, (files, commands) = Cli(kernel, tmp_path), first_page()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    test, give, create, listing, show, grant, deny = commands
    assert "3 passed, 0 failed" in cli.out(*test)
    cli.out(*give)
    following = Following(cli.spawn(*create))
    try:
        (execution,) = eventually(lambda: cli.json("exec", "ls")["executions"])
        run = agent.take_attempt(execution["id"])
        run.record("look_up", {"name": "Ada"}, {"email": "ada@example.com"})
        greeting = {"email": "ada@example.com", "text": "Hello Ada!"}
        assert run.submit("send_greeting", greeting).expect(200).json["decision"] == "blocked"
        following.wait_for("Hello Ada!")
        ask = cli.json(*listing)[0]["id"]
        assert ask[:18] in cli.out(*listing)
        assert "somebody should read a greeting" in cli.out(*with_id(show, ask))
        cli.out(*with_id(grant, ask))

        run = run.agent.take_attempt(execution["id"])
        run.replay("look_up", {"name": "Ada"})
        run.record("send_greeting", greeting, "sent")
        other = {**greeting, "email": "friend@example.com"}
        assert run.submit("send_greeting", other).expect(200).json["decision"] == "blocked"
        cli.out(*with_id(deny, cli.json(*listing)[0]["id"]))
        run = run.agent.take_attempt(execution["id"])
        answer = run.submit("send_greeting", other).expect(200).json
        assert (answer["decision"], answer["reason"]) == ("denied", "too short")
        run.complete("done").expect(204)
        assert following.ended() == 0
    finally:
        following.close()


def with_id(command: list[str], id_: str) -> list[str]:
    assert "ID" in command
    return [id_[:18] if word == "ID" else word for word in command]


# Bundles and their cases


def top_keys(block: Block) -> set[str]:
    return set(yaml.safe_load(block.text)) if block.language == "yaml" else set()


def bundles_with_cases() -> list[tuple[Block, Block]]:
    blocks = [b for b in GUIDE.blocks if b.language == "yaml"]
    found = []
    for bundle, cases in zip(blocks, [*blocks[1:], None], strict=True):
        if "cases" in top_keys(bundle):
            continue
        assert cases is not None and "cases" in top_keys(cases), (
            f"no cases follow the bundle in line {bundle.line}"
        )
        found.append((bundle, cases))
    assert len(found) > 10, "the guide was not understood"
    return found


BUNDLES = bundles_with_cases()


@pytest.mark.parametrize(("bundle", "cases"), BUNDLES, ids=[f"line-{b.line}" for b, _ in BUNDLES])
def test_a_bundle_decides_as_its_cases_say(
    bundle: Block, cases: Block, tmp_path: Path, policy_test: PolicyTest
) -> None:
    (tmp_path / "bundle.yaml").write_text(bundle.text)
    (tmp_path / "bundle.policytest.yaml").write_text(cases.text)
    done = policy_test("bundle.yaml", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["results"]) == len(yaml.safe_load(cases.text)["cases"])
    assert all(result["pass"] for result in answer["results"])
    assert not answer.get("unexercised_rules"), "rules that the guide shows no case of"


def test_every_case_says_what_it_expects() -> None:
    for _, cases in BUNDLES:
        for case in yaml.safe_load(cases.text)["cases"]:
            assert "expect" in case, (cases.line, case)


@pytest.mark.parametrize("action", ["deny", "allow"])
def test_the_reasons_of_the_default_are_shown(
    action: str, tmp_path: Path, policy_test: PolicyTest
) -> None:
    (tmp_path / "bundle.yaml").write_text(f"default_action: {action}\n")
    done = policy_test("bundle.yaml", "--target", "a", "--json")
    (result,) = json.loads(done.stdout)["results"]
    rows = GUIDE.rows("How a bundle is read", "the step")
    (row,) = (row for row in rows if f"`default_action: {action}`" in row.cells[0])
    assert code(row.cells[1]) == result["reason"]
    assert code(row.cells[2]) == result["rule_id"] == "default"


def keys_of(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if isinstance(value, dict):
        return {str(key) for key in value}.union(*map(keys_of, value.values()))
    return set()


def test_every_field_has_an_example() -> None:
    tables = re.findall(r"\w+_KEYS\[\] = \{(.*?)\};", source("policy/compile*.c"), re.DOTALL)
    known = {name for table in tables for name in re.findall(r'"(\w+)"', table)}
    assert len(known) > 25, "the loader's keys were not understood"
    shown = set().union(*(keys_of(yaml.safe_load(bundle.text)) for bundle, _ in BUNDLES))
    assert known - shown == set()


def test_the_dodges_are_marked_as_such() -> None:
    """In the list of what is denied, what passes is a dodge; in that of what is allowed, what is
    dodged all the same says so."""
    chapter = [c for b, c in BUNDLES if b.heading == "What a predicate cannot see"]
    assert len(chapter) == 2
    deny_list, allow_list = (yaml.safe_load(c.text)["cases"] for c in chapter)
    dodged = [c for c in deny_list if c.get("name", "").startswith("dodged: ")]
    assert len(dodged) > 10
    assert all(c["expect"] == "allow" for c in dodged)
    assert all(c["expect"] == "deny" for c in deny_list if c not in dodged)
    still = [c for c in allow_list if c.get("name", "").startswith("still dodged: ")]
    assert still
    assert all(c["expect"] == "allow" for c in still)
    named = [c for c in allow_list if "name" in c and c not in still]
    assert all(c["expect"] != "allow" for c in named)
    held = {json.dumps(c.get("args"), sort_keys=True) for c in named}
    shell = [c for c in dodged if c["target"] == "shell"]
    assert sum(json.dumps(c["args"], sort_keys=True) in held for c in shell) >= 6


def test_what_json_can_write_dodges_nothing(tmp_path: Path, policy_test: PolicyTest) -> None:
    (bundle,) = (b for b, _ in BUNDLES if "# deny-list.yaml" in b.text)
    (tmp_path / "deny-list.yaml").write_text(bundle.text)

    def decision(args: str) -> str:
        done = policy_test("deny-list.yaml", "--target", "shell", "--args", args, "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["results"][0]["decision"])

    assert decision('{"command": "ls"}') == "allow"
    assert decision('{"command": "rm -rf /"}') == "deny"
    assert decision(r'{"command": "\u0072\u006d -rf /"}') == "deny"
    assert decision(r'{ "z":1 , "\u0063ommand" : "rm\u0020-rf /", "a": 2 }') == "deny"
    assert decision(json.dumps({"command": "rm " + "x" * 100_000})) == "deny"
    twice = policy_test(
        "deny-list.yaml", "--target", "shell", "--args", '{"command": "ls", "command": "rm"}'
    )
    assert twice.returncode != 0
    assert "duplicate key" in twice.stderr


def test_the_probe_prints_what_is_shown(tmp_path: Path, policy_test: PolicyTest) -> None:
    (approvals,) = (bundle for bundle, _ in BUNDLES if bundle.heading == "Approvals")
    (tmp_path / "policy.yaml").write_text(approvals.text)
    blocks = [b for b in GUIDE.blocks if b.heading == "Testing a bundle"]
    (probe,) = (i for i, b in enumerate(blocks) if "--target" in b.text)
    _, policy, test, *words = shlex.split(blocks[probe].text)
    assert (policy, test) == ("policy", "test")
    done = policy_test(*words)
    assert (done.returncode, done.stdout) == (0, blocks[probe + 1].text), done.stderr


# Reasons


def reasons() -> list[Row]:
    return GUIDE.rows("What an agent is told", "reason")


def test_every_reason_of_the_kernel_is_in_the_table() -> None:
    """Of the seam where steps are decided, and of approvals: its texts are reasons and rule ids."""
    seam = source("kernel/policy_seam.c")
    texts = set(re.findall(r'STR(?:_INIT)?\("([^"]+)"\)', seam))
    step = source("kernel/step.c")
    texts |= set(re.findall(r'INDETERMINATE_(?:RULE|REASON) =\s+STR_INIT\("([^"]+)"\)', step))
    texts |= set(re.findall(r'STR\("([a-z]+_[a-z_]+)"\)', source("kernel/approval.c")))
    assert {"permissive", "approval_timeout", "judge_unavailable"} <= texts
    missing = [text for text in sorted(texts) if f"`{text}`" not in GUIDE.text]
    assert not missing


def test_no_reason_of_the_table_is_made_up() -> None:
    said = "".join(source(f"{part}/*.c") for part in ("kernel", "policy"))
    for row in reasons():
        assert f'"{code(row.cells[0])}"' in said, row.line


def test_failure_reasons_follow_the_rule() -> None:
    """One token stands alone; prose follows `policy_denied: `."""
    for row in reasons():
        reason, decision, failure = code(row.cells[0]), row.cells[1], code(row.cells[3])
        if decision == "denied":
            token = re.fullmatch("[a-z0-9_]+", reason)
            assert failure == (reason if token else f"policy_denied: {reason}"), row.line
        elif decision == "rate_limited":
            assert failure == reason, row.line


# The timeline of debts


class Bucket:
    """Naively: a level that rises with time, up to the full, and sinks by one for each call."""

    def __init__(self, rate_limit: dict[str, Any]) -> None:
        self.full = Fraction(rate_limit["max_calls"])
        self.every = seconds(rate_limit["window"]) / self.full  # a token
        self.max_wait = seconds(rate_limit["max_wait"])
        self.level, self.at = self.full, Fraction(0)

    def level_at(self, now: Fraction) -> Fraction:
        return min(self.full, self.level + (now - self.at) / self.every)

    def take(self, now: Fraction) -> Fraction | None:
        """When the call may run; None: refused."""
        level = self.level_at(now)
        wait = max(Fraction(0), (1 - level) * self.every)
        if wait > self.max_wait:
            return None
        self.level, self.at = level - 1, now
        return now + wait


def seconds(text: str) -> Fraction:
    """`1m`, or `1:30` on a clock."""
    minutes, _, rest = text.removesuffix("m").partition(":")
    return Fraction(60 * int(minutes) + int(rest or 0))


def test_the_timeline_of_debts_is_right() -> None:
    (bundle,) = (b for b, _ in BUNDLES if b.heading == "Rate limits")
    rule = yaml.safe_load(bundle.text)["rules"][0]
    bucket = Bucket(rule["then"]["rate_limit"])
    waiting: dict[str, Fraction] = {}
    outcomes = []
    for row in GUIDE.rows("Rate limits", "time"):
        time, call, tokens, what = row.cells
        now = seconds(time)
        assert bucket.level_at(now) // 1 == int(tokens.replace("−", "-")), row.line
        if "is back" in what:
            assert waiting.pop(call) == now, row.line
            outcomes.append("back")
            continue
        runs_at = bucket.take(now)
        if runs_at is None:
            assert "refused" in what, row.line
            outcomes.append("refused")
        elif runs_at == now:
            assert what == "runs", row.line
            outcomes.append("runs")
        else:
            (until,) = re.findall(r"waits for (\d+:\d+)", what)
            assert seconds(until) == runs_at, row.line
            waiting[call] = runs_at
            outcomes.append("waits")
    assert not waiting
    assert set(outcomes) == {"runs", "waits", "refused", "back"}
