"""What the ledger says now: pure folds of events, and the Parquet tables that keep their results."""
