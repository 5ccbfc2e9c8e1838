"""One run as a graph of tasks: extract, validate and load, dispatched in batches."""
