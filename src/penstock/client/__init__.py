"""Client of the HTTP API, without Spark. Raises the error classes of `penstock.errors`, with the same texts.

>>> with Client("http://127.0.0.1:8321", token) as client:
...     plan = client.preview("retry", {"since": "2024-06-01"}, reason="source fixed")
...     client.apply(plan["token"])
"""

from penstock.client.api import Client, GridBytes
from penstock.client.transport import Page, ServerUnavailable

__all__ = ["Client", "GridBytes", "Page", "ServerUnavailable"]
