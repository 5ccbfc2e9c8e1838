"""Listeners: what a run reports to people and to other systems while it works and when it ends."""
