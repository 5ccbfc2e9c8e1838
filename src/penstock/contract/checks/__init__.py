"""The kinds of checks, one module per kind, and the registry that links each kind to its module."""
