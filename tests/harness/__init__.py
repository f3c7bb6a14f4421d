"""What the black-box tests stand on: a kernel, a database and an agent of one's own.

Nothing here knows the kernel's code. Signatures, shapes and routes are written from the protocol:
docs/openapi.yaml is loaded and every request and answer is checked against it.
"""

from harness.agent import Attempt, Delivery, FakeAgent, Reply
from harness.client import AgentClient, Answer, BearerClient, EventStream, Signer
from harness.kernel import Kernel
from harness.openapi import API
from harness.policies import bundle, hash_of, rule
from harness.postgres import Cluster
from harness.waiting import Deadline, eventually

__all__ = [
    "API",
    "AgentClient",
    "Answer",
    "Attempt",
    "BearerClient",
    "Cluster",
    "Deadline",
    "Delivery",
    "EventStream",
    "FakeAgent",
    "Kernel",
    "Reply",
    "Signer",
    "bundle",
    "eventually",
    "hash_of",
    "rule",
]
