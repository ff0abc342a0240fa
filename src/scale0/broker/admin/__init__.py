"""Management: commands, access, tokens and views."""
