"""Parts of ``attention_quality.py``: the model, documents, variants, forced decoding, measures, tables and the plot."""
