"""Parts of scheduling.py: what is asked, how it is sent, and what comes of it."""
