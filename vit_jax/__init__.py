"""The Vision Transformer paper (arXiv:2010.11929) as a program, in JAX."""

from vit_jax import buckets

__version__ = '0.1.0'

buckets.register()
