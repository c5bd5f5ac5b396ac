"""A model and a run small enough for tests."""

from tests.tiny_run import tiny_config


def config(dataset='synthetic', **model):
  """Returns a config with 16 px, one block, and one image for each device."""
  return tiny_config(
    {
      'data.dataset': dataset,
      'data.batch_size': 8,
      'image_size': (16, 16),
      'channels': 3,
      'total_steps': 100,
      'model.name': 'ViT-Ti/8',
      'mesh.data': -1,
    }
    | {f'model.{key}': value for key, value in model.items()}
  )
