"""What a slice must look like: its schema and checks, and the complaints about a slice that does not."""
