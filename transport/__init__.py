"""Bytes between machines: unary calls over TLS with pinned certificates, for whoever has something to ask or answer."""
