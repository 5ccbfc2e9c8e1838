"""Google Ads: reports of many accounts through the official client."""

from __future__ import annotations

import os

# The client's library is not to mend itself when this process forks: what forks from it, as Spark's JVM does, becomes
# another program at once, and the mending has been seen to end it before that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
