"""Guards: each released file is evaluated once, on the data that are there."""

import os

import numpy as np
import pytest
from etils import epath

from tests.paper.released import made
from vit_jax import models
from vit_jax.paper.page import texts
from vit_jax.paper.released import eval_only, pages
from vit_jax.paper.released.files import SETS, Place

BOTH = ['validation', 'real']
# The first, the second and the last class of ImageNet, by their WordNet ids.
TENCH, GOLDFISH, TISSUE = 'n01440764', 'n01443537', 'n15075141'
SIZES = dict(width=16, depth=1, heads=2, mlp_dim=16)
IMAGES = {'dataset': 'classes:/photographs', 'split': 'train', 'data_dir': ''}


@pytest.fixture
def path(tmp_path):
  path = tmp_path / made.FINE_TUNED / 'ViT-B_16-224.npz'
  path.parent.mkdir()
  path.write_bytes(b'weights')
  os.utime(path, (7, 7))
  return path


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
  """Calls `evaluate` with a process that writes results; returns its sets."""

  def which(flags):
    return flags['--config'].split(',')[1]

  def row(flags, number):
    of = which(flags)
    return {f'{of}/accuracy': number / 10, f'{of}/count': 50_000}

  def call(*missing, keys=(), **images):
    calls.clear()
    place = Place(
      *(epath.Path(tmp_path), tmp_path, keys, IMAGES | images),
      dict.fromkeys(missing, 'gone'),
    )
    return pages.evaluate(place) or sorted(map(which, calls), key=BOTH.index)

  call.error = ''
  calls = made.evaluator(monkeypatch, row, lambda _: call.error)
  return call


def test_a_finished_evaluation_is_not_repeated(evaluate, path, tmp_path):
  assert evaluate() == BOTH
  assert evaluate() == []
  # Not even where the data are read in another way.
  assert evaluate(keys=['data.batch_size=8', 'data.data_dir=/data']) == []
  assert evaluate(keys=['mesh.fsdp=1'], data_dir='/data') == []
  place = Place(epath.Path(tmp_path), tmp_path, (), IMAGES)
  [table] = pages.accuracies(place).blocks
  row = 'ViT-B_16-224.npz, 224 px'
  found = {
    column: texts.cell_text(table, row, column)
    for column in (*SETS.values(), '224 px')
  }
  assert {float(text.ours) for text in found.values()} == {10, 20}
  assert found['224 px'].paper == '81.2'
  # Each file counts once for each set.
  counted = [cell.ours for cell in table.cells.values() if cell.expected]
  assert (len(counted), len([*filter(None, counted)])) == (14, 2)


@pytest.mark.parametrize(
  ('change', 'again'),
  [
    ({'keys': ['evals.validation.preprocess=resize_small(256)']}, BOTH),
    ({'keys': ['model.norm_epsilon=1e-3']}, BOTH),
    ({'dataset': 'folder:/other'}, ['validation']),
  ],
)
def test_other_settings_and_data_are_evaluated_again(
  evaluate, path, change, again
):
  evaluate()
  assert evaluate(**change) == again


def test_other_weights_are_evaluated_again(evaluate, path):
  evaluate()
  os.utime(path, (8, 8))
  assert evaluate() == BOTH
  path.write_bytes(b'longer weights')
  os.utime(path, (8, 8))
  assert evaluate() == BOTH


def test_only_what_is_there_is_evaluated(evaluate, path):
  assert evaluate(*BOTH) == []
  evaluate.error = 'No such class.'
  [failure] = evaluate('real')
  assert failure.startswith('ViT-B_16-224,validation')
  assert failure.endswith('(exit code 1): error: No such class.')
  evaluate.error = ''
  assert evaluate('real') == ['validation']
  assert evaluate() == ['real']


@pytest.mark.parametrize(
  ('counts', 'missing'),
  [
    (None, {'validation', 'real'}),
    ({TENCH: 2, TISSUE: 1}, {'real'}),
    ({TENCH: 1, 'cat': 1}, {'validation', 'real'}),
  ],
)
def test_images_of_imagenet_and_others(tmp_path, counts, missing):
  spec = made.write_photographs(tmp_path / 'some', counts) if counts else ''
  keys = [f'data.data_dir={tmp_path}']
  images, lacking = pages.find_images(spec, keys)
  assert {*lacking} == missing
  assert not any('\n' in why for why in lacking.values())
  if counts:
    assert images == {
      **{'dataset': spec, 'split': 'train', 'data_dir': str(tmp_path)}
    }
    assert ('cat' in lacking.get('validation', '')) == ('cat' in counts)
  else:
    assert not images


@pytest.mark.gate
def test_accuracies_of_a_real_process(tmp_path, monkeypatch):
  # The bias makes a model that always says goldfish.
  bias = np.zeros(1000, np.float32)
  bias[1] = 1e6
  path = epath.Path(tmp_path / 'ViT-B_16-224.npz')
  model = models.build('ViT-B/16', num_classes=1000, **SIZES)
  made.write_weights(path, model, (224, 224), bias=bias)
  monkeypatch.setenv('XLA_FLAGS', '')  # One device.
  words = [f'--config.model.{key}={value}' for key, value in SIZES.items()]
  words += [f'--config.data.data_dir={tmp_path}', '--config.data.batch_size=4']
  # A copy that lacks most classes.
  spec = made.write_photographs(tmp_path / 'some', {GOLDFISH: 1, TISSUE: 3})
  words += [
    f'--config.evals.validation.{key}={value}'
    for key, value in (
      *(('dataset', spec), ('split', 'train'), ('classes', 'names')),
    )
  ]
  kept = tmp_path / 'kept', 'a', None
  argument = 'ViT-B/16,validation,resolution=224'
  assert eval_only.evaluate(*kept, argument, path, *words) == ''
  found = eval_only.result(*kept)
  assert found['validation/accuracy'] == 0.25
  assert found['validation/count'] == 4
