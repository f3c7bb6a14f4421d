# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a sandbox, beside a snapshot that is gone."""

from ..errors import RebunoError


class SandboxError(RebunoError):
    """The sandbox refused something, or could not do it; the message says what to change."""


class SandboxGone(SandboxError):
    """The workspace that a binding names is not there any more."""


class PathRefused(SandboxError):
    """A path leaves the workspace, or names nothing that can be read or written."""
