"""Commands about the network as a whole."""
