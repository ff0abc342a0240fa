"""Commands about the pipeline and its reports."""
