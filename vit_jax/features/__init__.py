"""Features of many images in files, for other programs and for `vit_jax.knn`.

`python -m vit_jax.features` computes them (`extraction.py`) and writes them in
shards (`store.py`).
"""

from vit_jax.features.store import Stored

__all__ = ['Stored']
