import copy
import pickle

import pytest

import rebuno
from rebuno import errors
from rebuno._refusals import find_refusal

# error, its text, its first argument, its attributes
ERRORS = [
    (errors.RebunoError("m"), "m", "m", {}),
    (errors.NetworkError("m"), "m", "m", {}),
    (errors.APIError("m", "c", 418), "[c] m (HTTP 418)", "m", {"code": "c", "status_code": 418}),
    (
        errors.ConflictError("m", "conflict", 409),
        "[conflict] m (HTTP 409)",
        "m",
        {"code": "conflict", "status_code": 409},
    ),
    (
        errors.LeaseSuperseded(),
        "[lease_superseded] dispatch lease superseded (HTTP 409)",
        "dispatch lease superseded",
        {"code": "lease_superseded", "status_code": 409},
    ),
    (
        errors.PolicyError("why", "r1"),
        "[policy_denied] why (HTTP 403)",
        "why",
        {"code": "policy_denied", "status_code": 403, "rule_id": "r1"},
    ),
    (
        errors.ToolError("m", "t", "s", True),
        "t: m",
        "m",
        {"tool_id": "t", "step_id": "s", "retryable": True},
    ),
    (errors.ToolError("m"), "m", "m", {"tool_id": "", "step_id": "", "retryable": False}),
    (
        errors.RateLimited(),
        "rate_limit_exceeded",
        "rate_limit_exceeded",
        {"reason": "rate_limit_exceeded"},
    ),
    (errors.RateLimited("r"), "r", "r", {"reason": "r"}),
    (errors.Blocked("m"), "m", "m", {}),
    (errors.Blocked(), "step blocked", "step blocked", {}),
    (errors.Terminated("m"), "m", "m", {}),
]


@pytest.mark.parametrize(("error", "text", "first", "attributes"), ERRORS, ids=repr)
def test_errors_and_their_copies(
    error: errors.RebunoError, text: str, first: str, attributes: dict[str, object]
) -> None:
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(each) is type(error)
        assert (str(each), each.args[0]) == (text, first)
        assert {name: getattr(each, name) for name in attributes} == attributes


def test_the_tree() -> None:
    assert str(errors.Terminated()) == ""
    for name in ("Validation", "Unauthorized", "Forbidden", "NotFound", "Conflict", "Policy"):
        assert issubclass(getattr(rebuno, f"{name}Error"), rebuno.APIError)
    assert issubclass(rebuno.LeaseSuperseded, rebuno.APIError)
    for kind in (rebuno.APIError, rebuno.Blocked, rebuno.Terminated, rebuno.RateLimited):
        assert issubclass(kind, rebuno.RebunoError)
        assert issubclass(kind, Exception)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.PolicyError("limit_reached"), "limit_reached"),
        (errors.PolicyError("not on a Friday"), "policy_denied: not on a Friday"),
        (errors.PolicyError("Upper"), "policy_denied: Upper"),
        (errors.PolicyError("line\n"), "policy_denied: line\n"),
        (errors.RateLimited("rate_limit_exceeded"), "rate_limit_exceeded"),
        (errors.ToolError("m", "send"), "tool_error: send: m"),
        (errors.ToolError("m"), "tool_error: m"),
        (errors.NotFoundError("gone", "not_found", 404), "agent_error: NotFoundError: gone"),
        (errors.NetworkError("m"), "agent_error: NetworkError: m"),
        (ValueError("bad"), "agent_error: ValueError: bad"),
        (KeyError("k"), "agent_error: KeyError: 'k'"),
        (ExceptionGroup("g", [errors.ToolError("m", "send")]), "tool_error: send: m"),
        (ExceptionGroup("g", [ExceptionGroup("h", [KeyError(1)])]), "agent_error: KeyError: 1"),
        (
            ExceptionGroup("g", [KeyError(1), KeyError(2)]),
            "agent_error: ExceptionGroup: g (2 sub-exceptions)",
        ),
    ],
    ids=repr,
)
def test_failure_reason(error: Exception, reason: str) -> None:
    assert rebuno.failure_reason(error) == reason


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def in_context(error: Exception, context: BaseException) -> Exception:
    error.__context__ = context
    return error


def deep(levels: int, end: BaseException) -> BaseException:
    for _ in range(levels):
        end = caused(RuntimeError(), end)
    return end


STOP = errors.Blocked()


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (STOP, STOP),
        (caused(RuntimeError(), STOP), STOP),
        (in_context(RuntimeError(), STOP), STOP),
        (in_context(caused(RuntimeError(), ValueError()), STOP), None),
        (deep(9, STOP), STOP),
        (deep(10, STOP), None),
        (ExceptionGroup("g", [ValueError(), caused(RuntimeError(), STOP)]), STOP),
        (ExceptionGroup("g", [ValueError()]), None),
        (in_context(errors.ToolError("m"), STOP), None),
        (caused(RuntimeError(), errors.RateLimited()), errors.RateLimited),
        (caused(RuntimeError(), errors.PolicyError("p")), errors.PolicyError),
        (caused(RuntimeError(), errors.Terminated()), errors.Terminated),
        (caused(RuntimeError(), errors.LeaseSuperseded()), errors.LeaseSuperseded),
        (caused(RuntimeError(), errors.NetworkError("n")), None),
    ],
    ids=repr,
)
def test_a_refusal_is_found_in_the_chain(error: BaseException, found: object) -> None:
    refusal = find_refusal(error)
    assert refusal is found or type(refusal) is found
