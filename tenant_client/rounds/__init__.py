"""What this side gives to a federation: policy, counts, ledger, tokens, network."""
