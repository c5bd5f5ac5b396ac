"""A model and a run small enough for tests."""

from vit_jax import config as config_lib


def config(dataset='synthetic', **model):
  """16 px, one block of width 16, a batch of 8: one for each device."""
  result = config_lib.default()
  result.data.dataset = dataset
  result.data.batch_size = 8
  result.image_size = (16, 16)
  result.total_steps = 100
  result.model.name = 'ViT-Ti/8'
  options = {'width': 16, 'depth': 1, 'heads': 2, 'mlp_dim': 32} | model
  for key, value in options.items():
    setattr(result.model, key, value)
  return result
