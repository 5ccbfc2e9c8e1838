"""The event ledger: past-tense facts, appended in the transaction of the state change that they record."""
