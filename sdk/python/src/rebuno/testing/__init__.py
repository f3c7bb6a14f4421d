# SPDX-License-Identifier: Apache-2.0
"""For tests of drivers and agents: a driver's contract, and a model that follows a script."""

from ._contract import CHECKS, ContractBroken, DriverContract, Subject, check_driver
from ._model import ModelRequest, ScriptedModel, Turn

__all__ = [
    "CHECKS",
    "ContractBroken",
    "DriverContract",
    "ModelRequest",
    "ScriptedModel",
    "Subject",
    "Turn",
    "check_driver",
]
