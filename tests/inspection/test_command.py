"""Guards: the inspect command draws every figure that a model supports."""

import cv2
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from tests.interop import tiny
from tests.tiny_run import eventful_config
from vit_jax import data, inspect, interop
from vit_jax.data import ops
from vit_jax.inspection import gallery, subject
from vit_jax.training import train

ALL = ('attention_distance', 'filters', 'position_similarity', 'rollout')
_ENDINGS = ('csv', 'pdf', 'png')


def _files(*names):
  return sorted(f'{name}.{end}' for name in names for end in _ENDINGS)


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
  """Makes a run of two steps, and a folder with ten of its test images."""
  folder = tmp_path_factory.mktemp('digits')
  config = eventful_config()
  config.total_steps = 2
  config.accumulation_steps = 1
  config.evals.test.every = 2
  config.schedule.warmup_steps = 0
  train.train_and_evaluate(config, folder / 'run')
  source = data.open_source('digits:01')
  (folder / 'images').mkdir()
  for i in range(10):
    image = source.read('test', i).image
    cv2.imwrite(str(folder / f'images/{i}.png'), image)
  return folder


@pytest.mark.gate
def test_all_figures_of_a_run_without_the_unreadable_image(
  digits, tmp_path, command
):
  bad = tmp_path / 'bad.png'
  bad.write_bytes(b'no image')
  result = command(
    'vit_jax.inspect',
    *(f'--checkpoint={digits / "run"}', f'--to={tmp_path / "out"}'),
    *('--num_images=7', '--rollouts=4', '--seed=1', digits / 'images', bad),
  )
  assert result.returncode == 3, result.stderr
  assert str(bad) in result.stderr
  assert 'ViT-Ti/4 with width=' in result.stdout
  out = tmp_path / 'out'
  assert sorted(path.name for path in out.iterdir()) == _files(*ALL)

  # The Python functions give the same numbers for the same images.
  rollouts = pd.read_csv(out / 'rollout.csv')
  assert rollouts['image'].unique().tolist() == [1, 2, 3, 4]
  names = rollouts['path'].unique().tolist()
  chosen = subject.choose(
    subject.find_images([str(digits / 'images'), str(bad)]), 7, seed=1
  )
  chosen.remove(bad)
  assert names == [str(path) for path in chosen[:4]]
  images = np.stack([cv2.imread(str(path), 0) for path in chosen])[..., None]
  images = jnp.asarray(images / 127.5 - 1, jnp.float32)
  weights = interop.read(digits / 'run')
  params, _ = interop.fit_weights(weights, weights.model, (8, 8))
  attention = inspect.attention_weights(weights.model, params, images)
  layout = dict(grid=(2, 2), num_prefix_tokens=1)
  np.testing.assert_allclose(
    rollouts['rollout'],
    inspect.rollout(attention[:, :4], **layout).ravel(),
    rtol=1e-4,
  )
  np.testing.assert_allclose(
    pd.read_csv(out / 'attention_distance.csv')['pixels'],
    inspect.mean_attention_distance(
      attention, image_size=(8, 8), **layout
    ).ravel(),
    rtol=1e-4,
  )
  assert len(pd.read_csv(out / 'position_similarity.csv')) == 16
  # Patches have 16 numbers, so there are 16 components and not 28.
  assert pd.read_csv(out / 'filters.csv')['component'].max() == 15


def _draw(model, tmp_path, size=(16, 16), channels=3):
  images = np.random.default_rng(0).integers(
    0, 256, (3, *size, channels), np.uint8
  )
  looked_into = subject.Subject(
    'somewhere',
    subject.title(model),
    model,
    tiny.params(model, size, channels),
    size,
    ops.parse('resize', image_size=size, channels=channels),
  )
  paths = [tmp_path / f'{i}.png' for i in range(3)]
  gallery.draw_all(looked_into, paths, images, tmp_path / 'out', 2)
  return sorted(path.name for path in (tmp_path / 'out').iterdir())


@pytest.mark.gate
@pytest.mark.parametrize(
  'model, names',
  [
    (
      tiny.vit(resnet_blocks=(1,), patch_size=1),
      ('attention_distance', 'position_similarity', 'rollout'),
    ),
    (
      tiny.vit(pooling='gap', position_embedding='relative'),
      ('attention_distance', 'filters', 'rollout'),
    ),
    (
      tiny.vit(attention='axial', pooling='gap'),
      ('filters', 'position_similarity'),
    ),
    (tiny.vit(position_site='every_layer', scan=True), ALL),
  ],
  ids=['hybrid', 'relative', 'axial', 'every layer'],
)
def test_a_model_is_drawn_as_far_as_it_has_what_is_drawn(
  model, names, tmp_path, capsys
):
  assert _draw(model, tmp_path) == _files(*names)
  lines = capsys.readouterr().out
  assert [f'No {name}: ' in lines for name in ALL] == [
    name not in names for name in ALL
  ]


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
  assert message in result.stderr
  assert len(result.stderr.splitlines()) == 1
  assert result.stderr.startswith('error: ')
