"""Guards: the model card tells what a run was, and nothing of the machine."""

import json

import pytest
import yaml

from tests import tiny_run
from tests.interop import tiny
from vit_jax import config as config_lib
from vit_jax import convert, interop
from vit_jax.training import train

pytestmark = pytest.mark.usefixtures('programs')


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs') / 'digits'
  config = tiny_run.tiny_config({'data.exif_orientation': False})
  config.evals.test = config_lib.evaluation(
    'test', every=2, preprocess='resize_small(9)|central_crop'
  )
  train.train_and_evaluate(config, str(workdir))
  return workdir


def _card(source, to, **options):
  convert.convert(str(source), str(to), overwrite=True, **options)
  _, front, body = (to / 'README.md').read_text().split('---\n', 2)
  return yaml.safe_load(front), body


def test_the_card_of_a_run(run, tmp_path):
  front, body = _card(run, tmp_path / 'hf', license_='cc-by-4.0')
  rows = [json.loads(x) for x in (run / 'metrics.jsonl').open()]
  (accuracy,) = {r['test/accuracy'] for r in rows if 'test/accuracy' in r}
  assert front['license'] == 'cc-by-4.0'
  assert front['pipeline_tag'] == 'image-classification'
  assert 'datasets' not in front  # Hugging Face has no such data set.
  for part in (
    *('1. decoded to grey, not rotated', '2. `ResizeSmall(size=(9, 9)'),
    *('3. `CentralCrop(size=(8, 8))', '| data.batch_size | `16` |'),
    *(f'| test/accuracy | {accuracy:.4f} |', 'TPUv3-core-days'),
    *('32 images of', '1 x cpu', '| jax |'),  # Two steps of 16.
  ):
    assert part in body
  assert str(run) not in body


_LIST = ',exclude=/home/jane/exclude.json'


@pytest.mark.parametrize(
  ('spec', 'name', 'public'),
  [
    *((spec, spec, '') for spec in ('digits:13589', 'shapes:size+count')),
    ('tfds:cifar10:3.*.*', 'cifar10:3.*.*', 'cifar10'),
    ('tfds:eurosat/rgb' + _LIST, 'eurosat/rgb', 'eurosat/rgb'),
    ('hf:owner/birds:small', 'owner/birds:small', 'owner/birds'),
    # Data in files.
    ('folder:/home/jane/birds/', 'folder', ''),
    (f'hf:gs://jane-bucket/birds{_LIST}', 'hf', ''),
    ('hf:jane/birds:small', 'hf', ''),  # Is there.
    ('arrayrecord:/home/jane/tfds/birds/1.0.0', 'arrayrecord', ''),
    ('mix:tfds:cifar10@3+folder:/home/jane@7', 'mix', ''),
  ],
)
def test_public_data_are_named_and_paths_are_not(
  run, tmp_path, monkeypatch, spec, name, public
):
  (tmp_path / 'jane' / 'birds').mkdir(parents=True)
  monkeypatch.chdir(tmp_path)
  saved = json.loads((run / 'config.json').read_text())
  saved['data']['dataset'] = spec
  (run / 'config.json').write_text(json.dumps(saved))
  front, body = _card(run, tmp_path / 'hf')
  assert front.get('datasets', []) == ([public] if public else [])
  assert f'## Data\n\n{name}\n' in body
  assert ('list of examples was left out' in body) == ('exclude=' in spec)
  assert 'No license is given' in body
  for file in (tmp_path / 'hf').iterdir():  # No file tells of the machine.
    content = file.read_bytes()
    for word in ('jane', str(run)):
      assert word.encode() not in content, (file, word)


def test_the_card_of_weights_without_a_run(tmp_path):
  model = tiny.vit()
  interop.save_npz(tmp_path / 'a.npz', tiny.params(model), model, image_size=8)
  _, body = _card(tmp_path / 'a.npz', tmp_path / 'hf')
  assert '# ViT-Ti/4 at 8x8 px' in body
  assert '2. `Resize(size=(8, 8)' in body
  assert 'Cost' not in body
  with pytest.raises(ValueError, match='Apache 2'):
    _card(tmp_path / 'a.npz', tmp_path / 'hf', license_='Apache 2')
