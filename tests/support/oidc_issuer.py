"""A local OpenID Connect provider: discovery, keys, authorization with PKCE, and signed identities."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID, CLIENT_SECRET = "penstock", "the secret of the client"


@dataclass
class Issuer:
    """The provider, and what a test changes of it."""

    address: str
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": secrets.token_hex(4)}))
    claims: dict[str, Any] = field(default_factory=dict)  # in addition to, or instead of the usual ones
    without: tuple[str, ...] = ()  # claims that are left out
    signs_with: RSAKey | None = None  # another key than the published one
    algorithm: str = "RS256"
    is_broken: bool = False
    continues: threading.Event | None = None  # every response waits for it
    requests: int = 0  # that were received
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    key_requests: int = 0

    def authorize(self, query: dict[str, str]) -> str:
        """The address to which the browser returns with a code."""
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        returned = {"code": code, "state": query["state"], "session_state": "x", "iss": self.address}
        return f"{query['redirect_uri']}?{urlencode(returned)}"

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """The identity for a code. A code is valid once, for its verifier, client and address."""
        asked = self.codes.pop(form.get("code", ""), None)
        proof = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if authorization != f"Basic {proof}":
            return 401, {"error": "invalid_client"}
        if asked is None or form.get("redirect_uri") != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked["code_challenge_method"] != "S256" or challenge != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": self._identity(asked["nonce"])}

    def _identity(self, nonce: str) -> str:
        now = int(time.time())
        usual = {"iss": self.address, "aud": CLIENT_ID, "sub": "1", "iat": now, "exp": now + 300, "nonce": nonce}
        usual |= {"email": "kim@example.com", "email_verified": True, "groups": ["oncall"]}
        claims = {name: value for name, value in (usual | self.claims).items() if name not in self.without}
        if self.algorithm == "none":
            parts = [json.dumps({"alg": "none"}), json.dumps(claims), ""]
            return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
        key = self.signs_with or self.key
        return jwt.encode({"alg": self.algorithm, "kid": key.kid or "x"}, claims, key)


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """A provider on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._wait()
            parts = urlsplit(self.path)
            if issuer.is_broken:
                self._send(500, {"error": "broken"})
            elif parts.path == "/.well-known/openid-configuration":
                self._send(200, {"issuer": issuer.address, "jwks_uri": f"{issuer.address}/keys"} | {
                    "authorization_endpoint": f"{issuer.address}/authorize", "token_endpoint": f"{issuer.address}/token"
                })  # fmt: skip
            elif parts.path == "/keys":
                issuer.key_requests += 1
                self._send(200, {"keys": [issuer.key.as_dict(private=False)]})
            elif parts.path == "/authorize":
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                self.send_response(302)
                self.send_header("Location", issuer.authorize(query))
                self.end_headers()
            else:
                self._send(404, {})

        def do_POST(self) -> None:
            self._wait()
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            if issuer.is_broken:
                self._send(503, {})
            else:
                self._send(*issuer.exchange(form, self.headers.get("Authorization", "")))

        def _wait(self) -> None:
            issuer.requests += 1
            if issuer.continues is not None:
                issuer.continues.wait(60)

        def _send(self, status: int, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Nothing: the test asks the issuer."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer = Issuer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
