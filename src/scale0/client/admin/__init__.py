"""Reading a network for people: health, rates and rows."""
