"""One database, two dialects: SQLite by default, PostgreSQL in production."""
