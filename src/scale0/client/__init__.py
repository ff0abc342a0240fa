"""What users import: `Client`, `AsyncClient`, `Worker`, and the errors that they raise.

Reading order: `payload` (arguments as bytes), `errors`, `client`, `asynchronous`, `worker`.
"""
