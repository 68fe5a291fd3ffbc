"""Bytes between machines: unary calls over TLS under pinned roots, for whoever has something to ask or answer."""
