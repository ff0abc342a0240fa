"""The line protocol between Helen and her agents."""
