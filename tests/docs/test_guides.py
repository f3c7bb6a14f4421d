"""The guides can be followed: their agents are served, their commands print what they show."""

import re
from typing import Any

import pytest

from harness import Attempt, BearerClient, FakeAgent, bundle, rule
from harness.documents import REPOSITORY, code, read, source
from harness.guide import Followed, files, transcripts

GUIDES = {
    "docs/agents.md": ["agent.py"],
    "docs/tools.md": ["agent.py"],
    "docs/sessions.md": ["agent.py"],
    "docs/forks.md": ["agent.py"],
    "docs/subagents.md": ["editor.py", "researcher.py"],
    "docs/resources.md": ["agent.py"],
    "docs/sandbox.md": ["agent.py"],
}


@pytest.mark.parametrize("path", GUIDES)
def test_it_can_be_followed(path: str, followed: Followed) -> None:
    document = read(path)
    followed(document, *GUIDES[path]).follow()


def test_every_file_is_used() -> None:
    for path, programs in GUIDES.items():
        document = read(path)
        said = "".join(block.text for block in transcripts(document))
        aside = {"try.py", "rebuno.yaml"}  # test_sandbox_guide.py; a manifest that is shown
        names = [name for name in files(document) if name not in aside]
        unused = [name for name in names if name not in programs and name not in said]
        assert not unused, f"{path}: {unused}"


# What docs/agents.md has one look for


def test_what_goes_wrong_is_said_in_these_words() -> None:
    rows = read("docs/agents.md").rows("What goes wrong", "you see")
    shown = [code(row.cells[0]) for row in rows]
    dispatch = (REPOSITORY / "sdk/python/src/rebuno/_dispatch.py").read_text()
    said = {
        "the webhook did not take it; the kernel's log says why": source("cli/event_line.c"),
        "cannot connect: is the agent running there?": source("dispatch/sender.c"),
        "the agent refused the signature": source("dispatch/sender.c"),
        "given up, to be delivered again": dispatch,
    }
    for words, program in said.items():
        assert words in program
        assert any(words in text for text in shown), words


# What docs/forks.md says of an effect that policy holds anyway


def test_the_reason_of_a_rule_of_ones_own(client: BearerClient, agent: FakeAgent) -> None:
    """The approval has the rule's reason; only what policy allows gets the kernel's warning."""
    gate = rule("gate", "require_approval", {"target": "gated"}, reason="look")
    client.set_policy(agent.id, bundle(gate, default="allow"))
    run = agent.take_attempt(client.create(agent.id)["id"])
    said = {}
    for target in ("gated", "charge"):
        fork = agent.take_attempt(client.fork(run.id, 1)["id"])
        approval = client.approval(fork.hold(target, idempotency="at_most_once"))
        said[target] = approval["message"]
    assert said["gated"] == "look"
    assert said["charge"].startswith("this is a fork: ")


# What docs/resources.md counts up


def test_every_refusal_of_a_capture_is_named() -> None:
    body = re.search(r"static struct str refusal\(.*?\n}", source("kernel/resource.c"), re.DOTALL)
    assert body is not None
    reasons = re.findall(r'STR\("(\w+)"\)', body[0])
    assert len(reasons) == 5
    rows = read("docs/resources.md").rows("Captures", "`error`")
    assert [code(row.cells[0]) for row in rows[:-1]] == reasons  # the first that applies


def test_the_bounds_are_the_rules() -> None:
    header = source("kernel/resource.h")
    bounds = [eval(value) for value in re.findall(r"\b[A-Z_]+_MAX = ([\d *]+),", header)]
    rows = read("docs/resources.md").rows("Bounds", "of")
    shown = [int(re.match(r"\d+", row.cells[1])[0]) for row in rows]  # type: ignore[index]
    shown = [n * 1024 if "KiB" in row.cells[1] else n for n, row in zip(shown, rows, strict=True)]
    assert sorted(shown) == sorted(bounds)


# What docs/sessions.md says of turns, branches and forks


def test_what_a_turn_takes_over(client: BearerClient, agent: FakeAgent, session: str) -> None:
    def turn(**fields: Any) -> Attempt:
        return agent.take_attempt(client.create(agent.id, **fields)["id"])

    first = turn(session=session)
    first.register("disk").expect(200)
    first.bind("disk", {"at": 1}).expect(204)
    first.complete(1, state={"turn": 1}).expect(204)
    second = turn(session=session)
    assert second.register("disk").expect(200).json["binding"] == {"at": 1}
    second.complete(2, state={"turn": 2}).expect(204)
    branch = turn(parent_execution_id=first.id)
    assert branch.previous().json == {"state": {"turn": 1}}
    assert "binding" not in branch.register("disk").expect(200).json
    branch.complete().expect(204)

    # A fork of the first turn, and the turn after the fork.
    forked = client.fork(first.id, 6, session=f"{session}-again")
    fork = agent.take_attempt(forked["id"])
    assert "binding" not in fork.register("disk").expect(200).json
    fork.bind("disk", {"at": 2}).expect(204)
    fork.complete(3, state={"turn": "forked"}).expect(204)
    after = turn(session=f"{session}-again")
    assert after.previous().json == {"state": {"turn": "forked"}}
    assert after.register("disk").expect(200).json["binding"] == {"at": 2}
    after.complete().expect(204)
