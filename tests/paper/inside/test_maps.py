"""Guards: maps of features, their receptive field, and how they move."""

import dataclasses
import functools

import flax.traverse_util
import jax
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax.loaded import Loaded
from vit_jax.paper.inside import maps, weights


@functools.cache
def _loaded(model, side):
  return Loaded(
    origin='',
    params=tiny.params(model, (side, side)),
    model=model,
    image_size=(side, side),
    preprocess=lambda *_: None,
  )


@pytest.fixture
def run(monkeypatch):
  """Returns what makes `weights` read a model; some new weights are zero."""

  def use(model, side, *zero):
    images = np.random.default_rng(0).integers(0, 256, (6, side, side, 3))
    found = _loaded(model, side)
    flat = tiny.flat(found.params)
    flat |= {name: 0 * flat[name] for name in zero}
    params = flax.traverse_util.unflatten_dict(flat, sep='/')
    found = dataclasses.replace(found, params=params)
    monkeypatch.setattr(weights, 'load', lambda _: found)
    monkeypatch.setattr(
      weights, 'held_out_images', lambda *_: (images.astype(np.uint8), None)
    )

  return use


def test_features_without_positions_move_with_the_image(run):
  run(tiny.vit(depth=1, position_embedding='none'), 16)
  along, at_place = maps.moved('run', 4)
  assert along == pytest.approx(0, abs=0.01)
  assert at_place > 50


def test_positions_keep_features_from_moving(run):
  run(tiny.vit(depth=1), 16)
  assert maps.moved('run', 4)[0] > 1


@pytest.mark.parametrize('stage, places', [(1, 8), (2, 4), (None, 4)])
def test_a_stage_of_a_resnet_has_its_places(stage, places):
  model, images = tiny.bit(), np.zeros((2, 32, 32, 3), np.float32)

  def made():
    params = model.init(jax.random.key(0), images)['params']
    run = Loaded(
      **{'origin': '', 'params': params, 'model': model},
      **{'image_size': (32, 32), 'preprocess': None},
    )
    return maps.of_images(run, images, stage)

  # Nothing is computed, so nothing is compiled.
  assert jax.eval_shape(made).shape[:3] == (2, places, places)


def test_places_of_a_shift_are_those_of_its_stage(run):
  # A shift by 4 px moves the first stage's map by a place, up to the borders.
  run(tiny.bit(), 64)
  along, at_place = maps.moved('run', 4)
  assert along < 0.5 * at_place


def test_attention_widens_the_receptive_field(run):
  out = 'Transformer/encoderblock_0/MultiHeadDotProductAttention_0/out/kernel'
  run(tiny.vit(depth=1), 16, out)
  # Pixels of a patch of 4x4 are about as far from its middle as each other.
  middle = np.hypot(*(np.indices((4, 4)) - 1.5)).mean()
  assert maps.receptive_field('run', None) == pytest.approx(middle, rel=0.3)
  run(tiny.vit(depth=1), 16)
  assert maps.receptive_field('run', None) > 1.5 * middle
