"""Every family's weights compute here what they compute in their library."""

import copy
import pathlib
import re
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip('torch')
pytest.importorskip('transformers')
timm = pytest.importorskip('timm')

from tests.interop import theirs, tiny  # noqa: E402
from vit_jax import interop  # noqa: E402
from vit_jax.interop import arrays, families  # noqa: E402
from vit_jax.models import encoder  # noqa: E402

pytestmark = pytest.mark.hf
_PAGE = pathlib.Path(__file__).parents[2] / 'docs/models.md'
_FILE = 'model.safetensors'
# Names of timm's models that compute something else, and are refused.
_OTHERS = 'aimv2|beit3|_d(little|wee)|eva|lingbot|_pe_|pwee|radio|rope'
_OTHERS += r'|intern300m|_rpn_|sapiens2|so150m|test_vit|_xp_|\dx\d'
# Of the differences that `_largest` returns.
_LIMITS = {'features': 1e-5, 'gradients': 1e-4}


class Read(NamedTuple):
  """A model of theirs, the folder that its library wrote, and what we read."""

  case: theirs.Case
  model: torch.nn.Module
  folder: pathlib.Path
  weights: interop.Weights

  @property
  def family(self):
    return families.OTHERS[self.weights.layout]

  def params(self, size):
    new = 'head/kernel' not in self.weights.params
    model = self.weights.model
    return interop.fit_weights(self.weights, model, size, new_head=new)[0]

  def images(self, size):
    """Returns images for our model, and for theirs."""
    images = np.random.default_rng(0).uniform(-1, 1, (1, *size, 3))
    values = self.weights.model.image_mean, self.weights.model.image_std
    if self.case.is_timm:
      values = (self.model.pretrained_cfg[key] for key in ('mean', 'std'))
    mean, std = (np.array(value or 0.5) for value in values)
    normalized = (images * 0.5 + 0.5 - mean) / std
    return images.astype(np.float32), normalized.astype(np.float32)

  def ours(self, params, images):
    """Returns outputs with the names of `theirs.run`."""
    found = {}

    def keep(call, args, kwargs, context):
      out = call(*args, **kwargs)
      if isinstance(context.module, encoder.EncoderBlock):
        found[context.module.name.replace('encoderblock', 'block')] = out
      return out

    with nn.intercept_methods(keep):
      logits, out = self.weights.model.apply({'params': params}, images)
    return found | out | {'logits': logits}

  def largest(self, model, size):
    """Returns `_largest` of the outputs of our model and of theirs."""
    images, normalized = self.images(size)
    with torch.no_grad():
      expected = theirs.run(self.case, model, normalized)
    with jax.default_matmul_precision('highest'):
      found = jax.jit(self.ours)(self.params(size), images)
    return _largest(found, expected)

  def plain(self, named):
    return {self.family.plain(name): array for name, array in named.items()}


def _read(case, real, folder):
  model = theirs.build(case, real=real)
  theirs.save(case, model, folder)
  return Read(case, model, folder, interop.read(folder))


def _cases():
  for case in theirs.CASES:
    yield pytest.param((case, False), id=f'tiny-{case.source}')
  for case in theirs.CASES:
    if case.real is not None:
      yield pytest.param((case, True), id=case.source, marks=pytest.mark.slow)


@pytest.fixture(scope='module', params=_cases())
def read(request, tmp_path_factory):
  return _read(*request.param, tmp_path_factory.mktemp('theirs'))


def _largest(found, expected, least=1.0):
  """Returns the largest difference of arrays, and its array's name.

  Args:
    found: name -> array.
    expected: some of these names -> array.
    least: a difference is relative to the largest value of its array, or to
      this, if that is larger.
  """
  seen = []
  for name, array in expected.items():
    array = torch.as_tensor(array).detach().numpy()
    own = np.asarray(found[name])
    assert own.shape == array.shape, name
    difference = abs(own - array).max() / max(least, abs(array).max())
    seen.append((float(difference), name))
  return max(seen)


def _rows():
  """Returns the docs' table, column -> text of each row."""
  page = _PAGE.read_text()
  lines = re.findall(r'^\|.*', page[page.index('| source ') :], re.M)
  names, _, *rows = (re.split(r' *\| *', line)[1:-1] for line in lines)
  return [dict(zip(names, row, strict=True)) for row in rows]


def _check(read, column, seen):
  """Asserts that a difference is below its limit and what the docs say."""
  source, model = f'`{read.case.source}`', read.weights.model
  (row,) = (row for row in _rows() if source in row['source'])
  assert row['layout'] == f'`{read.weights.layout}`'
  assert model.depth == 2 or f'{model.depth}x{model.width}' in row['sizes']
  # Another processor may add numbers in another order.
  assert seen[0] <= min(_LIMITS[column], 3 * float(row[column]))


def test_the_docs_list_what_is_tested_here():
  named = ' '.join(row['source'] for row in _rows())
  sources = {case.source for case in theirs.CASES}
  assert {*re.findall('`(.*?)`', named)} == sources


def test_outputs_of_every_layer_and_all_gradients_are_equal(read, tmp_path):
  size, model = read.weights.image_size, copy.deepcopy(read.model)
  images, normalized = read.images(size)
  expected = theirs.run(read.case, model, normalized)
  total = sum(torch.sin(array).sum() for array in expected.values())
  (total + sum(0 * p.sum() for p in model.parameters())).backward()
  for parameter in model.parameters():
    parameter.data = parameter.grad
  theirs.save(read.case, model, tmp_path)

  def scalar(params):
    found = read.ours(params, images)
    return sum(jnp.sin(found[key]).sum() for key in expected), found

  with jax.default_matmul_precision('highest'):
    gradient = jax.jit(jax.grad(scalar, has_aux=True))
    gradients, found = gradient(read.params(size))
  assert len(expected) > read.weights.model.depth
  _check(read, 'features', _largest(found, expected))
  gradients = interop.inference.flatten(gradients)
  for module in read.family.no_bias:
    del gradients[f'{module}/bias']
  found = read.plain(read.family.write(gradients))
  expected = read.plain(arrays.read_safetensors(tmp_path / _FILE))
  for name in read.plain(dict.fromkeys(read.weights.dropped)):
    del expected[name]
  # Those of key biases are 0 but for rounding.
  least = 1e-2 * max(abs(array).max() for array in expected.values())
  _check(read, 'gradients', _largest(found, expected, least))


def test_outputs_of_images_of_another_size_are_equal(read):
  size, model = read.weights.image_size, copy.deepcopy(read.model)
  size = size[0] + 2 * read.weights.model.patch_size[0], size[1]
  if read.case.is_timm:
    model.set_input_size(size)
  _check(read, 'features', read.largest(model, size))


def test_what_we_write_is_what_we_read_and_their_library_loads_it(
  read, tmp_path
):
  weights, size = read.weights, read.weights.image_size
  params = tiny.unflat(weights.params)
  options = dict(layout=weights.layout, class_names=weights.class_names)
  interop.save_huggingface(tmp_path, params, weights.model, size, **options)
  first, again = (
    arrays.read_safetensors(folder / _FILE)
    for folder in (read.folder, tmp_path)
  )
  for name in weights.dropped:
    del first[name]
  # Of several towers we write one. MSN's encoder gets its prefix: transformers
  # 5.24 writes it without.
  if read.case.tower or read.case.source == 'ViTMSNForImageClassification':
    first, again = map(read.plain, (first, again))
  tiny.assert_equal(again, first)
  model, missing = theirs.load(read.case, tmp_path)
  lacking = {*map(read.family.plain, missing)}
  assert lacking <= {*map(read.family.plain, weights.dropped)}
  _, images = read.images(size)
  with torch.no_grad():
    found, expected = (
      theirs.run(read.case, m, images) for m in (model, read.model)
    )
  assert _largest(found, expected)[0] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', timm.list_models(module=['vision_transformer', 'deit', 'eva'])
)
def test_a_block_of_each_architecture_of_timm(name, tmp_path):
  if re.search(_OTHERS, name):
    with pytest.raises(ValueError, match=name):
      families.timm_layouts.family_of({'architecture': name})
    return
  read = _read(theirs.Case(name, dict(depth=1)), True, tmp_path)
  seen = read.largest(read.model, read.weights.image_size)
  assert seen[0] < _LIMITS['features']
