"""Received once, for ever: every attempt has a folder of its own, and once sealed it never changes."""
