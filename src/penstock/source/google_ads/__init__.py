"""The source of kind google_ads: reports of many accounts through the official client."""

from __future__ import annotations

import os

# Disables the fork handlers of gRPC: a forked child (Spark's JVM) executes another program at once, and the handlers
# have been seen to end the child before that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
