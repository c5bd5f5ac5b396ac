"""Paths as users write them."""

import contextlib
import os
import pathlib

import numpy as np
import pytest

from vit_jax import checkpoint, class_names, config, interop, paths
from vit_jax.data import ops
from vit_jax.evaluators import classes
from vit_jax.inspect import subject


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


@pytest.mark.usefixtures('soon')
@pytest.mark.parametrize('name', ['class_names.txt', 'config.json', 'a.npz'])
def test_pipes_are_refused_and_never_waited_for(tmp_path, name):
  read = {
    'class_names.txt': class_names.read,
    'config.json': config.load,
    'a.npz': lambda folder: interop.read(folder / 'a.npz'),
  }[name]
  os.mkfifo(tmp_path / name)
  with pytest.raises(ValueError, match=rf'{name} is a pipe or a device, expec'):
    read(tmp_path)
  (tmp_path / name).unlink()
  (tmp_path / name).symlink_to(name)  # Leads to itself.
  with contextlib.suppress(ValueError):
    assert not read(tmp_path)


@pytest.mark.usefixtures('soon')
def test_files_of_classes_and_images_that_are_pipes(tmp_path):
  os.mkfifo(tmp_path / 'classes.json')
  with pytest.raises(ValueError, match='json is a pipe or a device'):
    classes.table(str(tmp_path / 'classes.json'), ['a'], ['a', 'b'])
  os.mkfifo(tmp_path / '1.png')
  preprocess = ops.parse('resize', image_size=2, channels=3)
  images = subject.find_images([str(tmp_path)])
  with pytest.raises(ValueError, match=r'1\.png is a pipe or a device'):
    subject.read_images(images, preprocess)
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a/up').symlink_to(tmp_path)
  with pytest.raises(ValueError, match='a/up is a symbolic link that leads'):
    subject.find_images([str(tmp_path)])
