"""Parts of ``twin.py``: one module for each thing that a comparison of servers needs."""
