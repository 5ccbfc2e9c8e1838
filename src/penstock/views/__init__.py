"""JSON documents of the values that commands and the HTTP API return."""
