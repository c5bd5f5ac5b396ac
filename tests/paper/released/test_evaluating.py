"""Guards: each released file is evaluated once, on the data that are there."""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
from etils import epath

from tests.paper.released import made
from vit_jax import models
from vit_jax.paper.released import eval_only, evaluating
from vit_jax.paper.released.evaluating import Images

NAME = f'{made.FINE_TUNED}ViT-B_16-224'
BOTH = [['validation', 'real']]
# The first, the second and the last class of ImageNet, by their WordNet ids.
TENCH, GOLDFISH, TISSUE = 'n01440764', 'n01443537', 'n15075141'
SIZES = dict(width=16, depth=1, heads=2, mlp_dim=16)
ALL = Images('classes:/photographs', 'train', {})


@pytest.fixture
def path(tmp_path):
  path = epath.Path(tmp_path / 'ViT-B_16-224.npz')
  path.write_bytes(b'weights')
  os.utime(path, (7, 7))
  return path


@pytest.fixture
def evaluate(tmp_path, path, monkeypatch):
  """Calls `evaluate` with a process that writes results; returns its sets."""
  calls = []

  def run(words, *, stdout, **_):
    flags = dict(word.partition('=')[::2] for word in words)
    sets = flags['--config'].split(',')[1].split('+')
    calls.append(sets)
    if call.error:
      stdout.write(f'Loading\nerror: {call.error}\nSee --help.\n'.encode())
      return subprocess.CompletedProcess(words, 1)
    workdir = pathlib.Path(flags['--workdir'])
    workdir.mkdir(exist_ok=True)
    (workdir / 'config.json').write_text('{"total_steps": 0}')
    (workdir / 'DONE').write_text('0\n')
    row = {'step': 0}
    for name in sets:
      row |= {f'{name}/accuracy': len(calls) / 10, f'{name}/count': 50_000}
    (workdir / 'metrics.jsonl').write_text(json.dumps(row) + '\n')
    return subprocess.CompletedProcess(words, 0)

  def call(*missing, spec=ALL.spec, keys=()):
    calls.clear()
    images = Images(spec, 'train', dict.fromkeys(missing, 'gone'), keys)
    return evaluating.evaluate(NAME, path, images, tmp_path) or [*calls]

  call.error = ''
  monkeypatch.setattr(eval_only.subprocess, 'run', run)
  return call


def test_a_finished_evaluation_is_not_repeated(evaluate, path, tmp_path):
  assert evaluate() == BOTH
  assert evaluate() == []
  assert evaluating.results(NAME, path, ALL, tmp_path) == {
    name: {'accuracy': 0.1, 'count': 50_000} for name in BOTH[0]
  }
  # Not even where the data are gone now, or read in another way.
  assert evaluate(*BOTH[0]) == []
  assert evaluate(keys=['data.batch_size=8', 'data.data_dir=/data']) == []
  assert evaluate(keys=['mesh.fsdp=1']) == []


@pytest.mark.parametrize(
  'change',
  [
    {'keys': ['evals.validation.preprocess=resize_small(256)']},
    {'keys': ['model.norm_epsilon=1e-3']},
    {'spec': 'folder:/other'},
  ],
)
def test_other_settings_and_data_are_evaluated_again(evaluate, change):
  evaluate()
  assert evaluate(**change) == BOTH


def test_other_weights_are_evaluated_again(evaluate, path):
  evaluate()
  os.utime(path, (8, 8))
  assert evaluate() == BOTH
  path.write_bytes(b'longer weights')
  os.utime(path, (8, 8))
  assert evaluate() == BOTH


def test_only_what_is_there_is_evaluated(evaluate):
  assert evaluate(*BOTH[0]) == []
  assert evaluate('real') == [['validation']]
  assert evaluate('real') == []
  evaluate.error = 'No such class.'
  assert evaluate() == (
    'ViT-B_16-224.npz was not evaluated (exit code 1): error: No such class.'
  )
  evaluate.error = ''
  assert evaluate() == BOTH


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
  found = evaluating.find_images(spec, [f'data.data_dir={tmp_path}'])
  assert {*found.missing} == missing
  assert found.split == ('train' if counts else '')
  assert not any('\n' in why for why in found.missing.values())
  if counts:
    assert found.spec == spec
    assert ('cat' in found.missing.get('validation', '')) == ('cat' in counts)


@pytest.mark.gate
def test_accuracies_of_a_real_process(tmp_path, monkeypatch):
  # The bias makes a model that always says goldfish.
  bias = np.zeros(1000, np.float32)
  bias[1] = 1e6
  path = epath.Path(tmp_path / 'ViT-B_16-224.npz')
  model = models.build('ViT-B/16', num_classes=1000, **SIZES)
  made.write_weights(path, model, (224, 224), bias=bias)
  monkeypatch.setenv('XLA_FLAGS', '')  # One device.
  keys = [f'model.{key}={value}' for key, value in SIZES.items()]
  keys += [f'data.data_dir={tmp_path}', 'data.batch_size=4']
  # A copy that lacks most classes.
  spec = made.write_photographs(tmp_path / 'some', {GOLDFISH: 1, TISSUE: 3})
  images = evaluating.find_images(spec, keys)
  assert evaluating.evaluate(NAME, path, images, tmp_path) == ''
  found = evaluating.results(NAME, path, images, tmp_path)
  assert found == {'validation': {'accuracy': 0.25, 'count': 4}}
