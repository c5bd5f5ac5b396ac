"""Guards: the inspect command draws every figure that a model supports."""

import cv2
import numpy as np
import pandas as pd
import pytest

from tests.interop import tiny
from tests.tiny_run import tiny_config
from vit_jax import data
from vit_jax import images as images_lib
from vit_jax import loaded as subject
from vit_jax.data import ops
from vit_jax.inspection import gallery, views
from vit_jax.training import train

ALL = (
  *('attention_distance', 'filters', 'patch_pca', 'position_similarity'),
  'rollout',
)


def _files(*names):
  return sorted(
    f'{name}.{end}' for name in names for end in ('csv', 'pdf', 'png')
  )


@pytest.mark.gate
def test_all_figures_of_a_run_without_the_unreadable_image(tmp_path, command):
  run, folder, out = (tmp_path / name for name in ('run', 'images', 'out'))
  train.train_and_evaluate(tiny_config(), run)
  source = data.open_source('digits:01')
  folder.mkdir()
  for i in range(6):
    cv2.imwrite(str(folder / f'{i}.png'), source.read('test', i).image)
  bad = folder / 'bad.png'
  bad.write_bytes(b'no image')
  result = command(
    'vit_jax.inspect',
    *(f'--checkpoint={run}', f'--to={out}', '--rollouts=4', '--seed=1', folder),
  )
  assert result.returncode == 3, result.stderr
  assert str(bad) in result.stderr
  assert 'ViT-Ti/4 with width=' in result.stdout
  assert sorted(path.name for path in out.iterdir()) == _files(*ALL)
  # The Python functions give the same numbers for the same images.
  of, found = subject.load(str(run)), images_lib.find([folder])
  order = np.random.default_rng(1).permutation(len(found))
  chosen = images_lib.from_paths([found[i] for i in order])
  images, problems = chosen.read(of.preprocess)
  rollouts = pd.read_csv(out / 'rollout.csv')
  assert rollouts['image'].unique().tolist() == [1, 2, 3, 4]
  names = [name for name in chosen.names if name != str(bad)]
  assert len(problems) == 1
  for found in (rollouts, pd.read_csv(out / 'patch_pca.csv')):
    assert found['path'].unique().tolist() == names[:4]
  for name, column, expected in (
    ('rollout', 'rollout', views.rollout(of, images[:4])),
    ('attention_distance', 'pixels', views.attention_distance(of, images)),
    ('position_similarity', 'cosine', views.position_similarity(of)),
    ('filters', 'value', views.filters(of)),
    ('patch_pca', 'value', views.patch_pca(of, images[:4])),
  ):
    found = pd.read_csv(out / f'{name}.csv')[column]
    np.testing.assert_allclose(found, expected.ravel(), rtol=1e-4, atol=1e-6)


def _draw(model, tmp_path, size=(16, 16)):
  images = np.random.default_rng(0).integers(0, 256, (3, *size, 3), np.uint8)
  of = subject.Loaded(
    origin='somewhere',
    model=model,
    params=tiny.params(model, size),
    image_size=size,
    preprocess=ops.parse('resize', image_size=size, channels=3),
  )
  paths = [tmp_path / f'{i}.png' for i in range(3)]
  gallery.draw_all(of, paths, images, tmp_path / 'out', 2)
  return sorted(path.name for path in (tmp_path / 'out').iterdir())


@pytest.mark.gate
@pytest.mark.parametrize(
  'model, missing',
  [
    (tiny.vit(resnet_blocks=(1,), patch_size=1), ['filters']),
    (
      tiny.vit(attention='axial', pooling='gap', position_embedding='relative'),
      ['attention_distance', 'position_similarity', 'rollout'],
    ),
    (tiny.vit(position_site='every_layer', scan=True, registers=2), []),
  ],
  ids=['hybrid', 'axial and relative', 'every layer'],
)
def test_a_model_is_drawn_as_far_as_it_has_what_is_drawn(
  model, missing, tmp_path, capsys
):
  names = [name for name in ALL if name not in missing]
  names += ['registers'] if model.registers else []
  assert _draw(model, tmp_path) == _files(*names)
  printed = capsys.readouterr().out
  assert [name for name in ALL if f'No {name}: ' in printed] == missing


def test_a_resnet_has_nothing_to_show(tmp_path):
  with pytest.raises(ValueError, match='somewhere'):
    _draw(tiny.bit(), tmp_path, size=(64, 64))


@pytest.mark.gate
@pytest.mark.parametrize(
  'words, message',
  [
    (['--to=out', 'setup.py'], '--checkpoint'),
    (['--checkpoint=run', '--to=out'], 'image files and folders of them'),
    (['--checkpoint=run', '--to=setup.py', 'tests'], 'setup.py'),
    (['--mistakes=run', '--to=out', 'setup.py'], '--mistakes'),
    (['--checkpoint=none', '--to=out', 'setup.py'], 'none'),
  ],
)
def test_bad_input_is_one_clear_error(words, message, command):
  result = command('vit_jax.inspect', *words)
  assert result.returncode == 1
  assert result.stderr.startswith('error: ')
  assert message in result.stderr
  assert len(result.stderr.splitlines()) == 1
