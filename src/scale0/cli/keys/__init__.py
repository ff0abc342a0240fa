"""Commands about keys, tokens and passwords."""
