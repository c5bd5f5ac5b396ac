"""Paths as users write them."""

import pathlib

import numpy as np

from vit_jax import checkpoint, paths


def test_local_paths_become_absolute(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', '/home/me')
  assert str(paths.absolute('runs/b16')) == f'{tmp_path}/runs/b16'
  assert str(paths.absolute('../b16/')) == f'{tmp_path.parent}/b16'
  assert str(paths.absolute('~/runs')) == '/home/me/runs'
  assert str(paths.absolute(pathlib.Path('/a/b'))) == '/a/b'


def test_remote_paths_stay_as_they_are():
  assert str(paths.absolute('gs://bucket/~run')) == 'gs://bucket/~run'


def test_checkpoints_under_a_relative_path(monkeypatch, tmp_path):
  # Orbax refuses them, and only at the first save.
  monkeypatch.chdir(tmp_path)
  checkpoints = checkpoint.Checkpoints('run', keep=1, keep_every=0)
  checkpoints.save(3, {'params': {'w': np.arange(4.0)}})
  checkpoints.close()
  assert checkpoint.latest_step('run') == 3
  params, found = checkpoint.read_params('run')
  np.testing.assert_array_equal(params['w'], [0, 1, 2, 3])
  assert str(found) == f'{tmp_path}/run/checkpoints/3'
