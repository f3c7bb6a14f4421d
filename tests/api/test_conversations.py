"""Model calls that carry all that was said before come back byte for byte, on both databases."""

import json
import random
import threading
from typing import Any

from harness import Attempt, BearerClient, FakeAgent
from harness.raw import member

TURNS = 50
WORDS = ["the", "order", "was", "sent", "back", "since", "its", "box", "had", "been", "left", "out"]


class Conversation:
    """Turns of about 2 KB each, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.messages: list[dict[str, str]] = []

    def say(self, role: str, size: int = 1000) -> dict[str, str]:
        text = ""
        while len(text) < size:
            text += self.random.choice(WORDS) + self.random.choice((" ", ", ", ". ", " é "))
        self.messages.append({"role": role, "content": text})
        return self.messages[-1]

    def asked(self) -> bytes:
        return json.dumps({"model": "large", "messages": self.messages}).encode()


def talk(run: Attempt, conversation: Conversation, turns: int) -> list[tuple[str, bytes, bytes]]:
    """Of each turn the step's id, what was asked, and what came."""
    said = []
    for _ in range(turns):
        conversation.say("user")
        asked = conversation.asked()
        answer = json.dumps(conversation.say("assistant")).encode()
        step_id = run.proceed("chat", asked, kind="llm_call")
        run.complete_step(step_id, answer).expect(200)
        said.append((step_id, asked, answer))
    return said


def check(client: BearerClient, execution_id: str, said: list[tuple[str, bytes, bytes]]) -> None:
    for step_id, asked, answer in said:
        body = client.get(f"/v0/executions/{execution_id}/steps/{step_id}").expect(200).body
        assert member(body, "args") == asked
        assert member(body, "result") == answer


def test_fifty_turns(client: BearerClient, run: Attempt) -> None:
    conversation = Conversation(1)
    said = talk(run, conversation, TURNS)
    check(client, run.id, said)
    listed = client.steps(run.id)
    assert [step["step_id"] for step in listed] == [step_id for step_id, _, _ in said]
    assert [step["args"] for step in listed] == [json.loads(asked) for _, asked, _ in said]
    later = run.released()
    for step_id, asked, answer in said[::7]:
        replayed = later.submit("chat", asked, kind="llm_call").expect(200)
        assert replayed.json["decision"] == "replay"
        assert replayed.json["step_id"] == step_id
        assert member(replayed.body, "result") == answer


def test_what_only_looks_alike_is_told_apart(client: BearerClient, run: Attempt) -> None:
    """A word is another one, at the beginning, in the middle, at the end."""
    conversation = Conversation(2)
    said = talk(run, conversation, 8)
    for place in (0, 7, 15):
        message = conversation.messages[place]
        message["content"] = "otherwise " + message["content"][10:]
        said += talk(run, conversation, 1)
    check(client, run.id, said)


def test_a_session_goes_on(client: BearerClient, agent: FakeAgent, session: str) -> None:
    """Its turns hand the conversation on, as state and in what they ask."""
    conversation = Conversation(3)
    before: bytes | None = None
    turns = []
    for _ in range(4):
        run = agent.take_attempt(client.create(agent.id, session=session)["id"])
        previous = run.previous().expect(200).body
        assert member(previous, "state") == (before or b"null")
        turns.append((run.id, talk(run, conversation, 3)))
        before = conversation.asked()
        run.complete("done", state=before).expect(204)
    for execution_id, said in turns:
        check(client, execution_id, said)


def test_a_fork_has_it_too(client: BearerClient, agent: FakeAgent, run: Attempt) -> None:
    """Copied and its own, while the source goes on with the very same words."""
    conversation = Conversation(4)
    said = talk(run, conversation, 6)
    fork = client.fork(run.id, len(client.events(run.id)))["id"]
    copied = client.steps(fork)
    assert [step["args"] for step in copied] == [json.loads(asked) for _, asked, _ in said]
    other = agent.take_attempt(fork)
    for _, asked, answer in said:
        replayed = other.submit("chat", asked, kind="llm_call").expect(200)
        assert member(replayed.body, "result") == answer
    both: dict[str, Any] = {}

    def go_on(attempt: Attempt) -> None:
        mine = Conversation(5)
        mine.messages = list(conversation.messages)
        both[attempt.id] = talk(attempt, mine, 10)

    threads = [threading.Thread(target=go_on, args=(attempt,)) for attempt in (run, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(both) == 2
    for execution_id, more in both.items():
        check(client, execution_id, more)
