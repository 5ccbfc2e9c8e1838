"""Projections of the ledger: pure folds of events, and the Parquet tables that hold their results."""
