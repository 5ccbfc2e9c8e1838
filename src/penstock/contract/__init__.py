"""Data contracts: the schema and checks of a partition, the parsing of payloads, and the complaints of validation."""
