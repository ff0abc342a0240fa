"""The state of a network for people: health, rates and rows."""
