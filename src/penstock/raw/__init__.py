"""Raw partitions: each attempt has its own folder, which never changes after it is sealed."""
