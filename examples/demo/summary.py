# SPDX-License-Identifier: Apache-2.0
"""The facts at the end, each from the logs or from what was counted elsewhere, and checked where it can be."""

import show
from facts import Log, counted
from follow import Follower, Striker, whole_log
from rebuno import Client
from stage import Stage


def of_first(stage: Stage, first: Striker) -> bool:
    log = Log(first.events)
    waited = f", {log.waited_s:.1f} s of it waiting for a person" if log.waited_s else ""
    show.fact(
        "first run",
        f"{log.end} after {log.took_s:.1f} s{waited}; {len(log.effects)} steps: {counted(list(log.effects.values()))}",
    )
    checks = [log.is_gapless]
    show.fact("its log", f"events 1 to {len(log.events)}, without a gap", checks[-1])
    if first.agent_killed_at is not None:
        again = next((d for d in log.deliveries if d.seq > first.agent_killed_at), None)
        checks.append(again is not None)
        replayed = f"{len(again.replayed)} steps in {again.replay_s:.2f} s" if again else "nothing"
        text = f"killed at #{first.agent_killed_at}; the new one replayed {replayed}; run again: {counted(log.cut_off)}"
        show.fact("agent", text, checks[-1])
    if first.kernel_killed_at is not None:
        before = first.before_kernel_kill
        checks.append(before == first.events[: len(before)])
        away = f"killed at #{first.kernel_killed_at}, away for {first.kernel_away_s:.2f} s"
        show.fact("kernel", f"{away}; all {len(before)} events from before are still there", checks[-1])
    checks.append(_of_pull_requests(log, len(stage.pull_requests())))
    return all(checks)


def _of_pull_requests(log: Log, there: int) -> bool:
    asked = [effect for effect in log.effects.values() if effect.name == "open_pr"]
    opened = [effect for effect in asked if effect.outcome is not None and effect.outcome.type == "step.succeeded"]
    times = sum(len(effect.executed) for effect in asked)
    holds = len(opened) == there and all(len(effect.executed) <= 1 for effect in asked)
    text = f"asked for {len(asked)}x, carried out {times}x; pull requests in the repository: {there}"
    show.fact("open_pr", text, holds)
    return holds


async def of_fork(client: Client, first: Striker, fork: Follower, differs: str) -> bool:
    log, source, checks = Log(fork.events), Log(first.events), []
    at = log.find("execution.forked").payload["fork_seq"]
    checks.append([e.name for e in log.copied] == [e.name for e in source.settled_by(at)])
    show.fact(
        "fork",
        f"{log.end} after {log.took_s:.1f} s; {len(log.copied)} steps taken over, up to "
        f"#{at}, with {log.tokens(log.copied)} tokens not paid again; {len(log.live)} of its own: {counted(log.live)}",
        checks[-1],
    )
    denied = [f"{e.name} by {e.outcome.payload.get('rule_id', '')}" for e in log.live if e.is_denied]
    show.fact("refused", ", ".join(denied) or "nothing")
    checks.append(await whole_log(client, first.id) == first.events)
    show.fact("its source", "the first run's log is what it was before", checks[-1])
    show.fact("sandboxes", f"differ in {', '.join(_files(differs))}" if differs else "are the same")
    return all(checks)


def _files(differs: str) -> list[str]:
    """What the output of `diff -r` is about."""
    lines = [line.split() for line in differs.splitlines()]
    changed = [words[-1].partition("/")[2] for words in lines if words[:1] == ["diff"]]
    return changed + [words[-1] for words in lines if words[:2] == ["Only", "in"]]


async def of_counts(stage: Stage, first: Striker, fork: Follower | None) -> bool:
    """What was counted elsewhere agrees with the logs: by the kernel, and by the model."""
    logs = [Log(one.events) for one in (first, fork) if one is not None]
    replayed = [effect for log in logs for delivery in log.deliveries for effect in delivery.replayed]
    expected = sum(not effect.is_denied for effect in replayed)  # to the kernel, a denial told again is no replay
    replays = first.replays_before + await stage.replays()
    checks = [replays >= expected]
    show.fact("replays", f"{expected} by the logs; the kernel counted {replays}", checks[-1])
    if stage.model is not None:
        models = [effect for log in logs for effect in log.live if effect.is_model]
        asked = len(stage.model.requests)
        checks.append(len(models) <= asked <= sum(len(effect.executed) for effect in models))
        show.fact("model", f"{len(models)} answers recorded; the model was asked {asked}x", checks[-1])
    return all(checks)
