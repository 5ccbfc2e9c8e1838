"""The soak: many processes on one workspace for a given time, with faults and operations in a seeded sequence.

It ends with the independent checker of `tests/support`. See docs/reliability.md.
"""
