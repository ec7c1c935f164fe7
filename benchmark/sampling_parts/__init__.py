"""Parts of ``sampling_control.py``: measures, arms, the server's answers, equal means, cost, Mirostat, schemas, claims."""
