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
from tests.interop import tiny
from tests.tiny_run import SIZES, tiny_config
from vit_jax import config as config_lib
from vit_jax import convert, inspect, interop, loaded, models, predict
from vit_jax.data import ops
from vit_jax.models.shared import normalize
from vit_jax.training import evaluate

SIZE = 8  # Pixels.


def _folder(root, split, count):
  """Writes noisy grey, red and blue images; their sizes differ."""
  rng = np.random.default_rng(len(split))
  colours = {'grey': (90, 90, 90), 'red': (200, 60, 60), 'blue': (60, 60, 200)}
  for name, colour in colours.items():
    folder = root / split / name
    folder.mkdir(parents=True)
    for i in range(count):
      noise = rng.integers(-60, 60, (12 + i, 10, 3))
      pixels = np.clip(noise + colour, 0, 255).astype(np.uint8)
      Image.fromarray(pixels).save(folder / f'{i}.png')


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Returns data, the work directory of a tiny run on them, and its metrics."""
  root = tmp_path_factory.mktemp('predict')
  _folder(root / 'data', 'train', 1)
  _folder(root / 'data', 'test', 5)
  spec = f'folder:{root / "data"}'
  operations = f'resize({SIZE + 2})|central_crop'
  tiny.run(
    *(root / 'run', ('blue', 'grey', 'red'), 3),
    dataset=spec,
    preprocess=operations,
    **SIZES,
  )
  config = tiny_config({'data.dataset': spec, 'channels': 3})
  config.init.checkpoint = str(root / 'run')
  config.evals.test = config_lib.evaluation('test', preprocess=operations)
  metrics = evaluate.evaluate_only(config, root / 'evaluated')
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
  small = vit_jax.load(run[1], batch_size=1).predict(data / 'test')
  np.testing.assert_allclose(small.logits, found.logits, atol=1e-5)


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
    assert f'{15 * metrics["test/accuracy"]:.0f} of 15 images' in done.stderr


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
  names = ('a\x1b[31m', 'b\nc', 'd')
  found = dataclasses.replace(loaded.load(str(run[1])), class_names=names)
  model = predict.Predictor(found)
  assert model.class_names == (r'a\x1b[31m', r'b\nc', 'd')


def test_top_is_a_table_of_the_best_classes():
  logits = np.log(np.array([[1, 2, 5], [4, 4, 2]], np.float32))
  found = predict.Predictions(('a', 'b'), logits, ('x', '<y>', 'z'))
  table = found.top(2)
  assert table['image'].tolist() == ['a', 'a', 'b', 'b']
  assert table['class'].tolist() == ['z', '<y>', 'x', '<y>']
  np.testing.assert_allclose(
    table['probability'], [0.625, 0.25, 0.4, 0.4], atol=1e-6
  )
  assert found.classes == ['z', 'x']
  assert '&lt;y&gt;' in found._repr_html_()
  single = dataclasses.replace(found, logits=0 * logits, loss='sigmoid')
  assert (single.probabilities == 0.5).all()


@pytest.mark.gate
def test_unreadable_files_are_named_and_counted(run, tmp_path, use):
  data, workdir, _ = run
  good = (data / 'test' / 'red' / '0.png').read_bytes()
  folder, table = tmp_path / 'broken', tmp_path / 'found.csv'
  folder.mkdir()
  bomb = good[:16] + (10**6).to_bytes(4, 'big') * 2 + good[24:]
  contents = {
    **{'empty.jpg': b'', 'text.jpg': b'hello', 'truncated.png': good[:-20]},
    **{'bomb.png': bomb, 'line\nbreak.jpg': b'\xff\xd8', 'good.png': good},
  }
  for name, content in contents.items():
    (folder / name).write_bytes(content)
  os.mkfifo(folder / 'pipe.jpg')
  (folder / 'link.jpg').symlink_to('nowhere.jpg')
  words = (f'--checkpoint={workdir}', folder, f'--csv={table}')
  done = use(*words, '--json', '--top=1')
  assert done.returncode == 3
  rows = list(map(json.loads, done.stdout.splitlines()))
  reasons = {os.path.basename(row['image']): row.get('error') for row in rows}
  assert len(reasons) == len(contents) + 2
  assert [name for name in reasons if not reasons[name]] == ['good.png']
  assert 'max_pixels' in reasons['bomb.png']
  assert 'regular' in reasons['pipe.jpg']
  assert 'line\\nbreak.jpg' in reasons
  lines = list(csv.DictReader(io.StringIO(table.read_text())))
  told = {os.path.basename(row['image']): row['error'] or None for row in lines}
  assert told == reasons
  assert [row['class'] for row in lines if row['class']] == [
    rows[0]['predictions'][0]['class']
  ]


@pytest.mark.gate
def test_names_come_from_stdin_and_pictures_show_attention(run, tmp_path, use):
  data, workdir, _ = run
  files = sorted((data / 'test' / 'blue').iterdir())[:2]
  words = (f'--checkpoint={workdir}', '-', f'--attention={tmp_path / "seen"}')
  # Python's own lines also end at this separator; a file's name may hold it.
  odd = tmp_path / 'a\u2028b.png'
  odd.write_bytes(files[1].read_bytes())
  files[1] = odd
  done = use(*words, stdin=''.join(f'{f}\n' for f in [*files, files[0]]))
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()) == 2
  pictures = sorted((tmp_path / 'seen').iterdir())
  assert [p.name for p in pictures] == ['0_0.png', r'1_a\u2028b.png']
  # The image on the left, and the image under its rollout on the right.
  picture = np.asarray(Image.open(pictures[0]))
  left, right = picture[8:232, 8:232], picture[8:232, 240:464]
  assert (right <= left).all()
  assert (right < left).any()


@pytest.mark.parametrize(
  'images', [[], 'nowhere.jpg', np.zeros((4, 4, 3)), 3, b'abc']
)
def test_what_is_no_image_is_refused(model, images):
  with pytest.raises(ValueError, match=r'image|file|uint8'):
    model.predict(images)


@pytest.mark.gate
def test_wrong_arguments_are_one_clear_error(run, model, use):
  with pytest.raises(ValueError, match='no layer'):
    model.features(np.zeros((4, 4, 3), np.uint8), layer='block_7')
  for wrong in ({'batch_size': 0}, {'dtype': 'int8'}):
    with pytest.raises(ValueError, match=next(iter(wrong))):
      vit_jax.load(run[1], **wrong)
  done = use(f'--checkpoint={run[1]}', '-', 'a.jpg')
  assert done.returncode == 1


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
  params = tiny.params(model, (SIZE, SIZE))
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
