"""Which run is authoritative. Each actor gets an object that has only its own verbs."""
