"""Writes programs and folders of weights that run without this package.

`python -m vit_jax.export` is the command; `forms.FORMS` lists what it writes.
"""
