"""Parts of ``scheduling_simulation.py``: one module for each thing that simulating a scheduler needs."""
