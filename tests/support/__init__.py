"""Tools that several tiers of tests share: the independent checker of a workspace."""
