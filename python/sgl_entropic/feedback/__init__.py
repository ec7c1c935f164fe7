"""State that one request carries from token to token, in plain Python: entropic time and its companions."""
