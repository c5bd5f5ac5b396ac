"""Guards masked patch prediction: corruption, adapted model, loss, and step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import masked_patch, models, sharding
from vit_jax.masked_patch import corruption, targets
from vit_jax.models import embedding
from vit_jax.training import gradients
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import step as step_lib

SIZE = (16, 24)  # 4 x 6 patches of 4x4 px.
BATCH = 16


def _model(**overrides):
  sizes = dict(width=16, depth=2, heads=2, mlp_dim=32)
  return models.build('ViT-Ti/4', num_classes=5, **(sizes | overrides))


def _task(model=None, *, size=SIZE, channels=3, **changes):
  section = dict(
    target='mean_colour', fraction=0.5, mask_share=0.8, other_share=0.1
  )
  return masked_patch.build(
    model or _model(), size, channels, **(section | changes)
  )


def _images(count=BATCH, size=SIZE, channels=3):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (count, *size, channels), dtype=np.uint8)


def _batch(count=BATCH):
  return {
    'image': _images(count),
    'label': np.zeros(count, np.int32),
    'mask': np.ones(count, bool),
    'unreadable': np.zeros(count, bool),
  }


def _params(model, key=0):
  """Returns random parameters, so that a wrong one changes a result."""
  params = step_lib.init_params(model, jax.random.key(key), (*SIZE, 3))
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(key), len(leaves))
  return jax.tree.unflatten(
    tree,
    [
      x + 0.3 * jax.random.normal(k, x.shape)
      for k, x in zip(keys, leaves, strict=True)
    ],
  )


# Corruption ------------------------------------------------------------------


def _draw_corruptions(count, **changes):
  task = _task(size=(56, 56), **changes)  # 196 patches, as in ViT-B/16.
  keys = corruption.image_keys(jax.random.key(0), jnp.arange(count))
  return jax.device_get(jax.jit(task.corruption.draw)(keys))


def test_half_of_the_patches_are_corrupted_in_the_papers_proportions():
  corrupted, source = _draw_corruptions(500)
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


def test_positions_and_distances_are_uniform():
  corrupted, source = _draw_corruptions(2000, mask_share=0.0, other_share=1.0)
  # Each of 196 positions occurs in 1,000 +- 22 of 2,000 images.
  assert np.abs(corrupted.sum(axis=0) - 1000).max() < 110
  distance = (source - np.arange(196))[corrupted] % 196
  counts = np.bincount(distance, minlength=196)
  # A patch never gets its own; each other distance occurs 1,005 +- 32 times.
  assert counts[0] == 0
  assert np.abs(counts[1:] - 196_000 / 195).max() < 160


@pytest.mark.parametrize('fraction, count', [(0.15, 29), (1.0, 196)])
def test_fraction_sets_the_number_of_corrupted_patches(fraction, count):
  corrupted, _ = _draw_corruptions(3, fraction=fraction)
  np.testing.assert_array_equal(corrupted.sum(axis=1), count)


def test_mask_share_of_one_and_of_zero():
  corrupted, source = _draw_corruptions(20, mask_share=1.0, other_share=0.0)
  np.testing.assert_array_equal(source == -1, corrupted)
  _, source = _draw_corruptions(20, mask_share=0.0, other_share=0.0)
  assert (source == np.arange(196)).all()


def test_an_images_corruption_does_not_depend_on_its_batch():
  corruption_ = _task().corruption
  key = jax.random.key(3)
  _, whole = corruption_.draw(corruption.image_keys(key, jnp.arange(8)))
  _, part = corruption_.draw(corruption.image_keys(key, jnp.arange(5, 8)))
  np.testing.assert_array_equal(part, whole[5:])
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
    embedding.replace_embeddings(x, source, mask), expected
  )


# The model -------------------------------------------------------------------


def test_positions_are_kept_and_the_class_token_is_not_touched():
  task = _task()
  model = masked_patch.adapted(_model(), task)
  params = _params(model)
  images = jnp.asarray(_images(2), jnp.float32) / 127.5 - 1

  def embedded(source=None):
    _, out = model.apply({'params': params}, images, source=source)
    return np.asarray(out['embedded'])

  own = np.arange(24)
  source = np.stack([np.where(own == 5, -1, own), np.where(own == 7, 2, own)])
  whole, found = embedded(), embedded(source)
  np.testing.assert_array_equal(embedded(np.stack([own, own])), whole)
  positions = np.asarray(
    params['Transformer']['posembed_input']['pos_embedding'][0]
  )  # [25, D], the class token first.
  expected = whole.copy()
  expected[0, 6] = params['mask_embedding'] + positions[6]
  expected[1, 8] = whole[1, 3] - positions[3] + positions[8]
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize('pooling', ['token', 'gap'])
def test_an_adapted_model_has_the_same_encoder_and_features(pooling):
  model = _model(pooling=pooling)
  adapted = masked_patch.adapted(model, _task(model))
  params = _params(adapted)
  own = {k: v for k, v in params.items() if k in _params(model)}
  assert sorted(params.keys() - own.keys()) == ['mask_embedding', 'patch_head']
  assert params['mask_embedding'].shape == (16,)
  assert params['patch_head']['kernel'].shape == (16, 512)
  images = jnp.asarray(_images(2), jnp.float32) / 127.5 - 1
  head = _params(model)['head']
  logits, out = model.apply({'params': own | {'head': head}}, images)
  predictions, adapted_out = adapted.apply({'params': params}, images)
  assert logits.shape == (2, 5)
  assert predictions.shape == (2, 24, 512)
  for name in ('embedded', 'encoded', 'pre_logits'):
    np.testing.assert_array_equal(adapted_out[name], out[name])
  patches = out['encoded'][:, -24:]
  expected = patches @ params['patch_head']['kernel']
  expected += params['patch_head']['bias']
  np.testing.assert_allclose(predictions, expected, rtol=1e-4, atol=1e-4)


def test_predictions_are_summed_in_float32():
  model = _model(dtype='bfloat16')
  adapted = masked_patch.adapted(model, _task(model))
  predictions = jax.eval_shape(
    adapted.apply,
    {'params': _params(adapted)},
    jnp.zeros((1, *SIZE, 3)),
  )[0]
  assert predictions.dtype == jnp.float32


def test_a_classifier_has_no_mask_embedding_and_accepts_no_source():
  model = _model()
  params = step_lib.init_params(model, jax.random.key(0), (*SIZE, 3))
  assert sorted(params) == ['Transformer', 'cls', 'embedding', 'head']
  with pytest.raises(
    ValueError, match='source is only for models with patch_outp'
  ):
    model.apply(
      {'params': params},
      jnp.zeros((1, *SIZE, 3)),
      source=jnp.zeros((1, 24), jnp.int32),
    )
  assert 'patch_outputs' not in models.options('ViT-B/16')


# The loss, and the training step ---------------------------------------------


def _objective(model, task):
  return jax.jit(masked_patch.mean_loss(model, task))


@pytest.mark.parametrize('target', targets.NAMES)
def test_the_loss_is_the_mean_over_corrupted_patches(target):
  task = _task(target=target, fraction=0.3)
  model = masked_patch.adapted(_model(), task)
  params = _params(model)
  batch = masked_patch.add_image_keys(_batch(), jax.random.key(5))
  loss, metrics = _objective(model, task)(params, batch, jax.random.key(0))
  found = jax.jit(lambda p, b: masked_patch.measure(model, task, p, b))(
    params, batch
  )
  corrupted = np.asarray(found.corrupted)
  assert corrupted.sum() == BATCH * 7  # 0.3 of 24 patches, rounded.
  np.testing.assert_allclose(
    loss, np.asarray(found.loss)[corrupted].mean(), rtol=1e-5
  )
  correct = np.asarray(found.classes == found.predicted)[corrupted]
  np.testing.assert_allclose(metrics['accuracy'], correct.mean(), rtol=1e-5)
  assert metrics['loss'] == loss


def test_masked_patches_are_not_seen():
  task = _task(fraction=1.0, mask_share=1.0, other_share=0.0)
  model = masked_patch.adapted(_model(), task)
  batch = masked_patch.add_image_keys(_batch(), jax.random.key(5))
  found = masked_patch.measure(model, task, _params(model), batch)
  assert found.corrupted.all()
  # The images differ, but each position has the same prediction in all of them.
  assert (found.predicted == found.predicted[:1]).all()
  assert (found.classes != found.classes[:1]).any()


def test_uncorrupted_patches_do_not_affect_the_loss():
  # Embeddings of zeros hide the input, so that pixels only affect the targets.
  task = _task(mask_share=1.0, other_share=0.0)
  model = masked_patch.adapted(_model(), task)
  params = _params(model)
  params['embedding'] = jax.tree.map(jnp.zeros_like, params['embedding'])
  batch = masked_patch.add_image_keys(_batch(), jax.random.key(5))
  corrupted, _ = task.corruption.draw(batch['corruption_key'])
  pixels = np.repeat(
    np.repeat(np.asarray(corrupted).reshape(-1, 4, 6), 4, axis=1), 4, axis=2
  )[..., None]
  objective = _objective(model, task)

  def loss(image):
    return objective(params, batch | {'image': image}, jax.random.key(0))[0]

  black = np.where(pixels, batch['image'], 0)
  assert loss(black) == loss(batch['image'])
  black = np.where(pixels, 0, batch['image'])
  assert loss(black) != loss(batch['image'])


@pytest.mark.parametrize(
  'target, loss', [('mean_colour', 6.2383246), ('downsized', 6.2383246)]
)
def test_the_initial_loss_is_that_of_uniform_predictions(target, loss):
  # The head starts at zero, so the loss is ln 512.
  task = _task(target=target)
  model = masked_patch.adapted(_model(), task)
  params = step_lib.init_params(model, jax.random.key(0), (*SIZE, 3))
  batch = masked_patch.add_image_keys(_batch(), jax.random.key(5))
  found, _ = _objective(model, task)(params, batch, jax.random.key(0))
  np.testing.assert_allclose(found, loss, rtol=1e-6)


def _run(devices, steps, *, partition='auto', dropout_rate=0.0, **options):
  """Returns the metrics of each step on `devices` devices."""
  task = _task()
  model = masked_patch.adapted(_model(dropout_rate=dropout_rate), task)
  schedule = optimizer_lib.build_schedule(
    config_lib.schedule('cosine', peak=1e-2, warmup_steps=2), 10
  )
  optimizer = optimizer_lib.build_optimizer(config_lib.adam(), schedule)
  state = step_lib.init_state(_params(model), optimizer, polyak=False)
  mesh = sharding.make_mesh(devices)
  layout = sharding.Layout(mesh, partition=partition)
  _, dropout_key = step_lib.root_keys(0, 'threefry')
  train_step = step_lib.jit_train_step(
    step_lib.make_train_step(
      model,
      masked_patch.mean_loss(model, task),
      optimizer,
      schedule,
      dropout_key,
      prepare=masked_patch.each_step(0, layout),
      layout=layout,
      **options,
    ),
    layout,
    state,
  )
  history = []
  for _ in range(steps):
    state, metrics = train_step(state, sharding.put_batch(_batch(), mesh))
    history.append(jax.device_get(metrics))
  return history


@pytest.mark.parametrize(
  'partition, dropout_rate',
  [
    pytest.param('compiler', 0.0, marks=pytest.mark.slow),
    ('compiler', 0.1),
    ('manual', 0.0),
  ],
)
def test_8_devices_give_the_losses_of_one_device(partition, dropout_rate):
  one = _run(1, 5, partition='compiler', dropout_rate=dropout_rate)
  eight = _run(8, 5, partition=partition, dropout_rate=dropout_rate)
  for a, b in zip(one, eight, strict=True):
    for key in ('loss', 'accuracy'):
      np.testing.assert_allclose(b[key], a[key], rtol=1e-5)
    np.testing.assert_allclose(b['grad_norm'], a['grad_norm'], rtol=1e-4)


def test_micro_batches_give_the_same_losses():
  whole, split = _run(8, 3), _run(8, 3, accumulation_steps=2)
  for a, b in zip(whole, split, strict=True):
    np.testing.assert_allclose(b['loss'], a['loss'], rtol=1e-5)


def test_each_step_draws_another_corruption():
  task = _task()
  model = masked_patch.adapted(_model(), task)
  function = jax.jit(
    gradients.make_loss_and_grad(model, masked_patch.mean_loss(model, task))
  )
  params = _params(model)
  first, other = (
    function(
      params,
      masked_patch.add_image_keys(_batch(), jax.random.key(seed)),
      jax.random.key(0),
    )[0][0]
    for seed in (0, 1)
  )
  assert abs(first - other) > 1e-4
  # With a learning rate of 0 only the corruption can change the loss.
  (a, b) = _run(1, 2)  # The schedule starts at 0.
  assert a['learning_rate'] == 0
  assert abs(a['loss'] - b['loss']) > 1e-4


# Refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
  'changes, message',
  [
    (
      {'target': 'median'},
      r"loss.target='median' is unknown; choose one of \['mean_colour', 'down",
    ),
    ({'channels': 4}, r'channels=4 are .* at most 3 channels'),
    ({'fraction': -0.1}, r'loss.fraction=-0.1 must lie in \[0, 1\]'),
    ({'mask_share': 1.5}, r'loss.mask_share=1.5 must lie in \[0, 1\]'),
    ({'other_share': -1}, r'loss.other_share=-1 must lie in \[0, 1\]'),
    (
      {'mask_share': 0.8, 'other_share': 0.3},
      r'loss.mask_share=0.8 and loss.other_share=0.3 are shares .* at most 1',
    ),
    ({'fraction': 0.01}, r'loss.fraction=0.01 of the 24 .* is 0, .* at least'),
    ({'size': (4, 4)}, r'of the 1 patch\(es\) .* at least two'),
  ],
)
def test_invalid_loss_sections_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _task(**changes)


@pytest.mark.parametrize(
  'name, overrides, message',
  [
    ('BiT-R50x1', {}, "name='masked_patch' needs a ViT, but BiT has no patch"),
    ('R+Ti/16', {}, 'needs patches of pixels, but those of a hybrid'),
    (
      'ViT-Ti/4',
      {'representation_size': 8},
      "model.representation_size=8 adds .* loss.name='masked_patch' does not",
    ),
    (
      'ViT-Ti/4',
      {'pooling': 'map'},
      "model.pooling='map' adds .* 'token' or 'gap'",
    ),
  ],
)
def test_unsupported_models_are_refused(name, overrides, message):
  model = models.build(name, num_classes=2, **overrides)
  with pytest.raises(ValueError, match=message):
    _task(model, size=(64, 64))


def test_downsized_targets_need_patches_divisible_into_16_cells():
  model = _model(patch_size=(8, 14))
  with pytest.raises(ValueError, match=r"'downsized' cuts .* of 8x14 px"):
    _task(model, size=(64, 64), target='downsized')
  assert _task(model, size=(64, 64)).corruption.length == 32
