"""Decides what happens next: expected and due partitions, plans, retries, backfills, breakers, rescue."""
