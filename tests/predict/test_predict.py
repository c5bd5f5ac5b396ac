"""Guards: a checkpoint's use on images, in Python and from the command line."""

import csv
import dataclasses
import io
import json
import os

import cv2
import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.tiny_run import SIZES, tiny_config
from vit_jax import config as config_lib
from vit_jax import convert, inspect, interop, models, predict
from vit_jax.data import ops
from vit_jax.inspection import subject
from vit_jax.models.shared import normalize
from vit_jax.training import train

SIZE = 8  # Pixels.


def _folder(root, split, count):
  """Writes noisy grey, red and blue images; their sizes differ."""
  rng = np.random.default_rng(len(split))
  for name, colour in (
    ('grey', (90, 90, 90)),
    ('red', (200, 60, 60)),
    ('blue', (60, 60, 200)),
  ):
    folder = root / split / name
    folder.mkdir(parents=True)
    for i in range(count):
      noise = rng.integers(-60, 60, (12 + i, 10, 3))
      pixels = np.clip(noise + colour, 0, 255).astype(np.uint8)
      Image.fromarray(pixels).save(folder / f'{i}.png')


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Returns the data, the work directory and the metrics of a tiny run."""
  root = tmp_path_factory.mktemp('predict')
  _folder(root / 'data', 'train', 6)
  _folder(root / 'data', 'test', 5)
  config = tiny_config(
    {
      'data.dataset': f'folder:{root / "data"}',
      'data.preprocess': 'resize',
      'channels': 3,
      'total_steps': 6,
      'polyak.decay': 0.5,
      'optimizer': config_lib.adam(),
      'schedule': config_lib.schedule('constant', peak=3e-3, warmup_steps=0),
    }
  )
  config.evals.test = config_lib.evaluation(
    'test', preprocess=f'resize({SIZE + 2})|central_crop'
  )
  metrics = train.train_and_evaluate(config, root / 'run')
  return root / 'data', root / 'run', metrics


@pytest.fixture(scope='module')
def model(run):
  return vit_jax.load(run[1])


@pytest.fixture
def use(command):
  """Runs the command, on a number of simulated devices."""

  def call(*words, devices=1, stdin=''):
    flag = f'--xla_force_host_platform_device_count={devices}'
    return command('vit_jax.predict', *words, stdin=stdin, XLA_FLAGS=flag)

  return call


def test_a_folder_has_the_accuracy_of_the_runs_own_evaluation(run, model):
  data, _, metrics = run
  found = model.predict(data / 'test')
  labels = [os.path.basename(os.path.dirname(name)) for name in found.names]
  right = np.mean([a == b for a, b in zip(found.classes, labels, strict=True)])
  assert len(found) == 15
  assert right == metrics['test/accuracy']
  # The loss of the evaluator: the same weights, images and probabilities.
  chosen = [model.class_names.index(label) for label in labels]
  loss = -np.log(found.probabilities[np.arange(15), chosen]).mean()
  np.testing.assert_allclose(loss, metrics['test/loss'], rtol=1e-5)


@pytest.mark.gate
def test_the_command_gives_the_same_on_1_and_8_devices(run, model, use):
  data, workdir, metrics = run
  expected = model.predict(data / 'test')
  for devices in (1, 8):
    words = (f'--checkpoint={workdir}', data / 'test', '--json', '--top=3')
    done = use(*words, devices=devices)
    assert done.returncode == 0, done.stderr
    rows = list(map(json.loads, done.stdout.splitlines()))
    assert [row['image'] for row in rows] == list(expected.names)
    for row, best in zip(rows, expected.best(3), strict=True):
      np.testing.assert_allclose(
        [c['probability'] for c in row['predictions']],
        [c['probability'] for c in best],
        atol=1e-5,
      )
    right = 15 * metrics['test/accuracy']
    assert f'{right:.0f} of 15 images are of the class of their fo' in (
      done.stderr
    )


def test_paths_pil_images_and_arrays_give_the_same(run, model):
  path = run[0] / 'test' / 'red' / '1.png'
  image = Image.open(path)
  several = [str(path), image, np.asarray(image), np.asarray(image)[None]]
  found = model.predict(several)
  assert found.names == (str(path), '1', '2', '3')
  for row in found.logits[1:]:
    np.testing.assert_array_equal(row, found.logits[0])
  assert model.predict(np.asarray(image)[..., 0]).logits.shape == (1, 3)


def test_predictions_are_the_models(run, model):
  path = run[0] / 'test' / 'blue' / '2.png'
  pixels = cv2.imread(str(path))[..., ::-1]
  seen = ops.parse('resize(10)|central_crop', image_size=SIZE, channels=3)
  image = normalize(seen(pixels, np.random.default_rng(0))[None])
  logits, out = jax.jit(model.module.apply)({'params': model.params}, image)
  found = model.predict(path)
  np.testing.assert_allclose(found.logits, logits, atol=1e-5)
  np.testing.assert_allclose(model.features(path), out['pre_logits'], atol=1e-5)
  np.testing.assert_allclose(
    model.features(path, layer='encoded'), out['encoded'][:, 0], atol=1e-5
  )
  weights = inspect.attention_weights(model.module, model.params, image)
  mixed = np.asarray(weights)[0, 0].mean(axis=0) + np.eye(5)  # One block.
  mixed /= mixed.sum(axis=-1, keepdims=True)
  np.testing.assert_allclose(
    model.attention(path)[0], mixed[0, 1:].reshape(2, 2), atol=1e-5
  )


def test_names_of_a_checkpoint_cannot_control_the_terminal(run):
  loaded = subject.load(str(run[1]))
  names = ('a\x1b[31m', 'b\nc', 'd')
  model = predict.Predictor(dataclasses.replace(loaded, class_names=names))
  assert model.class_names == (r'a\x1b[31m', r'b\nc', 'd')


def test_top_is_a_table_of_the_best_classes():
  found = predict.Predictions(
    ('a', 'b'),
    np.log(np.array([[1, 2, 5], [4, 4, 2]], np.float32)),
    ('x', '<y>', 'z'),
  )
  table = found.top(2)
  assert table['image'].tolist() == ['a', 'a', 'b', 'b']
  assert table['class'].tolist() == ['z', '<y>', 'x', '<y>']
  np.testing.assert_allclose(
    table['probability'], [0.625, 0.25, 0.4, 0.4], atol=1e-6
  )
  assert found.classes == ['z', 'x']
  assert repr(found) == found.top(3).to_string(index=False)
  assert '&lt;y&gt; 25.0%' in found._repr_html_()
  single = predict.Predictions(
    ('a',), np.zeros((1, 2), np.float32), ('x', 'y'), loss='sigmoid'
  )
  assert single.probabilities.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize('batch_size', [1, 4])
def test_batches_of_any_size_give_the_same(run, model, batch_size):
  small = vit_jax.load(run[1], batch_size=batch_size)
  np.testing.assert_allclose(
    small.predict(run[0] / 'test').logits,
    model.predict(run[0] / 'test').logits,
    atol=1e-5,
  )


def _broken_files(folder, good):
  """Writes files that cannot be read; returns name -> a part of the reason."""
  folder.mkdir()
  data = good.read_bytes()
  jpeg = cv2.imencode('.jpg', np.zeros((40, 40, 3), np.uint8))[1].tobytes()
  bomb = bytearray(data)
  bomb[16:24] = (10**6).to_bytes(4, 'big') * 2
  contents = {
    'empty.jpg': (b'', 'empty'),
    'text.jpg': (b'hello', 'cannot decode'),
    'truncated.jpg': (jpeg[:-2], 'truncated JPEG'),
    'half.jpg': (jpeg[: len(jpeg) // 2], 'truncated JPEG'),
    'truncated.png': (data[:-20], 'truncated PNG'),
    'header.png': (data[:8], 'truncated PNG'),
    'bomb.png': (bytes(bomb), 'max_pixels'),
    'zeros.webp': (bytes(100), 'cannot decode'),
    'page.gif': (b'GIF89a<html>', 'cannot decode'),
    'line\nbreak.jpg': (b'\xff\xd8', 'truncated JPEG'),
  }
  for name, (content, _) in contents.items():
    (folder / name).write_bytes(content)
  os.mkfifo(folder / 'pipe.jpg')
  (folder / 'link.jpg').symlink_to('nowhere.jpg')
  (folder / 'good.png').write_bytes(data)
  reasons = {name: reason for name, (_, reason) in contents.items()}
  return reasons | {'pipe.jpg': 'regular', 'link.jpg': 'no such file'}


@pytest.mark.gate
def test_unreadable_files_are_named_and_counted(run, tmp_path, use):
  data, workdir, _ = run
  good = data / 'test' / 'red' / '0.png'
  reasons = _broken_files(tmp_path / 'broken', good)
  table = tmp_path / 'found.csv'
  words = (f'--checkpoint={workdir}', tmp_path / 'broken', f'--csv={table}')
  done = use(*words, '--json', '--top=1')
  assert done.returncode == 3
  assert f'{len(reasons)} of {len(reasons) + 1} files could not' in done.stderr
  rows = list(map(json.loads, done.stdout.splitlines()))
  assert [os.path.basename(r['image']) for r in rows if 'error' not in r] == [
    'good.png'
  ]
  told = {os.path.basename(r['image']): r.get('error', '') for r in rows}
  for name, reason in reasons.items():
    assert reason in told[name.replace('\n', '\\n')], name
  lines = list(csv.DictReader(io.StringIO(table.read_text())))
  assert len(lines) == len(rows)
  assert sum(bool(line['error']) for line in lines) == len(reasons)


@pytest.mark.gate
def test_names_come_from_stdin_and_pictures_show_attention(run, tmp_path, use):
  data, workdir, _ = run
  files = sorted((data / 'test' / 'blue').iterdir())[:2]
  words = (f'--checkpoint={workdir}', '-', f'--attention={tmp_path / "seen"}')
  # Python's own lines also end at this separator; a file's name may hold it.
  odd = tmp_path / 'a\u2028b.png'
  odd.write_bytes(files[1].read_bytes())
  files[1] = odd
  # As long as a name may be: 251 of its bytes before the suffix.
  long = tmp_path / ('\u9ce5' * 83 + '.png')
  long.write_bytes(files[0].read_bytes())
  files.append(long)
  done = use(*words, stdin=''.join(f'{f}\n' for f in [*files, files[0]]))
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()) == 3
  pictures = sorted((tmp_path / 'seen').iterdir())
  assert [p.name for p in pictures] == [
    *('0_0.png', '1_a_u2028b.png', f'2_{66 * chr(0x9CE5)}.png'),
  ]
  # The image on the left, and the image under its rollout on the right.
  picture = np.asarray(Image.open(pictures[0]))
  left, right = picture[8:232, 8:232], picture[8:232, 240:464]
  assert (right <= left).all()
  assert (right < left).any()


@pytest.mark.parametrize(
  'images, message',
  [
    ([], 'the sequence is empty'),
    ('nowhere.jpg', 'There is no file'),
    (np.zeros((4, 4, 3)), 'expected uint8'),
    (3, 'int is no image'),
    (b'abc', 'bytes is no image'),
  ],
)
def test_what_is_no_image_is_one_clear_error(model, images, message):
  with pytest.raises(ValueError, match=message):
    model.predict(images)


@pytest.mark.gate
def test_wrong_arguments_are_one_clear_error(run, model, use):
  image = np.zeros((4, 4, 3), np.uint8)
  with pytest.raises(ValueError, match='no layer'):
    model.features(image, layer='block_7')
  with pytest.raises(ValueError, match='batch_size=0'):
    vit_jax.load(run[1], batch_size=0)
  with pytest.raises(ValueError, match="dtype='int8'"):
    vit_jax.load(run[1], dtype='int8')
  done = use(f'--checkpoint={run[1]}', '-', 'a.jpg')
  assert done.returncode == 1
  assert '- takes the names' in done.stderr


def test_the_preprocessing_travels_with_converted_weights(run, tmp_path):
  _, workdir, _ = run
  expected = vit_jax.load(workdir)
  for to in ('w.npz', 'hf'):
    convert.convert(str(workdir), str(tmp_path / to))
    model = vit_jax.load(tmp_path / to)
    assert model.preprocess == expected.preprocess
    assert model.class_names == ('blue', 'grey', 'red')
    assert model.loss == 'softmax'


@pytest.mark.gate
def test_a_checkpoint_without_head_gives_features_only(tmp_path):
  model = models.build('ViT-Ti/4', num_classes=3, **SIZES)
  image = np.zeros((SIZE, SIZE, 3), np.uint8)
  params = model.init(jax.random.key(0), normalize(image[None]))['params']
  interop.save_npz(tmp_path / 'w.npz', params, model, image_size=SIZE)
  whole = vit_jax.load(tmp_path / 'w.npz')
  with np.load(tmp_path / 'w.npz') as file:
    arrays = {k: v for k, v in file.items() if not k.startswith('head')}
  np.savez(tmp_path / 'w.npz', **arrays)
  headless = vit_jax.load(tmp_path / 'w.npz')
  with pytest.raises(ValueError, match='has no head'):
    headless.predict(image)
  with pytest.raises(ValueError, match='has no head'):
    headless.features(image, layer='logits')
  np.testing.assert_array_equal(headless.features(image), whole.features(image))
