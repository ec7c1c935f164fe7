"""Parts of eviction_server.py: sessions of requests, how they are sent, what comes of it, and the same without a server."""
