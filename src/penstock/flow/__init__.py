"""One run: what is issued, extracted, validated and loaded, in batches."""
