"""I/O that every subject uses: the asyncio runner, commits, files, child processes, logging."""
