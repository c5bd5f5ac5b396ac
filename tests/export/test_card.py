"""Guards: the model card tells what a run was, and nothing of the machine."""

import json

import pytest
import yaml
from etils import epath

from tests import tiny_run
from tests.interop import tiny
from vit_jax import config as config_lib
from vit_jax import convert, interop
from vit_jax.export import card
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
  assert front['library_name'] == 'transformers'
  assert front['metrics'] == ['accuracy']
  assert 'datasets' not in front  # Hugging Face has no such data set.
  (index,) = front['model-index']
  (result,) = index['results']
  assert result['dataset'] == {
    'type': 'digits:01',
    'name': 'digits:01',
    'split': 'test',
  }
  assert result['metrics'][0]['value'] == pytest.approx(accuracy, abs=1e-6)
  assert '1. decoded to grey, not rotated' in body
  assert '2. resizes the shorter side to 9 pixels' in body
  assert '3. crops 8 x 8 pixels' in body
  assert '| data.batch_size | `16` |' in body
  assert '| data.preprocess | `resize` |' in body
  assert f'| test/accuracy | {accuracy:.4f} |' in body
  assert '32 images of' in body  # Two steps of 16.
  assert 'TPUv3-core-days' in body
  assert '1 x cpu' in body
  assert '| jax |' in body
  assert str(run) not in body


_BIRDS, _BUCKET = '/home/jane/data/birds', 'gs://jane-bucket/data/birds'
_LIST = ',exclude=/home/jane/exclude.json'


@pytest.mark.parametrize(
  ('spec', 'name', 'public'),
  [
    *((spec, spec, []) for spec in ('digits:13589', 'shapes:size+count')),
    (f'folder:{_BIRDS}/', 'birds', []),
    (f'hf:{_BUCKET}{_LIST}', 'birds', []),
    ('arrayrecord:/home/jane/tfds/birds/1.0.0', 'birds', []),
    ('hf:jane/birds:small', 'birds:small', []),  # Is there.
    # None of these is the name of a data set.
    *((f'folder:{place}', 'folder', []) for place in ('.', '~jane')),
    ('arrayrecord:gs://jane-bucket', 'arrayrecord', []),
    ('folder:/home/jane', 'folder', []),
    ('tfds:cifar10:3.*.*', 'cifar10:3.*.*', ['cifar10']),
    ('tfds:eurosat/rgb' + _LIST, 'eurosat/rgb', ['eurosat/rgb']),
    ('hf:owner/birds:small', 'owner/birds:small', ['owner/birds']),
    (f'tomorrow:{_BIRDS}', 'birds', []),
    ('mix:tfds:cifar10@3+folder:/home/jane@7', 'unknown', []),
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
  (path,) = (run / 'checkpoints').glob('[0-9]*')
  card.write(
    epath.Path(tmp_path), tiny.vit(), str(path), image_size=(8, 8), channels=3
  )
  text = (tmp_path / 'README.md').read_text()
  _, front, body = text.split('---\n', 2)
  front = yaml.safe_load(front)
  assert front.get('datasets', []) == public
  assert front['model-index'][0]['results'][0]['dataset']['name'] == name
  assert f'## Data\n\n{name}\n' in body
  assert 'jane' not in text
  assert ('list of examples was left out' in body) == ('exclude=' in spec)
  assert 'No license is given' in body


def test_the_card_of_weights_without_a_run(tmp_path):
  model = tiny.vit()
  interop.save_npz(tmp_path / 'a.npz', tiny.params(model), model, image_size=8)
  front, body = _card(tmp_path / 'a.npz', tmp_path / 'hf')
  assert 'model-index' not in front
  assert '# ViT-Ti/4 at 8x8 px' in body
  assert '2. resizes to 8 x 8' in body
  assert 'Cost' not in body


def test_a_licence_is_an_identifier():
  card.check_license('')
  card.check_license('apache-2.0')
  with pytest.raises(ValueError, match='such as apache-2'):
    card.check_license('Apache 2')


def test_no_file_of_a_folder_tells_of_the_machine(run, tmp_path):
  saved = json.loads((run / 'config.json').read_text())
  saved['data']['dataset'] = f'folder:{_BIRDS}{_LIST}'
  (run / 'config.json').write_text(json.dumps(saved))
  _card(run, tmp_path / 'hf')
  for file in (tmp_path / 'hf').iterdir():
    content = file.read_bytes()
    for word in ('jane', str(run)):
      assert word.encode() not in content, (file, word)
