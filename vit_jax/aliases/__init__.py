"""Public names of modules whose own names differ, on `vit_jax.__path__`."""
