"""VTAB-1k (arXiv:1910.04867): 19 tasks, their data, and their score.

`tasks.py` is the table of the tasks, `labels.py` computes their labels, and
`source.py` opens the data spec `vtab:TASK`. `python -m vit_jax.vtab` prints the
score of finished runs.
"""
