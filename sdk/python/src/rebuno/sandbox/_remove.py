# SPDX-License-Identifier: Apache-2.0
"""Removal of a folder that something hostile may have filled."""

import subprocess
from pathlib import Path


def remove(path: Path) -> None:
    """Removes the folder with all it holds, however deep and whatever its permissions."""
    # rm holds one descriptor at a time and follows no link; shutil.rmtree recurses.
    command = ["rm", "-rf", "--", str(path)]
    if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0:
        return
    subprocess.run(
        ["chmod", "-R", "u+rwX", "--", str(path)], check=False, stderr=subprocess.DEVNULL
    )
    subprocess.run(command, check=False)
