"""Analysis of trained models: attention and embeddings (§4.5, D.7, D.8).

    weights = inspect.attention_weights(model, params, images)

Its public name is `vit_jax.inspect`. `python -m vit_jax.inspect` draws Figures
6, 7, 10, 11 and 14 of the paper for any checkpoint and images; `figures` has
the functions that draw.
"""


def __getattr__(name: str):
  if name != 'attention_weights':
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  # Loaded only when it is used: `vit_jax` imports this package everywhere.
  from vit_jax.inspection import capture

  return capture.attention_weights
