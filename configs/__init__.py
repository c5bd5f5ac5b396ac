"""The configs and sweeps that come with the code (`vit_jax.configs`)."""
