"""Every family's weights compute here what they compute in their library."""

import pathlib
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip('torch')
pytest.importorskip('transformers')
pytest.importorskip('timm')

import torch  # noqa: E402

from tests.interop import theirs, tiny  # noqa: E402
from vit_jax import interop  # noqa: E402
from vit_jax.interop import arrays, families  # noqa: E402

pytestmark = pytest.mark.hf
_PAGE = pathlib.Path(__file__).parents[2] / 'docs/models.md'
# Largest difference, relative to the largest value if that is above 1.
_FEATURES, _GRADIENTS = 1e-5, 1e-4


class Read(NamedTuple):
  """A model of theirs, the folder that its library wrote, and what we read."""

  case: theirs.Case
  model: torch.nn.Module
  folder: pathlib.Path
  weights: interop.Weights

  @property
  def has_head(self):
    return 'head/kernel' in self.weights.params

  @property
  def family(self):
    return families.OTHERS[self.weights.layout]

  def params(self, size):
    params, _ = interop.fit_weights(
      self.weights, self.weights.model, size, new_head=not self.has_head
    )
    return params

  def images(self, size):
    """Returns images for our model, and for theirs."""
    images = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3))
    images = images.astype(np.float32)
    mean, std = self.weights.model.image_mean, self.weights.model.image_std
    if self.case.is_timm:
      mean, std = (self.model.pretrained_cfg[key] for key in ('mean', 'std'))
    if mean is None:
      return images, images
    return images, (images * 0.5 + 0.5 - np.float32(mean)) / np.float32(std)

  def outputs(self, model, images):
    found = theirs.run(self.case, model, images)
    if 'pooler.dense.weight' in self.weights.dropped:
      del found['pre_logits']
    return found


def _cases():
  for case in theirs.CASES:
    yield pytest.param((case, False), id=f'tiny-{case}')
  for case in theirs.CASES:
    if case.real is not None:
      yield pytest.param((case, True), id=f'{case}', marks=pytest.mark.slow)


@pytest.fixture(scope='module', params=_cases())
def read(request, tmp_path_factory):
  case, real = request.param
  model = theirs.build(case, real=real)
  folder = tmp_path_factory.mktemp('theirs')
  theirs.save(case, model, folder)
  return Read(case, model, folder, interop.read(folder))


def _difference(found, expected, least=1.0):
  """Returns the largest, relative to the largest value if above `least`."""
  found, expected = np.asarray(found), np.asarray(expected.detach())
  assert found.shape == expected.shape
  return abs(found - expected).max() / max(least, abs(expected).max())


def _ours(model, params, images):
  """Returns outputs by the names of `theirs.run`."""
  (logits, out), state = model.apply(
    {'params': params},
    images,
    capture_intermediates=lambda module, _: 'encoderblock' in str(module.name),
    mutable=['intermediates'],
  )
  blocks = state['intermediates']['Transformer'].items()
  blocks = {
    f'block_{name.rpartition("_")[2]}': found['__call__'][0]
    for name, found in blocks
  }
  return out | blocks | {'logits': logits}


@pytest.mark.parametrize('other', [0, 2])
def test_outputs_of_every_layer_are_equal(read, other):
  side = read.weights.image_size[0]
  size = (side + other * read.weights.model.patch_size[0], side)
  images, normalized = read.images(size)
  with jax.default_matmul_precision('highest'):
    found = jax.jit(_ours, static_argnums=0)(
      read.weights.model, read.params(size), images
    )
  with torch.no_grad():
    model = theirs.resized(read.case, read.model, size)
    expected = read.outputs(model, normalized)
  assert len(expected) > read.weights.model.depth
  seen = {key: _difference(found[key], expected[key]) for key in expected}
  assert max(abs(found[key]).max() for key in expected) > 0.5
  assert max(seen.values()) < _FEATURES, seen


def test_gradients_of_all_parameters_are_equal(read, tmp_path):
  size = read.weights.image_size
  images, normalized = read.images(size)
  expected = read.outputs(read.model, normalized)
  keys = sorted(expected.keys() & {'logits', 'pre_logits', 'encoded'})
  rng = np.random.default_rng(1)
  weights = {
    key: rng.normal(size=expected[key].shape).astype(np.float32) for key in keys
  }
  read.model.zero_grad()
  sum((torch.tensor(weights[k]) * expected[k]).sum() for k in keys).backward()
  theirs.save(
    read.case,
    read.model,
    tmp_path,
    {
      name: torch.zeros_like(p) if p.grad is None else p.grad
      for name, p in read.model.named_parameters()
    },
  )
  expected = arrays.read_safetensors(tmp_path / 'model.safetensors')

  def scalar(params):
    found = _ours(read.weights.model, params, images)
    return sum(jnp.vdot(weights[key], found[key]) for key in keys)

  with jax.default_matmul_precision('highest'):
    gradients = jax.jit(jax.grad(scalar))(read.params(size))
  gradients = interop.inference.flatten(gradients)
  gradients = {
    name: gradient
    for name, gradient in gradients.items()
    if name in read.weights.params
    and name.removesuffix('/bias') not in read.family.no_bias
  }
  found = _plain(read.family, read.family.write(gradients))
  dropped = read.family.drops(expected, has_head=read.has_head)
  expected = {k: v for k, v in expected.items() if k not in dropped}
  expected = _plain(read.family, expected)
  assert found.keys() == expected.keys()
  least = 1e-2 * max(abs(array).max() for array in expected.values())
  seen = {
    name: _difference(found[name], torch.tensor(expected[name]), least)
    for name in expected
  }
  worst = max(seen, key=seen.get)
  assert seen[worst] < _GRADIENTS, worst


def _plain(family, named):
  return {family.plain(name): array for name, array in named.items()}


def test_what_we_write_is_what_we_read_and_their_library_loads_it(
  read, tmp_path
):
  weights, size = read.weights, read.weights.image_size
  params = tiny.unflat(weights.params)
  interop.save_huggingface(
    tmp_path, params, weights.model, size, layout=weights.layout
  )
  first, again = (
    arrays.read_safetensors(folder / 'model.safetensors')
    for folder in (read.folder, tmp_path)
  )
  assert first.keys() >= {*weights.dropped}
  first = {k: v for k, v in first.items() if k not in weights.dropped}
  # Of several towers we write one. MSN's encoder gets its prefix: transformers
  # 5.24 writes it without.
  if read.case.tower or read.case.source == 'ViTMSNForImageClassification':
    first, again = (_plain(read.family, named) for named in (first, again))
  tiny.assert_equal(again, first)
  model, missing = theirs.load(read.case, tmp_path)
  plain = read.family.plain
  assert {*map(plain, missing)} <= {*map(plain, weights.dropped)}
  _, images = read.images(size)
  with torch.no_grad():
    found, expected = (read.outputs(m, images) for m in (model, read.model))
  for key in expected:
    assert _difference(found[key], expected[key]) < 1e-6
