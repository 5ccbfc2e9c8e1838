"""What consumers may read: Delta tables, pointers that say which run is in them, and the protocol that moves both."""
