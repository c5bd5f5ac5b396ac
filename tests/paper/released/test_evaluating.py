"""Guards: each released file is evaluated once, on the data that are there."""

import io
import json
import os
import pathlib
import subprocess

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds
from etils import epath

from tests.data import tfds_from_folder
from tests.paper.released import made
from vit_jax import models
from vit_jax.paper import eval_only
from vit_jax.paper.released import evaluating
from vit_jax.paper.released.evaluating import Images

NAME = f'{made.FINE_TUNED}ViT-B_16-224'
# The first, the second and the last class of ImageNet, by their WordNet ids.
TENCH, GOLDFISH, TISSUE = 'n01440764', 'n01443537', 'n15075141'
SIZES = dict(width=16, depth=1, heads=2, mlp_dim=16)
ALL = Images('classes:/photographs', 'train', '', {}, True)


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

  def call(images=ALL, keys=()):
    calls.clear()
    why = evaluating.evaluate(NAME, path, images, keys, tmp_path)
    return why or calls

  call.error = ''
  monkeypatch.setattr(eval_only.subprocess, 'run', run)
  return call


def _without(*missing):
  return Images(ALL.spec, ALL.split, '', dict.fromkeys(missing, 'gone'), True)


def test_a_finished_evaluation_is_not_repeated(evaluate, path, tmp_path):
  assert evaluate() == [['validation', 'real']]
  assert evaluate() == []
  assert evaluating.results(NAME, path, ALL, (), tmp_path) == {
    name: {'accuracy': 0.1, 'count': 50_000} for name in ('validation', 'real')
  }
  # Not even where the data are gone now, or read in another way.
  assert evaluate(_without('validation', 'real')) == []
  assert evaluate(keys=['data.batch_size=8', 'data.data_dir=/data']) == []
  assert evaluate(keys=['evals.real.batch_size=8', 'mesh.fsdp=1']) == []


def test_changes_evaluate_again(evaluate, path, tmp_path):
  evaluate()
  keys = ['evals.validation.preprocess=resize_small(256)']
  assert evaluate(keys=keys) == [['validation']]
  assert evaluate(keys=['model.norm_epsilon=1e-3']) == [['validation', 'real']]
  assert evaluate() == [['validation', 'real']]
  other = Images('folder:/other', 'validation', '', {}, True)
  assert evaluate(other) == [['validation']]
  os.utime(path, (8, 8))
  assert evaluating.results(NAME, path, ALL, (), tmp_path) == {}
  assert evaluate() == [['validation', 'real']]
  path.write_bytes(b'longer weights')
  os.utime(path, (8, 8))
  assert evaluate() == [['validation', 'real']]


def test_only_what_is_missing_and_there_is_evaluated(evaluate, path, tmp_path):
  assert evaluate(_without('validation', 'real')) == []
  assert evaluate(_without('real')) == [['validation']]
  assert evaluate() == [['real']]
  assert evaluating.results(NAME, path, ALL, (), tmp_path).keys() == {
    *('validation', 'real')
  }


def test_a_failure_tells_the_error_of_the_log_and_is_tried_again(evaluate):
  evaluate.error = 'No such class.'
  assert evaluate() == (
    'ViT-B_16-224.npz was not evaluated (exit code 1): error: No such class.'
  )
  evaluate.error = ''
  assert evaluate() == [['validation', 'real']]


def test_images_of_imagenet_and_others(tmp_path):
  data_dir = f'data.data_dir={tmp_path}'
  nothing = evaluating.find_images('', [data_dir])
  assert nothing.missing.keys() == {'validation', 'real'}
  for name in ('', '_real'):
    why = nothing.missing['real' if name else 'validation']
    assert why.startswith(f'tfds:imagenet2012{name} is not in {tmp_path}. ')
    assert f'tfds.builder("imagenet2012{name}"' in why
    assert '\n' not in why
  assert not nothing.to_show

  spec = made.write_photographs(tmp_path / 'some', {TENCH: 2, TISSUE: 1})
  some = evaluating.find_images(spec, [data_dir])
  assert (some.spec, some.split, some.to_show) == (spec, 'train', True)
  assert some.missing.keys() == {'real'}

  spec = made.write_photographs(tmp_path / 'cats', {TENCH: 1, 'cat': 1})
  cats = evaluating.find_images(spec, [data_dir])
  assert cats.missing['validation'] == (
    f"{spec} has classes that are not ImageNet's WordNet ids, such as 'cat'."
  )
  assert cats.to_show


def _png():
  pixels = np.random.default_rng(0).integers(0, 256, (10, 12, 3), np.uint8)
  return io.BytesIO(cv2.imencode('.png', pixels)[1].tobytes())


def _write_imagenet(data_dir):
  """Writes ImageNet and ImageNet-ReaL as TFDS does, with a few images."""
  label = tfds.features.ClassLabel(names=eval_only.class_names())
  image = tfds.features.Image()
  tfds_from_folder.write_examples(
    {
      'validation': [
        {'image': _png(), 'label': name} for name in (TENCH, GOLDFISH, GOLDFISH)
      ]
    },
    {'image': image, 'label': label},
    data_dir,
    'imagenet2012',
  )
  tfds_from_folder.write_examples(
    {
      'validation': [
        {'image': _png(), 'real_label': names}
        for names in ([TENCH, GOLDFISH], [TISSUE], [], [GOLDFISH, TISSUE])
      ]
    },
    {'image': image, 'real_label': tfds.features.Sequence(label)},
    data_dir,
    'imagenet2012_real',
  )


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
  _write_imagenet(tmp_path)
  images = evaluating.find_images('', keys)
  assert not images.missing
  assert evaluating.evaluate(NAME, path, images, keys, tmp_path) == ''
  assert evaluating.results(NAME, path, images, keys, tmp_path) == {
    'validation': {'accuracy': pytest.approx(2 / 3), 'count': 3},
    'real': {'accuracy': pytest.approx(2 / 3), 'count': 3},
  }

  # A copy that lacks most classes.
  spec = made.write_photographs(tmp_path / 'some', {GOLDFISH: 1, TISSUE: 3})
  images = evaluating.find_images(spec, keys)
  assert evaluating.evaluate(NAME, path, images, keys, tmp_path) == ''
  found = evaluating.results(NAME, path, images, keys, tmp_path)
  assert found['validation'] == {'accuracy': 0.25, 'count': 4}
