"""The authoritative run of each partition. Each actor gets a store with only its own operations."""
