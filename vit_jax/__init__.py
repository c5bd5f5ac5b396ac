"""The Vision Transformer paper (arXiv:2010.11929) as a program, in JAX."""

__version__ = '0.1.0'
