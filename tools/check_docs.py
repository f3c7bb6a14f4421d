"""Fails on a route, event, error code, metric, flag or variable that the documents do not name, and on a link within the tree
that leads nowhere. The code's own tables are the lists. Prints `N passed, N failed`."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def found(pattern: str, *paths: str) -> list[str]:
    names = sorted({m for path in paths for m in re.findall(pattern, text(path))})
    assert names, f"{paths} hold nothing like {pattern}: the check is blind"
    return names


def routes() -> list[tuple[str, str]]:
    """(method, path) of the router's table, with its macros for path prefixes put in."""
    source = text("src/api/router.c")
    macros = dict(re.findall(r'#define (\w+) ((?:\w+ )*"[^"\n]+")', source))

    def expand(parts: str) -> str:
        pieces = re.findall(r'"([^"]*)"|(\w+)', parts)
        return "".join(literal or expand(macros[name]) for literal, name in pieces)

    out = [(m, expand(p)) for m, p in re.findall(r'\{ROUTE\("([A-Z]+)", ([^)]+)\)', source)]
    assert len(out) > 10, "the router's table was not understood"
    return out


def openapi_routes() -> set[tuple[str, str]]:
    out, path = set(), ""
    for line in text("docs/openapi.yaml").splitlines():
        if m := re.match(r"  (/\S*):\s*$", line):
            path = m[1]
        elif m := re.match(r"    (get|post|put|delete|patch):\s*$", line):
            out.add((m[1].upper(), re.sub(r"\{\w+\}", "{}", path)))
    return out


def anchors(page: pathlib.Path) -> set[str]:
    """What a page's headings are called in links to them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.+?) *$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def main() -> int:
    passed, failures = 0, []

    def check(ok: bool, what: str) -> None:
        nonlocal passed
        if ok:
            passed += 1
        else:
            failures.append(what)

    described = openapi_routes()
    served = {(m, re.sub(r"\{\w+\}", "{}", p)) for m, p in routes()}
    for route in sorted(served | described):
        check(route in described, f"docs/openapi.yaml does not describe {' '.join(route)}")
        check(route in served, f"docs/openapi.yaml describes {' '.join(route)}, which is not served")
    for name in found(r'\[EVENT_\w+\] = STR_INIT\("([^"]+)"\)', "src/domain/types.c"):
        check(f"`{name}`" in text("docs/events.md"), f"docs/events.md does not name {name}")
    for name in found(r'"([a-z]+_[a-z_]+|unauthorized|forbidden|conflict|unavailable)"', "src/base/err.c"):
        if name == "store_race":  # never leaves the kernel
            continue
        check(f"`{name}`" in text("docs/errors.md"), f"docs/errors.md does not name {name}")
    metrics = [str(p.relative_to(ROOT)) for p in (ROOT / "src").glob("*/*.c")]
    names = sorted({m for p in metrics for m in re.findall(r"\b(rebuno_[a-z_]+[a-z]|process_[a-z_]+[a-z])\b", text(p))
                    if p.startswith(("src/observe", "src/api"))})
    for name in names:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        check(base in text("docs/metrics.md"), f"docs/metrics.md does not name {name}")
    for name in found(r'\.env = "([A-Z_]+)"', "src/cli/config.c"):
        check(name in text("docs/configuration.md"), f"docs/configuration.md does not name {name}")
    for name in found(r'\.flag = "([a-z-]+)"', "src/cli/config.c"):
        check(f"--{name}" in text("docs/configuration.md"), f"docs/configuration.md does not name --{name}")
    for name in found(r'\.name = "([a-z -]+)"', "src/cli/commands.c"):
        check(f"rebuno {name}" in text("docs/cli.md"), f"docs/cli.md does not name rebuno {name}")
    for name in found(r'\{\s*"([a-z-]+)",\s*(?:"[A-Z]+"|NULL),', "src/cli/commands.c"):
        check(f"--{name}" in text("docs/cli.md"), f"docs/cli.md does not name --{name}")
    docs = "".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/*.md"))
    sources = [str(p.relative_to(ROOT)) for p in (ROOT / "src").glob("*/*.c") if p.name != "fault.c"]  # that is for tests
    for name in found(r'getenv\("(\w+)"\)', *sources):
        check(name in docs or not name.startswith("REBUNO_"), f"no document names the variable {name}")
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), ROOT / "sdk/python/README.md"]:
        for path, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
            target = page.parent / path if path else page
            there = target.exists() and (not anchor or anchor in anchors(target))
            check(there, f"{page.relative_to(ROOT)} links to {path}{'#' if anchor else ''}{anchor}, which is not there")
    for f in failures:
        print(f)
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
