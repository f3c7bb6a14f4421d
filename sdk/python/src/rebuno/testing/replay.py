# SPDX-License-Identifier: Apache-2.0
"""Runs an agent offline against an exported run, so that a production run becomes a test.

    rebuno exec export 0199c2a4-7d10-7c4e --output run.json

    from rebuno.testing.replay import replay

    async def test_it_does_what_it_did() -> None:
        result = await replay("run.json", process)
        assert result.output == result.recording.output

Without a test: `python -m rebuno.testing.replay run.json agent:process`.
"""

from ._divergence import Asked, Divergence
from ._recording import RecordedStep, Recording
from ._replay import Replay, replay
from ._replay_command import main

__all__ = ["Asked", "Divergence", "RecordedStep", "Recording", "Replay", "replay"]

if __name__ == "__main__":
    main()
