"""The work on Spark: extract, validate, load. Thousands of work items per job, one outcome per partition."""
