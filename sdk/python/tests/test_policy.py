"""What policy decides, as an agent and a client see it; against the real kernel."""

import asyncio
from typing import Any

import pytest
from governed import (
    HOLD,
    LIMIT,
    deploy,
    done,
    ended,
    event_types,
    governed,
    look,
    pending,
    set_policy,
)
from real_kernel import BIN, DEADLINE, serving

import rebuno
from rebuno import (
    Blocked,
    Client,
    PolicyError,
    RateLimited,
    RebunoError,
    execution,
    raise_for_refusal,
    step,
    tool,
)

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")


@pytest.fixture(autouse=True)
def no_effects() -> None:
    done.clear()


# denied

DENIALS = """
rules:
  - { id: prose, when: { target: prose }, then: { decision: deny, reason: not on a Friday } }
  - { id: token, when: { target: token }, then: { decision: deny, reason: no_go } }
  - { id: silent, when: { target: silent }, then: { decision: deny } }
  - { id: ok, when: { target: ok }, then: { decision: allow } }
"""


async def test_a_denied_tool_tells_the_model(kernel_url: str, client: Client) -> None:
    async def process(given: Any) -> Any:
        names = ("prose", "token", "silent", "unlisted", "ok", "ok")
        tools = [tool(name)(lambda: "ran") for name in names]
        return [await each() for each in tools]

    async with governed(kernel_url, "denied-tools", DENIALS, process):
        created = await client.create("denied-tools")
        run = await ended(client, created.id)
        assert run.output == [
            "prose not allowed. reason: not on a Friday",
            "token not allowed. reason: no_go",
            "silent not allowed. reason: policy_denied",
            "unlisted not allowed. reason: no explicit allow rule matched",
            "ran",
            "ran",
        ]
        steps = await client.list_steps(created.id)
        assert [one.status for one in steps] == ["denied"] * 4 + ["succeeded"] * 2
        assert steps[0].error["reason"] == "not on a Friday"


STEPS = """
default_action: allow
rules:
  - id: prose
    when: { step_kind: local, target: prose }
    then: { decision: deny, reason: not on a Friday }
  - id: token
    when: { step_kind: local, target: token }
    then: { decision: deny, reason: no_go }
  - id: gpt
    when: { step_kind: llm_call, target: "gpt*" }
    then: { decision: deny, reason: no_gpt }
"""


@pytest.mark.parametrize(
    ("name", "rule_id", "reason"),
    [
        ("prose", "prose", "policy_denied: not on a Friday"),
        ("token", "token", "no_go"),
        ("wrapped token", "token", "no_go"),
        ("gpt-9", "gpt", "no_gpt"),
    ],
)
async def test_a_denied_step_raises(
    kernel_url: str, client: Client, name: str, rule_id: str, reason: str
) -> None:
    async def process(given: Any) -> Any:
        try:
            if name.startswith("gpt"):
                await execution().begin_llm(name, {"model": name})
            else:
                await step(name.removeprefix("wrapped "), lambda: 1)
        except PolicyError as exc:
            assert exc.rule_id == rule_id  # noqa: PT017
            if "wrapped" in name:
                raise RuntimeError("by a framework") from exc
            raise

    async with governed(kernel_url, "denied-steps", STEPS, process):
        created = await client.create("denied-steps")
        run = await client.wait(created.id, DEADLINE)
        assert (run.status, run.failure_reason) == ("failed", reason)


async def test_what_was_recorded_is_not_decided_again(kernel_url: str, client: Client) -> None:
    """A replay after the policy has changed gives what was recorded, allowed or denied."""
    strict = (
        HOLD % ""
        + "  - { id: no, when: { target: no }, then: { decision: deny, reason: no_go } }\n"
    )

    async def process(given: Any) -> Any:
        no = tool("no")(lambda: "ran")
        return [await look(), await no(), await deploy()]

    async with governed(kernel_url, "recorded", strict, process):
        created = await client.create("recorded")
        (approval,) = await pending(client, created.id)
        await set_policy(kernel_url, "recorded", "default_action: allow\nrules:\n" + LOOK_DENIED)
        await client.grant_approval(approval.id)
        run = await ended(client, created.id)
        assert run.output == ["looked", "no not allowed. reason: no_go", "deployed to prod"]
        assert done == {"look": 1, "deploy prod": 1}


LOOK_DENIED = (
    "  - { id: tight, when: { target: look }, then: { decision: deny, reason: no_look } }\n"
)


# held


async def test_a_held_tool_that_is_granted(kernel_url: str, client: Client) -> None:
    suspensions: list[Any] = []

    async def process(given: Any) -> Any:
        first = await look()
        try:
            return [first, await deploy("prod"), execution().dispatch_attempt]
        except RebunoError:
            suspensions.append(execution().suspension)
            raise

    async with governed(kernel_url, "held", HOLD % ", approvers: [alice, bob]", process):
        created = await client.create("held")
        (approval,) = await pending(client, created.id)
        assert (approval.agent_id, approval.kind, approval.target) == (
            "held",
            "tool_call",
            "deploy",
        )
        assert (approval.args, approval.message) == ({"to": "prod"}, "somebody should look")
        assert (approval.status, approval.approvers) == ("pending", ["alice", "bob"])
        assert approval.timeout_at > "20"
        assert await client.get_approval(approval.id) == approval
        assert (done["look"], done["deploy prod"]) == (1, 0)
        with pytest.raises(rebuno.ForbiddenError):
            await client.grant_approval(approval.id, decided_by="mallory")
        await client.grant_approval(approval.id, decided_by="alice", rationale="looks good")
        run = await ended(client, created.id)
        assert run.output[:2] == ["looked", "deployed to prod"]
        assert done == {"look": 1, "deploy prod": 1}
        assert [type(each) for each in suspensions] == [Blocked]
        assert approval.id in str(suspensions[0])
        decided = await client.get_approval(approval.id)
        assert (decided.status, decided.decided_by) == ("granted", "alice")
        assert (decided.asserted_by, decided.rationale) == ("anonymous", "looks good")
        with pytest.raises(rebuno.ConflictError) as caught:
            await client.deny_approval(approval.id, decided_by="bob")
        assert caught.value.details == {"status": "granted", "decided_by": "alice"}
        assert [one.id for one in await client.list_approvals(status="granted")].count(approval.id)


@pytest.mark.parametrize(
    ("rationale", "told"),
    [("prod is frozen until Monday", "prod is frozen until Monday"), ("", "approval_denied")],
)
async def test_a_held_tool_that_is_denied(
    kernel_url: str, client: Client, rationale: str, told: str
) -> None:
    async def process(given: Any) -> Any:
        return [await deploy(), await look()]

    async with governed(kernel_url, "held-denied", HOLD % "", process):
        created = await client.create("held-denied")
        (approval,) = await pending(client, created.id)
        await client.deny_approval(approval.id, decided_by="alice", rationale=rationale)
        run = await ended(client, created.id)
        assert run.output == [f"deploy not allowed. reason: {told}", "looked"]
        assert done == {"look": 1}


async def test_a_held_step_that_is_denied_raises(kernel_url: str, client: Client) -> None:
    async def process(given: Any) -> Any:
        await step("deploy-it", lambda: 1)

    async with governed(kernel_url, "held-step", HOLD % "", process):
        for rationale, reason in (("", "approval_denied"), ("too late", "policy_denied: too late")):
            created = await client.create("held-step")
            (approval,) = await pending(client, created.id)
            await client.deny_approval(approval.id, rationale=rationale)
            assert (await client.wait(created.id, DEADLINE)).failure_reason == reason


async def test_an_approval_that_expires(kernel_url: str, client: Client) -> None:
    async with governed(
        kernel_url, "expires", (HOLD % "").replace("1h", "50ms"), lambda given: deploy()
    ):
        created = await client.create("expires")
        run = await ended(client, created.id)
        assert run.output == "deploy not allowed. reason: approval_timeout"
        assert done == {}


async def test_a_stop_that_the_handler_swallows(kernel_url: str, client: Client) -> None:
    """The execution stays the kernel's: a framework that eats exceptions cannot complete it."""
    swallowed: list[BaseException | None] = []

    async def process(given: Any) -> Any:
        try:
            return await deploy()
        except Exception:
            swallowed.append(execution().suspension)
            # What a model that was told of an error would do: more calls, which are not started.
            with pytest.raises(Blocked):
                await look()
            return "the tool is broken"

    async with governed(kernel_url, "swallows", HOLD % "", process) as agent:
        created = await client.create("swallows")
        (approval,) = await pending(client, created.id)
        await asyncio.wait_for(agent.join(), DEADLINE)
        assert (await client.get(created.id)).status == "blocked"
        assert done == {}
        await client.grant_approval(approval.id)
        assert (await ended(client, created.id)).output == "deployed to prod"
        assert [type(each) for each in swallowed] == [Blocked]


async def test_a_broad_except_that_looks(kernel_url: str, client: Client) -> None:
    async def process(given: Any) -> Any:
        try:
            return await deploy()
        except Exception as exc:
            raise_for_refusal(exc)
            return f"told the model: {exc}"

    async with governed(kernel_url, "looks", HOLD % "", process):
        created = await client.create("looks")
        (approval,) = await pending(client, created.id)
        await client.grant_approval(approval.id)
        assert (await ended(client, created.id)).output == "deployed to prod"


async def test_a_held_run_needs_no_agent(kernel_url: str, client: Client) -> None:
    """Nobody waits anywhere: the agent goes away, the decision comes, another carries on."""
    async with governed(kernel_url, "absent", HOLD % "", lambda given: deploy()):
        created = await client.create("absent")
        (approval,) = await pending(client, created.id)
    await client.grant_approval(approval.id)
    async with serving(kernel_url, "absent", lambda given: deploy()):
        assert (await ended(client, created.id)).output == "deployed to prod"


async def test_a_run_that_is_cancelled_while_it_waits(kernel_url: str, client: Client) -> None:
    async with governed(kernel_url, "cancelled", HOLD % "", lambda given: deploy()):
        created = await client.create("cancelled")
        (approval,) = await pending(client, created.id)
        await client.cancel(created.id)
        assert (await client.wait(created.id, DEADLINE)).status == "cancelled"
        assert (await client.get_approval(approval.id)).status == "expired"
        with pytest.raises(rebuno.ConflictError):
            await client.grant_approval(approval.id)


# limits


async def test_a_rate_limit_that_refuses(kernel_url: str, client: Client) -> None:
    refusals: list[str] = []

    async def process(given: Any) -> Any:
        await look()
        try:
            await look()
        except RateLimited as exc:
            refusals.append(exc.reason)
            if given == "raise":
                raise
            if given == "wrap":
                raise RuntimeError("by a framework") from exc
        return "went on"

    async with governed(kernel_url, "limited", LIMIT % (1, "1h", ""), process):
        for given in ("raise", "wrap"):
            created = await client.create("limited", given)
            run = await client.wait(created.id, DEADLINE)
            assert (run.status, run.failure_reason) == ("failed", "rate_limit_exceeded")
        created = await client.create("limited", "go on")
        assert (await ended(client, created.id)).output == "went on"
        assert refusals == ["rate_limit_exceeded"] * 3
        assert done == {"look": 3}


async def test_a_rate_limit_that_parks(kernel_url: str, client: Client) -> None:
    """The call waits its turn without anybody waiting, then runs; nothing runs twice."""
    suspensions: list[Any] = []

    async def process(given: Any) -> Any:
        try:
            return [await look() for _ in range(3)]
        except RebunoError:
            suspensions.append(execution().suspension)
            raise

    async with governed(kernel_url, "parked", LIMIT % (1, "200ms", ", max_wait: 1m"), process):
        created = await client.create("parked")
        assert (await ended(client, created.id)).output == ["looked"] * 3
        assert done == {"look": 3}
        assert suspensions
        assert {type(each) for each in suspensions} == {Blocked}
        types = await event_types(client, created.id)
        assert types["step.rate_limited"] >= 1
        assert types["execution.blocked"] == 0
        assert all(one.execution_id != created.id for one in await client.list_approvals(status=""))


async def test_the_guard_against_a_second_try(kernel_url: str, client: Client) -> None:
    """A model that tries an unknown outcome again is told that it may not."""
    lost = asyncio.Event()

    @tool("pay", idempotency="at_most_once")
    async def pay() -> str:
        done["pay"] += 1
        lost.set()
        await asyncio.Event().wait()
        return "never"

    async def process(given: Any) -> Any:
        try:
            return await pay()
        except rebuno.ToolError:
            return await pay()

    async with serving(kernel_url, "guard", process, shutdown_grace=0):
        created = await client.create("guard")
        await asyncio.wait_for(lost.wait(), DEADLINE)
    async with serving(kernel_url, "guard", process):
        run = await ended(client, created.id)
        assert run.output == "pay not allowed. reason: prior attempt outcome unknown; retry refused"
        assert done == {"pay": 1}
