"""Guards: every ablation learns real digits in 400 of the trainer's steps."""

import jax
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import data, models
from vit_jax.models import images as images_lib
from vit_jax.training import losses
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import step as step_lib

STEPS, BATCH = 400, 64
TINY_VIT = dict(width=32, depth=2, heads=2, mlp_dim=64)
# Name, overrides, and the least accuracy on 360 test images (chance is 10%).
ABLATIONS = [
  # D.4: kinds of position embedding and where they are added. Without one, the
  # model does not know where patches are, so its least accuracy is lower.
  ('ViT-Ti/2', TINY_VIT | {'position_embedding': 'none'}, 0.6),
  ('ViT-Ti/2', TINY_VIT, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'position_site': 'every_layer'}, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'position_site': 'every_layer_shared'}, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'position_embedding': '2d'}, 0.78),
  (
    'ViT-Ti/2',
    TINY_VIT | {'position_embedding': '2d', 'position_site': 'every_layer'},
    0.78,
  ),
  (
    'ViT-Ti/2',
    TINY_VIT
    | {'position_embedding': '2d', 'position_site': 'every_layer_shared'},
    0.78,
  ),
  ('ViT-Ti/2', TINY_VIT | {'position_embedding': 'relative'}, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'position_embedding': 'relative_per_head'}, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'position_embedding': 'sincos2d'}, 0.78),
  # D.3: class token or pooling, linear or tanh head.
  ('ViT-Ti/2', TINY_VIT | {'representation_size': 32}, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'pooling': 'gap'}, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'pooling': 'gap', 'representation_size': 32}, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'pooling': 'map'}, 0.78),
  # D.2: shapes.
  ('ViT-Ti/2', TINY_VIT | {'depth': 4}, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'width': 64}, 0.78),
  ('ViT-Ti/2', TINY_VIT | {'mlp_dim': 128}, 0.78),
  ('ViT-Ti/4', TINY_VIT, 0.78),
  # D.6: axial attention.
  ('Axial-ViT-Ti/2', TINY_VIT, 0.78),
  ('Axial-ViT-Ti/2', TINY_VIT | {'position_embedding': 'relative'}, 0.78),
  # Hybrids, with only a root and with one stage.
  ('ViT-Ti/1', TINY_VIT | {'resnet_blocks': ()}, 0.9),
  ('ViT-Ti/1', TINY_VIT | {'resnet_blocks': (1,)}, 0.9),
  # The ResNets that the paper compares with.
  ('BiT-R50x1', {'blocks': (1, 1)}, 0.9),
  ('AxialResNet50', {'blocks': (1, 1)}, 0.9),
]


@pytest.fixture(scope='module')
def digits():
  return read_digits()


def read_digits():
  """Returns (images, labels) for training and test.

  Images are uint8 [N, 8, 8, 1], labels int32 [N].
  """
  source = data.open_source('digits')
  result = []
  for split in ('train', 'test'):
    records = list(data.View(source, split))
    images = np.stack([record.image for record in records])
    result.append(
      (images, np.array([record.label for record in records], np.int32))
    )
  return result


def train(name, overrides, digits):
  """Returns the accuracy on the test images after `STEPS` steps."""
  (images, labels), (test_images, test_labels) = digits
  model = models.build(name, num_classes=10, **overrides)
  schedule = optimizer_lib.build_schedule(
    config_lib.schedule('cosine', peak=3e-3, warmup_steps=20), STEPS
  )
  optimizer = optimizer_lib.build_optimizer(
    config_lib.adam(clip_norm=1.0), schedule
  )
  params_key, dropout_key = step_lib.root_keys(0, 'threefry')
  state = step_lib.init_state(
    step_lib.init_params(model, params_key, images.shape[1:]),
    optimizer,
    polyak=False,
  )
  step = jax.jit(
    step_lib.make_train_step(
      model,
      losses.mean_loss(model, losses.build('softmax')),
      optimizer,
      schedule,
      dropout_key,
    ),
    donate_argnums=0,
  )
  rng = np.random.default_rng(0)
  for _ in range(STEPS):
    rows = rng.integers(len(images), size=BATCH)
    batch = {
      'image': images[rows],
      'label': labels[rows],
      'mask': np.ones(BATCH, bool),
      'unreadable': np.zeros(BATCH, bool),
    }
    state, metrics = step(state, batch)
  assert np.isfinite(metrics['loss'])
  logits, _ = jax.jit(model.apply)(
    {'params': state.params}, images_lib.normalize(test_images)
  )
  return float(np.mean(np.argmax(logits, 1) == test_labels))


@pytest.mark.slow  # About 10 s each.
@pytest.mark.parametrize('name, overrides, least', ABLATIONS)
def test_models_learn_digits(name, overrides, least, digits):
  assert train(name, overrides, digits) > least
