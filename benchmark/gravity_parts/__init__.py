"""Parts of the programs about narrative gravity."""
