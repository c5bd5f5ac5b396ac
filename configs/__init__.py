"""The configs and sweeps of the project, importable as `vit_jax.configs`."""
