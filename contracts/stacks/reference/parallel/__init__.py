"""The model over many ranks: mesh, what is cut and what is sent. `parallelize.py` is the page to begin with."""
