"""Guards: the page on mistakes shows the evaluator's numbers and the images."""

import base64
import itertools
import re
import shutil

import cv2
import numpy as np
import pandas as pd
import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.evaluators import predictions
from vit_jax.inspection import mistakes
from vit_jax.training import train

pytestmark = pytest.mark.usefixtures('programs')

NAMES = ['cat <script>alert(1)', 'dog & "co"']


def _images(folder):
  """Returns the sources of a page's images."""
  return re.findall('<img src="(.*?)"', (folder / 'index.html').read_text())


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run on a folder with evil names and one unreadable test image."""
  folder = tmp_path_factory.mktemp('run')
  rng = np.random.default_rng(0)
  for split, name in itertools.product(('train', 'test'), NAMES):
    place = folder / 'images' / split / name
    place.mkdir(parents=True)
    for i in range(12):
      pixels = rng.integers(0, 256, (8, 8), np.uint8)
      cv2.imwrite(str(place / f'{i:02}&.png'), pixels)
  (place / '05&.png').write_bytes(b'broken')
  config = tiny_config(
    {
      'data.dataset': f'folder:{folder / "images"}',
      'data.unreadable': 'skip-and-count',
    }
  )
  # As in tests/test_refused.py, which shares the compiled program.
  config.schedule = config_lib.schedule('constant', peak=1e-3, warmup_steps=0)
  config.evals.test = config_lib.evaluation('test')
  config.evals.test.save_predictions = True
  train.train_and_evaluate(config, folder / 'run')
  return folder / 'run'


def test_the_page_has_the_evaluators_numbers_and_the_images(run, tmp_path):
  mistakes.write(run, tmp_path, worst=5)
  table, facts = predictions.read(mistakes.find(run))
  expected = results.final_metrics(run)
  text = (tmp_path / 'index.html').read_text()
  assert text.count('<script') == 1
  images = _images(tmp_path)
  assert len(images) == 5
  for needed in (
    f'{100 * expected["test/accuracy"]:.2f}%',
    f'{expected["test/ece"]:.4f}',
    f'{expected["test/loss"]:.4f}',
    'dog &amp; &#34;co&#34;/05&amp;.png</li>',
  ):
    assert needed in text, needed
  # Nothing comes from the network.
  assert 'http' not in text
  wrong = table[table['counted'] & ~table['correct']]
  first = wrong.sort_values('confidence', ascending=False).iloc[0]
  _, encoded = images[0].split(',')
  image = cv2.imdecode(np.frombuffer(base64.b64decode(encoded), np.uint8), 1)
  np.testing.assert_array_equal(image, cv2.imread(first['name']))
  classes = pd.read_csv(tmp_path / 'classes.csv')
  assert classes['name'].tolist() == facts['class_names']
  assert classes['correct'].sum() == table['correct'].sum()
  pairs = pd.read_csv(tmp_path / 'confusions.csv')
  assert pairs['count'].sum() == len(wrong)


def test_missing_and_moved_data(run, tmp_path):
  copy, moved = tmp_path / 'copy', tmp_path / 'moved'
  shutil.copytree(run, copy)
  shutil.copytree(run.parent / 'images', moved)

  def images(**options):
    mistakes.write(copy, tmp_path / 'page', worst=4, **options)
    return len(_images(tmp_path / 'page'))

  assert images(dataset=f'folder:{moved}') == 4
  # Another image in the place of one that was evaluated is not shown.
  for some in (moved / 'test').rglob('*.png'):
    some.rename(some.with_name(f'z{some.name}'))
  with pytest.raises(ValueError, match=r'z\d\d&\.png is in the place'):
    images(dataset=f'folder:{moved}')
  # Without its data, the page has all the rest.
  (copy / 'config.json').unlink()
  assert images() == 0


def test_which_predictions(run, tmp_path):
  with pytest.raises(ValueError, match='save_predictions=True'):
    mistakes.find(tmp_path)
  shutil.copytree(run / 'predictions', tmp_path / 'predictions')
  one = tmp_path / 'predictions/test.parquet'
  assert mistakes.find(tmp_path) == mistakes.find(one) == one
  shutil.copy(one, one.with_name('other.parquet'))
  with pytest.raises(ValueError, match=r'other.*test\.parquet'):
    mistakes.find(tmp_path)


@pytest.mark.gate
def test_the_command(run, tmp_path, command):
  words = [f'--mistakes={run}', '--worst=1', f'--to={tmp_path}']
  done = command('vit_jax.inspect', *words)
  assert done.returncode == 0, done.stderr
  assert '/index.html' in done.stdout
