"""Analysis of trained models: attention and embeddings (§4.5, D.7, D.8).

    weights = inspect.in_pieces(model, params, images)
    inspect.mean_attention_distance(
      weights, grid=(14, 14), num_prefix_tokens=1, image_size=(224, 224)
    )

Its public name is `vit_jax.inspect`. `python -m vit_jax.inspect` draws Figures
6, 7, 10, 11 and 14 of the paper for any checkpoint and images; `figures` has
the functions that draw.
"""

import importlib

# Public name -> its module, which is loaded when the name is used: `vit_jax`
# imports this package in every program.
_HOLDERS = {
  'attention_weights': 'capture',
  'in_pieces': 'capture',
  'prefix_tokens': 'capture',
  'mean_attention_distance': 'attention_maps',
  'rollout': 'attention_maps',
}


def __getattr__(name: str):
  if name not in _HOLDERS:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'{__name__}.{_HOLDERS[name]}')
  return getattr(module, name)
