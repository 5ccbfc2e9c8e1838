"""Generated reference pages that need more than a table of one value."""
