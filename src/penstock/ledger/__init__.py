"""What happened: past-tense facts, appended in the transaction of the state they describe."""
