"""Notifications: one module for each kind of channel, and their registry."""
