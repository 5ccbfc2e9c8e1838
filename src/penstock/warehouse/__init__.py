"""The tables that consumers read: Delta tables, pointers to the served run of each partition, publish protocol."""
