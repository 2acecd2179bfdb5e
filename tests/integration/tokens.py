"""Tokens for the broker of ``test_tokens``, which accepts unsigned ones (unsecured JWS)."""

from __future__ import annotations

import base64
import json
import os
import time

USER = "token-user"


def token() -> str:
    """Return a token that is valid for as many seconds as TOKEN_SECONDS says."""
    now = time.time()
    claims = {"sub": USER, "iat": now - 3600, "exp": now + float(os.environ["TOKEN_SECONDS"])}
    return f"{_packed({'alg': 'none'})}.{_packed(claims)}."


def no_token() -> str:
    """Fail, as a provider whose server is away."""
    raise OSError("a secret that is not shown")


def _packed(content: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
