"""Penstock measured against a plain script that does the same work: `python -m bench --partitions 10000`.

The control plane alone, on both databases: `python -m bench.control_plane`.
"""
