"""Penstock measured against a plain script that does the same work: `python -m bench --partitions 10000`."""
