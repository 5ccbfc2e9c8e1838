"""Sources: protocol, registry, and the built-in kinds google_ads, sql, files, http and demo."""
