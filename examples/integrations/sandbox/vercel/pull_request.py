# SPDX-License-Identifier: Apache-2.0
"""Pull requests, opened by the agent itself: the token for GitHub's API never enters a sandbox."""

import os

import httpx2


async def open_pull_request(repo: str, token: str, branch: str, title: str, body: str) -> str:
    """Opens one from a pushed branch to the default branch; returns its URL, or why there is none.

    A branch that has one already, from an earlier turn of the session say, keeps it.
    """
    api = os.environ.get("GITHUB_API_URL") or "https://api.github.com"
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        repository = _checked(await http.get(f"{api}/repos/{repo}"))
        pulls = f"{api}/repos/{repo}/pulls"
        wanted = {"title": title, "body": body, "head": branch}
        answer = await http.post(pulls, json=wanted | {"base": repository["default_branch"]})
        if answer.status_code != 422:
            return str(_checked(answer)["html_url"])
        head = f"{repo.partition('/')[0]}:{branch}"
        found = _checked(await http.get(pulls, params={"head": head, "state": "open"}))
        return found[0]["html_url"] if found else f"no pull request was opened: {_reason(answer)}"


def _checked(answer: httpx2.Response):
    if answer.is_success:
        return answer.json()
    request = answer.request
    raise RuntimeError(
        f"GitHub answered {answer.status_code} to {request.method} {request.url.path}:"
        f" {_reason(answer)}. GITHUB_TOKEN needs read and write access to the repository's"
        " contents and pull requests."
    )


def _reason(answer: httpx2.Response) -> str:
    try:
        said = answer.json()
        details = [
            error.get("message") or error.get("field", "") for error in said.get("errors", [])
        ]
        return "; ".join([said["message"], *details])
    except (ValueError, KeyError, AttributeError):
        return answer.text[:500]
