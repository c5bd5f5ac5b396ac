"""Guards masked autoencoders: what is hidden, the model, the loss, the mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_step
from tests.models import naive, stacking
from vit_jax import config as config_lib
from vit_jax import models, sharding
from vit_jax.losses import corruption, masked_patch, targets
from vit_jax.models import layers, position
from vit_jax.training import program as program_lib

SIZE, GRID = (8, 16), (2, 4)  # Patches of 4x4 px.
BATCH = 8
IMAGES = np.random.default_rng(0).integers(0, 256, (BATCH, *SIZE, 3), np.uint8)


def _config(**section):
  config = config_lib.default()
  config.image_size = SIZE
  sizes = dict(decoder_depth=1, decoder_width=16, decoder_heads=2)
  config.loss = config_lib.mae(**(sizes | section))
  return config


def _model(**overrides):
  sizes = dict(width=8, depth=1, heads=2, mlp_dim=16, gelu='exact')
  sizes['position_embedding'] = 'sincos2d_mae'
  return models.build('ViT-Ti/4', num_classes=5, **(sizes | overrides))


def _task(model=None, **section):
  return masked_patch.build(_config(**section), model or _model())


def _batch(key=5):
  batch = {'image': IMAGES}
  return masked_patch.add_image_keys(batch, jax.random.key(key))


@functools.cache
def _params(**overrides):
  model = _task(_model(**overrides)).model
  images = jnp.zeros((1, *SIZE, 3))
  return naive.random_params(model, images, scale=0.5)


def _loss_and_grad(task, params, layout=None, steps=1):
  layout = layout or tiny_step.one_device()
  function = tiny_step.loss_and_grad(
    masked_patch.mean_loss(task), layout, jax.random.key(0), steps=steps
  )
  batch = sharding.put_batch(jax.device_get(_batch()), layout.mesh)
  params = jax.device_put(params, layout.params(params))
  return jax.device_get(jax.jit(function)(params, batch, jax.random.key(0)))


# What is hidden --------------------------------------------------------------


@pytest.mark.parametrize('mask, hidden', [(0.75, 147), (0.9, 177)])
def test_all_patches_are_hidden_equally_often(mask, hidden):
  config = _config(mask=mask)
  config.image_size = (56, 56)  # 196 patches, as in ViT-B/16.
  task = masked_patch.build(config, _model())
  keys = corruption.image_keys(jax.random.key(0), jnp.arange(1000))
  corrupted, source = jax.device_get(jax.jit(task.corruption.draw)(keys))
  # The authors keep int(196 * (1 - mask)).
  np.testing.assert_array_equal(corrupted.sum(axis=1), hidden)
  np.testing.assert_array_equal(source == -1, corrupted)
  assert task.model.decoder.visible == 196 - hidden
  # Five standard deviations of 1,000 draws.
  share = hidden / 196
  error = 5 * (share * (1 - share) / 1000) ** 0.5
  assert np.abs(corrupted.mean(axis=0) - share).max() < error
  assert len(np.unique(corrupted, axis=0)) == 1000


# The model and the loss ------------------------------------------------------


def _waves(width):  # `test_position.py` has the formula.
  table = position.Table('sincos2d_mae')
  return table.apply({}, grid=GRID, num_prefix_tokens=0, width=width)[0]


def _transformer(x, params):
  x, _ = naive.block(x, params['encoderblock_0'], False, 'exact')
  return naive.layer_norm(x, params['encoder_norm'])


def _reference(params, image, hidden):
  """Returns a float64 image's encoded tokens, and the predictions."""
  x = image.reshape(2, 4, 4, 4, 3).swapaxes(1, 2).reshape(8, -1)
  kernel = params['embedding']['kernel'].reshape(-1, 8)
  tokens = x @ kernel + params['embedding']['bias'] + _waves(8)
  tokens = np.concatenate([params['cls'][0], tokens[~hidden]])
  encoded = _transformer(tokens[None], params['Transformer'])[0]
  decoder = params['decoder']
  y = naive.dense(encoded, decoder['embedding'])
  whole = np.empty((8, 16))
  whole[hidden], whole[~hidden] = decoder['mask_embedding'], y[1:]
  y = np.concatenate([y[:1], whole + _waves(16)])
  y = _transformer(y[None], decoder['Transformer'])[0, 1:]
  return encoded, naive.dense(y, decoder['patch_head'])


@pytest.mark.parametrize('scan', [False, True])
def test_the_model_and_the_losses_are_those_of_numpy(scan):
  task, batch = _task(_model(scan=scan)), _batch()
  params = _stacked() if scan else _params()

  @jax.jit
  def compute(params, batch):
    corrupted, source = task.corruption.draw(batch['corruption_key'])
    images = jnp.asarray(batch['image'], jnp.float32) / 127.5 - 1
    return corrupted, task.model.apply(
      {'params': params}, images, source=source
    )

  corrupted, (predictions, out) = jax.device_get(compute(params, batch))
  expected, exact = [[], []], naive.float64(_params())
  for i, image in enumerate(IMAGES / 127.5 - 1):
    encoded, predicted = _reference(exact, image, corrupted[i])
    np.testing.assert_allclose(out['encoded'][i], encoded, atol=1e-5)
    np.testing.assert_allclose(predictions[i], predicted, atol=1e-5)
    wanted = image.reshape(2, 4, 4, 4, 3).swapaxes(1, 2).reshape(8, -1)
    mean = wanted.mean(axis=1, keepdims=True)
    variance = wanted.var(axis=1, ddof=1, keepdims=True)
    for found, x in zip(
      expected,
      (wanted, (wanted - mean) / (variance + 1e-6) ** 0.5),
      strict=True,
    ):
      found.append(((predicted - x) ** 2).mean(axis=1)[corrupted[i]])
  pixels = targets.patches(IMAGES, (4, 4))
  for normalise, found in enumerate(expected):
    loss = _task(normalise=bool(normalise)).target.loss(predictions, pixels)
    np.testing.assert_allclose(
      loss[corrupted].mean(), np.mean(found), rtol=1e-5
    )


def test_a_perfect_prediction_is_drawn_as_the_patch():
  pixels = np.random.default_rng(1).integers(0, 256, (2, 3, 4, 4, 3), np.uint8)
  x = pixels.reshape(2, 3, 48) / 127.5 - 1
  x = (x - x.mean(-1, keepdims=True)) / x.std(-1, ddof=1, keepdims=True)
  drawn = _task().target.pixels(np.float32(x), pixels)
  np.testing.assert_array_equal(drawn, pixels)


def test_features_are_those_of_the_whole_image():
  head = {'head': {'kernel': np.zeros((8, 5)), 'bias': np.zeros(5)}}
  for layer, scan in (('pre_logits', False), ('block_0', True)):
    params, model = _stacked() if scan else _params(), _model(scan=scan)
    plain = layers.represent(model, params | head, IMAGES, layer)
    mesh = sharding.make_mesh(1)
    found = layers.compiled(_task(model).model, mesh, layer)(params, IMAGES)
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-5)


# Scan and the mesh -----------------------------------------------------------


def _stacked():
  params = stacking.stack_blocks(_params())
  return params | {'decoder': stacking.stack_blocks(params['decoder'])}


@functools.cache
def _on_one_device():
  return _loss_and_grad(_task(), _params())


def _assert_close(actual, expected):
  np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.gate
@pytest.mark.parametrize(
  'mesh, partition, steps, scan',
  [((4,), 'manual', 2, True), ((2, 2, 2), 'auto', 1, False)],
)
def test_a_mesh_gives_the_gradient_of_one_device(mesh, partition, steps, scan):
  layout = sharding.Layout(sharding.make_mesh(*mesh), partition=partition)
  task = _task(_model(scan=True, remat='full') if scan else None)
  params = _stacked() if scan else _params()
  (loss, _), grads = _loss_and_grad(task, params, layout, steps)
  grads = models.unstack_blocks(grads) if scan else grads
  jax.tree.map(_assert_close, ((loss, {}), grads), _on_one_device())


# Refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'loss.mask': 0.99}, 'loss.mask=0.99 leaves 0 of the 8'),
    ({'loss.decoder_width': 24}, 'decoder_width=24 .*8 times .*=2'),
    ({'lora.rank': 4}, 'lora.rank=4 '),
    ({'mixup_alpha': 0.1}, "mixup_alpha=0.1 .*'mae'"),
    ({'cutmix_alpha': 1.0}, "cutmix_alpha=1.0 .*'mae'"),
    (
      {'model.position_embedding': 'relative'},
      "'mae' .*nor relative positions",
    ),
    ({'model.attention': 'axial', 'model.pooling': 'gap'}, "='full'"),
    ({'model.position_site': 'every_layer_shared'}, "='stem'"),
  ],
)
def test_what_does_not_go_with_it_is_refused(changes, message):
  config = _config()
  config.model.dtype = 'float32'
  config.num_classes, config.data.batch_size, config.total_steps = 2, 8, 1
  config.model.name = 'ViT-Ti/4'
  config.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=message):
    program_lib.Program(config, tiny_step.one_device())
