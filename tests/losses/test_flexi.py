"""Guards FlexiViT: kernels and positions resize as defined; each step draws."""

import functools

import cv2
import jax
import numpy as np
import pytest
from PIL import Image

from tests import tiny_step
from tests.interop import tiny
from vit_jax import config as config_lib
from vit_jax import losses, sharding
from vit_jax.losses import classification, flexi
from vit_jax.models import patches, position

RNG = np.random.default_rng(0)
SIZE, SIDES = (8, 8), (2, 4, 8)
FLEXI = {'kernel_size': 6, 'position_grid': 3}


# Resizing --------------------------------------------------------------------


def _bilinear(old, new, antialias=False):
  """Returns weights [new, old]: triangles around centres at halves."""
  if not antialias:
    return cv2.resize(np.eye(old), (old, new))
  image = Image.fromarray(np.eye(old, dtype='f'))
  return np.asarray(image.resize((old, new), Image.Resampling.BILINEAR))


@pytest.mark.parametrize('size', [(6, 4), (8, 9), (3, 2), (2, 7), (4, 10)])
def test_kernels_are_resized_by_the_pseudo_inverse(size):
  kernel = RNG.normal(size=(6, 4, 3, 5)).astype('f')
  resize = np.kron(_bilinear(6, size[0]), _bilinear(4, size[1]))
  expected = np.linalg.pinv(resize.T) @ kernel.reshape(24, -1)
  found = np.asarray(patches.resize_kernel(kernel, size))
  np.testing.assert_allclose(
    found, expected.reshape(*size, 3, 5), rtol=1e-4, atol=1e-5
  )


@pytest.mark.parametrize('grid', [(2, 3), (4, 5), (1, 2), (5, 2)])
@pytest.mark.parametrize('kind', position.ADDED)
def test_stored_positions_are_resized_to_the_images_grid(grid, kind):
  stored = position.Table(kind)
  call = {'num_prefix_tokens': 2, 'width': 8}
  variables = stored.init(jax.random.key(0), grid=(2, 3), **call)
  table = np.asarray(stored.apply(variables, grid=(2, 3), **call))[0]
  rows, columns = (
    _bilinear(*sides, antialias=True)
    for sides in zip((2, 3), grid, strict=True)
  )
  expected = np.einsum(
    'ih,jw,hwd->ijd', rows, columns, table[2:].reshape(2, 3, 8)
  ).reshape(-1, 8)
  found = position.Table(kind, grid=(2, 3)).apply(variables, grid=grid, **call)
  np.testing.assert_array_equal(found[0, :2], table[:2])
  np.testing.assert_allclose(found[0, 2:], expected, atol=1e-6)


# Training --------------------------------------------------------------------


def _config(**changes):
  config = config_lib.default()
  config.image_size, config.num_classes = SIZE, 5
  config.flexi.patch_sizes = SIDES
  config.update_from_flattened_dict(changes)
  return config


def _drawn(seed, steps):
  draw = flexi.with_draw(_config(seed=seed), None)
  batch = {'label': np.zeros(4, np.int32)}
  found = jax.jit(jax.vmap(lambda step: draw(batch, step)[flexi.DRAWN]))(
    np.arange(steps)
  )
  np.testing.assert_array_equal(found, found[:, :1].repeat(4, axis=1))
  return np.asarray(found[:, 0])


def test_draws_are_uniform_and_follow_seed_and_step():
  found = _drawn(0, 3000)
  counts = np.bincount(found, minlength=3)
  assert len(counts) == 3
  np.testing.assert_allclose(counts, 1000, atol=6 * (3000 * 2 / 9) ** 0.5)
  # Neighbouring steps are independent, too.
  pairs = np.bincount(3 * found[1:] + found[:-1], minlength=9)
  np.testing.assert_allclose(pairs, 333, atol=6 * 333**0.5)
  np.testing.assert_array_equal(found[:50], _drawn(0, 50))
  assert (found[:50] != _drawn(1, 50)).any()


MODEL = tiny.vit(**dict(FLEXI, width=8, heads=2, mlp_dim=8, depth=1))
BATCH = tiny_step.batch(16, SIZE, 3, 5)


@functools.cache
def _plain(side):
  """Returns the parameters, and the step of a model of one patch size."""
  params = jax.tree.map(lambda x: 0.3 * x, tiny.params(MODEL, SIZE))
  model, loss = MODEL.clone(patch_size=(side, side)), losses.build('softmax')
  step = jax.value_and_grad(classification.mean_loss(model, loss), has_aux=True)
  return params, jax.jit(step)(params, BATCH, jax.random.key(0))


@pytest.mark.gate
@pytest.mark.parametrize(
  'mesh', [{'data': 8}, {'data': 2, 'fsdp': 2, 'tensor': 2}]
)
def test_a_step_is_that_of_the_drawn_size_on_any_mesh(mesh):
  config, key = _config(), jax.random.key(0)
  layout = sharding.Layout(sharding.make_mesh(**mesh))
  objective = losses.build_objective(config, MODEL, layout)
  step = tiny_step.loss_and_grad(objective.mean_loss, layout, key, steps=2)
  run = jax.jit(lambda p, b, k: step(p, objective.prepare_batch(b, k), key))
  drawn = _drawn(0, 12)
  for index in (0, 2):
    params, expected = _plain(SIDES[index])
    found = run(
      params,
      sharding.put_batch(BATCH, layout.mesh),
      int(np.argmax(drawn == index)),
    )
    assert found[0][1].pop('patch_size') == SIDES[index]
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_the_gradient_is_scaled_like_any_other():
  def make(variant):
    side = variant.patch_size[0]
    return lambda params, batch, key: (side * (params**2).sum(), {})

  config, params, key = _config(), np.float32([1, -2]), jax.random.key(0)
  batch = flexi.with_draw(config, None)(BATCH, 0)
  loss = flexi.wrap(config, make)(tiny.vit(**FLEXI))
  found = jax.grad(lambda p: 3 * loss(p, batch, key)[0])(params)
  side = SIDES[batch[flexi.DRAWN][0]]
  np.testing.assert_allclose(found, 6 * side * params, rtol=1e-6)


def test_a_gradient_has_one_conditional_without_residuals():
  """The backward pass of a conditional would keep what each branch needs."""
  config, model = _config(), tiny.vit(**FLEXI, depth=1)
  make = flexi.wrap(
    config, lambda m: classification.mean_loss(m, losses.build('softmax'))
  )
  batch = flexi.with_draw(config, None)(BATCH, 0)
  jaxpr = jax.make_jaxpr(jax.grad(make(model), has_aux=True))(
    tiny.params(model, SIZE), batch, jax.random.key(0)
  )
  (conditional,) = [
    e for e in _inner(jaxpr.jaxpr) if e.primitive.name == 'cond'
  ]
  # The loss, the accuracy, and a gradient for each parameter.
  count = len(jax.tree.leaves(tiny.params(model, SIZE)))
  assert len(conditional.outvars) == count + 2


def _inner(jaxpr):
  for equation in jaxpr.eqns:
    yield equation
    for value in equation.params.values():
      if hasattr(value, 'eqns') or hasattr(value, 'jaxpr'):
        yield from _inner(getattr(value, 'jaxpr', value))


def test_without_sizes_nothing_is_drawn():
  config, make = _config(**{'flexi.patch_sizes': ()}), object()
  assert flexi.wrap(config, make) is make
  assert flexi.with_draw(config, None) is None


@pytest.mark.parametrize('kind', ['none', *position.FIXED])
def test_positions_that_learn_nothing_need_no_grid(kind):
  model = tiny.vit(kernel_size=4, position_embedding=kind)
  losses.build_objective(_config(), model, tiny_step.one_device())


@pytest.mark.parametrize(
  'model, changes, message',
  [
    ({}, {}, "here None and None with '1d'"),
    ({'kernel_size': 4}, {}, r"\(4, 4\) and None with '1d'"),
    (
      {'kernel_size': 4, 'position_embedding': 'relative'},
      {},
      "None with 'relative'",
    ),
    (FLEXI, {'flexi.patch_sizes': (4, 16)}, 'below one patch of 16x16'),
  ],
)
def test_models_and_images_that_do_not_suit(model, changes, message):
  with pytest.raises(ValueError, match=message):
    losses.build_objective(
      _config(**changes), tiny.vit(**model), tiny_step.one_device()
    )


def test_other_objectives_are_refused():
  config = _config()
  config.loss = config_lib.masked_patch()
  with pytest.raises(ValueError, match=r"loss\.name='masked_patch'"):
    losses.build_objective(config, tiny.vit(**FLEXI), tiny_step.one_device())
