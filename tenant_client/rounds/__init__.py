"""The tenant's part in a round: tokens, counts, policy and the answers to the provider's questions."""
