"""Every refusal of a bundle and of a file of cases stands in docs/policy.md, word for word, with an
example of what causes it. The loaders' own sources are the list."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Kernel
from harness.documents import LINE_END, Row, code, read, source


def constant(name: str) -> int:
    """One of the YAML reader's, who alone knows what its parser bears."""
    (value,) = re.findall(rf"\b{name} = (\d+)", source("base/yaml.c"))
    return int(value)


PolicyTest = Callable[..., "subprocess.CompletedProcess[str]"]
GUIDE = read("docs/policy.md")
PLACE = re.compile(r"^error: bundle\.yaml:\d+:\d+: ")
BUNDLE_MAX = 4 * 1024 * 1024
BLANK_LINES_MAX = constant("BLANK_LINES_MAX")
TAG_ESCAPES_MAX = constant("TAG_ESCAPES_MAX")

# What an example of each table stands in.
LEVELS = {
    "The file": "{}",
    "A rule": "rules:\n{}",
    "`when`": "rules:\n  - id: x\n    {}\n    then: {{ decision: deny }}",
    "`then`": "rules:\n  - id: x\n    {}",
    "A file of cases": "{}",
}
RULE = re.compile(r'^(rule "x": |rule \d+: )')

# What a table's cell cannot hold.
BYTES = {
    "this line is not valid UTF-8": b"rules: []\n# \xe9\n",
    "this line holds a NUL byte": "rules: []\n".encode("utf-16-le"),
    f"more than {BLANK_LINES_MAX} blank lines in a row": b"rules: []\n" + b"\n" * 100_000,
    f"a word with a ! and more than {TAG_ESCAPES_MAX} % after it is not supported": (
        b"rules: !" + b"%41" * 10_000 + b" []\n"
    ),
    "id is longer than 256 bytes": b"rules:\n- { id: %s, then: { decision: deny } }\n" % (b"x" * 257),
    'argument "a": regex is longer than 4096 bytes': (
        b"rules:\n- { id: x, when: { arguments: { a: { regex: %s } } }, then: { decision: deny } }\n"
        % (b"x" * 4097)
    ),
    "policy: its regexes take too much together": b"rules:\n"
    + b"".join(
        b"- { id: r%d, when: { arguments: { a: { regex: '.{900}' } } }, then: { decision: deny } }\n"
        % i
        for i in range(1000)
    ),
    f"bundle.yaml is too large (over {BUNDLE_MAX} bytes); expected a policy bundle": b"#"
    * (BUNDLE_MAX + 1),
    "case 1: this is nested too deep": (
        b"cases: [{ target: a, args: " + b"[" * 5000 + b"]" * 5000 + b"}]"
    ),
}
OVER_THE_API = f"the policy has {BUNDLE_MAX + 1} bytes; at most {BUNDLE_MAX} are taken"


def refusals() -> list[tuple[str, Row]]:
    rows = [(level, row) for level in LEVELS for row in GUIDE.rows(level, "message")]
    return [(level, row) for level, row in rows if code(row.cells[0]) != OVER_THE_API]


REFUSALS = pytest.mark.parametrize(
    ("level", "row"), refusals(), ids=[f"line-{row.line}" for _, row in refusals()]
)


def bad_file(level: str, row: Row) -> bytes:
    message, cause = code(row.cells[0]), code(row.cells[1]).replace(LINE_END, "\n")
    if message in BYTES:
        return BYTES[message]
    assert cause, f"line {row.line} shows no example"
    return (LEVELS[level].format(cause) + "\n").encode()


Refusal = Callable[[str, Row], str]


@pytest.fixture
def refusal_of(tmp_path: Path, policy_test: PolicyTest) -> Refusal:
    """What is said of a bundle or of its cases, without the place."""

    def said(level: str, row: Row) -> str:
        return _refusal(tmp_path, policy_test, level, row)

    return said


def _refusal(folder: Path, policy_test: PolicyTest, level: str, row: Row) -> str:
    if level == "A file of cases":
        (folder / "good.yaml").write_text("default_action: deny\n")
        words = ["good.yaml", "--cases", "bundle.yaml"]
    else:
        words = ["bundle.yaml", "--target", "a"]
    (folder / "bundle.yaml").write_bytes(bad_file(level, row))
    done = policy_test(*words)
    assert (done.returncode, done.stdout) == (1, ""), row
    said = done.stderr.removesuffix("\n")
    assert "\n" not in said
    if "too large" not in said:  # which is the whole file, and no place in it
        assert PLACE.match(said), said
    return PLACE.sub("", said).removeprefix("error: ")


@REFUSALS
def test_a_refusal_is_worded_as_its_table_has_it(level: str, row: Row, refusal_of: Refusal) -> None:
    said = RULE.sub("", refusal_of(level, row))
    message = code(row.cells[0])
    if message.endswith("…"):
        assert said.startswith(message.removesuffix("…"))
    else:
        assert said == message


@REFUSALS
def test_a_refusal_says_what_to_do(level: str, row: Row) -> None:
    assert row.cells[2], f"line {row.line} of {level} leaves the reader alone"


def test_the_api_refuses_what_is_too_large(dev_kernel: Kernel) -> None:
    agent = {"id": "a", "webhook_url": "http://127.0.0.1:9/", "secret": "s"}
    client = dev_kernel.client(token=None)
    client.post("/v0/agents", agent).expect(201)
    answer = client.post("/v0/policies/a", {"bundle": "#" * (BUNDLE_MAX + 1)}).expect(400)
    assert OVER_THE_API in answer.json["message"]
    assert f"`{OVER_THE_API}`" in GUIDE.text


CALL = re.compile(
    r'\b(compile_fail|yaml_fail|err_set|fail)\((?:[^;"]*?,)?\s*((?:"(?:[^"\\]|\\.)*"[\s,]*)+)'
)
LOADERS = {
    "bundle": ("policy/compile*.c", "base/yaml.c"),
    "cases": ("policy/cases.c", "base/yaml_json.c"),
}
NEVER_SEEN = {
    "out of memory",  # nobody's mistake
    "%s:%d:%d: %s",  # the place, whose message is found where it is written
    "line %d, column %d: %s",
    "this is not YAML that can be read",  # the parser always has words of its own
    "%.*s: this text is not valid UTF-8",  # the parser refuses such escapes before
    "is not valid UTF-8",
    "%s is not valid UTF-8",
    "%.*s: %s %s",  # the cases' fail(), likewise
}


def literal(text: str) -> str:
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    return "".join(parts).replace('\\"', '"').replace("\\\\", "\\")


def loader_formats(paths: tuple[str, ...]) -> list[tuple[str, str]]:
    """(who fails, format) of each message that the loader can write, but for the JSON API's."""
    found = []
    for pattern in paths:
        text = source(pattern).partition("/* ---- JSON ---- */")[0]
        for function, strings in CALL.findall(text):
            last = strings if function != "fail" else '"' + strings.rstrip().split('"')[-2] + '"'
            if literal(last) not in NEVER_SEEN:
                found.append((function, literal(last)))
    assert len(found) > 10, f"the messages of {paths} were not understood"
    return found


def as_pattern(function: str, message: str) -> re.Pattern[str]:
    parts = [p.replace("%%", "%") for p in re.split(r"%(?:\.\*)?(?:s|d|zu|lld)", message)]
    begins = {"compile_fail": ".+?: ", "fail": ".+?: .+? "}.get(function, "")
    return re.compile(begins + ".*".join(map(re.escape, parts)), re.DOTALL)


@pytest.mark.parametrize("loader", LOADERS)
def test_every_message_of_the_loaders_is_in_the_tables(loader: str, refusal_of: Refusal) -> None:
    said = [refusal_of(level, row) for level, row in refusals()] + [OVER_THE_API]
    missing = [
        message
        for function, message in loader_formats(LOADERS[loader])
        if not any(as_pattern(function, message).fullmatch(s) for s in said)
    ]
    assert not missing


def test_every_fault_of_a_glob_is_in_the_tables() -> None:
    texts = re.findall(r'return ("(?:[^"\\]|\\.)+")', source("policy/glob.c"))
    faults = [literal(text) for text in texts]
    assert len(faults) >= 4, "the faults of globs were not understood"
    messages = [code(row.cells[0]) for row in GUIDE.rows("`when`", "message")]
    for fault in faults:
        assert any(m.endswith(": " + fault) for m in messages), fault
