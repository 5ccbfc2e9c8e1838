"""The policy of alerts as pure functions: conditions, the state machine, quiet hours and notifications."""
