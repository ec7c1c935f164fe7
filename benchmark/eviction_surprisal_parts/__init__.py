"""Parts of eviction_surprisal.py: requests made of real texts, their measured surprisals, replays, and what comes of them."""
