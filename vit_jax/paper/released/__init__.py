"""The paper's numbers and pictures from the authors' released weights.

Nothing is trained: `python -m vit_jax.reproduce released --weights=DIR`.
WORKDIR/released has the pages, and in evaluations/ the results, each made once
for a file, the data and the config keys that are set.
"""
