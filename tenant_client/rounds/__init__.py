"""The tenant's part in a round: tokens, counts, policy, and answers to the provider's queries."""
