"""JSON documents of the values that commands return."""
