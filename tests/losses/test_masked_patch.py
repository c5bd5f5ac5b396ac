"""Guards masked patch prediction: corruption, adapted model, loss, and step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_step
from tests.interop import tiny
from vit_jax import config as config_lib
from vit_jax import models, sharding
from vit_jax.losses import corruption, masked_patch
from vit_jax.models import vit

SIZE = (8, 12)  # 2 x 3 patches of 4x4 px.
BATCH = tiny_step.batch(8, SIZE, 3)


def _model(**overrides):
  sizes = dict(width=8, depth=1, heads=2, mlp_dim=16)
  return models.build('ViT-Ti/4', num_classes=5, **(sizes | overrides))


def _task(model=None, *, size=SIZE, channels=3, changes=None, **section):
  config = config_lib.default()
  config.image_size, config.channels = size, channels
  config.loss = config_lib.masked_patch()
  config.loss.update(section)
  config.update(changes or {})
  return masked_patch.build(config, model or _model())


def _params(model):
  """Returns random parameters, so that a wrong one changes a result."""
  return jax.tree.map(lambda x: 0.3 * x, tiny.params(model, SIZE))


# Corruption ------------------------------------------------------------------


def test_half_of_the_patches_are_corrupted_in_the_papers_proportions():
  task = _task(size=(56, 56))  # 196 patches, as in ViT-B/16.
  keys = corruption.image_keys(jax.random.key(0), jnp.arange(500))
  corrupted, source = jax.device_get(jax.jit(task.corruption.draw)(keys))
  np.testing.assert_array_equal(corrupted.sum(axis=1), 98)
  own = np.arange(196)
  of_corrupted = source[corrupted]
  own_of_corrupted = np.broadcast_to(own, source.shape)[corrupted]
  masked = np.mean(of_corrupted == -1)
  unchanged = np.mean(of_corrupted == own_of_corrupted)
  # Four standard deviations of 49,000 patches are 0.0073 and 0.0055.
  assert abs(masked - 0.8) < 0.0073
  assert abs(unchanged - 0.1) < 0.0055
  assert abs(1 - masked - unchanged - 0.1) < 0.0055
  assert (source[~corrupted] == np.where(corrupted, -2, own)[~corrupted]).all()


def test_an_images_corruption_does_not_depend_on_its_batch():
  draw = jax.jit(_task().corruption.draw)
  key = jax.random.key(3)
  _, whole = draw(corruption.image_keys(key, jnp.arange(8)))
  _, later = draw(corruption.image_keys(key, jnp.arange(5, 13)))
  np.testing.assert_array_equal(later[:3], whole[5:])
  assert len(np.unique(whole, axis=0)) == 8


def test_embeddings_are_replaced_according_to_the_source():
  x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
  mask = np.array([-1.0, -2.0, -3.0], np.float32)
  source = np.array([[0, -1, 3, 3], [-1, 0, 2, 1]])
  expected = [
    [[0, 1, 2], [-1, -2, -3], [9, 10, 11], [9, 10, 11]],
    [[-1, -2, -3], [12, 13, 14], [18, 19, 20], [15, 16, 17]],
  ]
  np.testing.assert_array_equal(
    vit.replace_embeddings(x, source, mask), expected
  )


# The model -------------------------------------------------------------------


def test_an_adapted_model_has_the_same_encoder_and_features():
  model = _model()
  adapted = _task(model).model
  params = _params(adapted)
  plain = _params(model)
  assert sorted(plain) == ['Transformer', 'cls', 'embedding', 'head']
  own = {k: v for k, v in params.items() if k in plain}
  assert sorted(params.keys() - own.keys()) == ['mask_embedding', 'patch_head']
  assert params['mask_embedding'].shape == (8,)
  assert params['patch_head']['kernel'].shape == (8, 512)
  images = jnp.float32(BATCH['image'][:2]) / 127.5 - 1
  head = plain['head']
  logits, out = jax.jit(model.apply)({'params': own | {'head': head}}, images)
  predictions, adapted_out = jax.jit(adapted.apply)({'params': params}, images)
  assert logits.shape == (2, 5)
  assert predictions.shape == (2, 6, 512)
  for name in ('embedded', 'encoded', 'pre_logits'):
    np.testing.assert_array_equal(adapted_out[name], out[name])
  patches = out['encoded'][:, -6:]
  expected = patches @ params['patch_head']['kernel']
  expected += params['patch_head']['bias']
  np.testing.assert_allclose(predictions, expected, rtol=1e-4, atol=1e-4)
  # A classifier accepts no source.
  with pytest.raises(ValueError, match=r'source .* models with patch_outp'):
    model.apply({'params': plain}, images, source=jnp.zeros((2, 6), int))
  assert 'patch_outputs' not in models.options('ViT-B/16')


# The loss, and the training step ---------------------------------------------


# `test_targets.py` guards what each target is.
@pytest.mark.parametrize(
  'target', ['downsized', pytest.param('pixels', marks=pytest.mark.gate)]
)
def test_the_loss_is_the_mean_over_corrupted_patches(target):
  task = _task(target=target, fraction=0.3)
  params = _params(task.model)
  batch = masked_patch.add_image_keys(BATCH, jax.random.key(5))
  objective = masked_patch.mean_loss(task)

  @jax.jit
  def both(params, batch):
    loss = objective(params, batch, jax.random.key(0))
    return loss, masked_patch.measure(task, params, batch)

  (loss, metrics), found = both(params, batch)
  corrupted = np.asarray(found.corrupted)
  assert corrupted.sum() == 8 * 2  # 0.3 of 6 patches, rounded.
  np.testing.assert_allclose(
    loss, np.asarray(found.loss)[corrupted].mean(), rtol=1e-5
  )
  correct = np.asarray(found.classes == found.predicted)[corrupted]
  np.testing.assert_allclose(metrics['accuracy'], correct.mean(), rtol=1e-5)


def test_masked_patches_are_not_seen():
  task = _task(fraction=1.0, mask_share=1.0, other_share=0.0)
  batch = masked_patch.add_image_keys(BATCH, jax.random.key(5))
  measure = jax.jit(functools.partial(masked_patch.measure, task))
  found = measure(_params(task.model), batch)
  assert found.corrupted.all()
  # The images differ, but each position has the same prediction in all of them.
  assert (found.predicted == found.predicted[:1]).all()
  assert (found.classes != found.classes[:1]).any()


def test_a_steps_corruption_is_the_same_on_any_mesh():
  found = []
  for devices in (1, 8):
    layout = sharding.Layout(sharding.make_mesh(devices))
    prepare = jax.jit(masked_patch.make_prepare_batch(5, layout))
    batch = sharding.put_batch(BATCH, layout.mesh)
    found += [prepare(batch, step)['corruption_key'] for step in (3, 4)]
  one, other, eight, _ = found
  np.testing.assert_array_equal(eight, one)
  assert not np.array_equal(one, other)
  assert not eight.sharding.is_fully_replicated
  key = jax.random.fold_in(corruption.corruption_key(5), 3)
  expected = corruption.image_keys(key, jnp.arange(8))
  np.testing.assert_array_equal(one, expected)


# Refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'target': 'downsized', 'size': (24, 24)}, "'downsized' .*multiple of 4"),
    ({'channels': 4}, 'channels=4 .*at most 3'),
    (
      {'mask_share': 0.8, 'other_share': 0.3},
      'loss.other_share=0.3 .*at most 1',
    ),
    ({'fraction': 0.01}, 'loss.fraction=0.01 .*at least'),
    ({'size': (4, 4)}, 'at least two'),
    ({'changes': {'mixup_alpha': 0.1}}, 'mixup_alpha=0.1 .*to 0'),
    ({'changes': {'cutmix_alpha': 1.0}}, 'cutmix_alpha=1.0 .*to 0'),
  ],
)
def test_invalid_loss_sections_are_refused(changes, message):
  model = _model(patch_size=6) if changes.get('size') == (24, 24) else None
  with pytest.raises(ValueError, match=message):
    _task(model, **changes)


@pytest.mark.parametrize('key, value', [('target', 'x'), ('fraction', -0.1)])
def test_wrong_values(key, value):
  config = config_lib.default()
  config.data.dataset, config.total_steps = 'digits', 1
  config.loss = config_lib.masked_patch()
  config_lib.validate(config)
  config.loss[key] = value
  with pytest.raises(ValueError, match=f'loss.{key}=.* must be '):
    config_lib.validate(config)


@pytest.mark.parametrize(
  'name, overrides, message',
  [
    ('BiT-R50x1', {}, 'BiT has no patch'),
    ('R+Ti/16', {}, 'hybrid'),
    ('ViT-Ti/4', {'representation_size': 8}, 'representation_size=8 .*0'),
    ('ViT-Ti/4', {'pooling': 'map'}, "pooling='map' .*'token' or 'gap'"),
  ],
)
def test_unsupported_models_are_refused(name, overrides, message):
  model = models.build(name, num_classes=2, **overrides)
  with pytest.raises(ValueError, match=message):
    _task(model, size=(64, 64))
