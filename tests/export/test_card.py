"""Guards: the model card tells what a run was, and nothing of the machine."""

import json

import pytest
import yaml
from etils import epath

from tests.interop import tiny
from vit_jax import convert, interop
from vit_jax.export import card


@pytest.fixture
def run(tmp_path):
  workdir = tmp_path / 'runs' / 'digits'
  tiny.run(workdir)
  return workdir


def test_the_card_of_a_run(run, tmp_path):
  (run / 'metrics.jsonl').write_text(
    '{"step": 9, "test/accuracy": 0.98765, "train/loss": 0.5}\n'
    '{"step": 8, "test/accuracy": 0.5}\n'
  )
  convert.convert(str(run), f'{tmp_path}/hf', license_='cc-by-4.0')
  text = (tmp_path / 'hf' / 'README.md').read_text()
  _, front, body = text.split('---\n', 2)
  front = yaml.safe_load(front)
  assert front['license'] == 'cc-by-4.0'
  assert front['pipeline_tag'] == 'image-classification'
  for part in (
    *('# ViT-Ti/4 at 8x8 px', '`resize_small(9)`', '| image_size | `[8, 8]` |'),
    *('## Results', '| test/accuracy | 0.9877 |'),
  ):
    assert part in body
  assert '0.5' not in body  # Of another step, or of training.
  assert 'No license' not in body


@pytest.mark.parametrize(
  ('spec', 'name'),
  [
    *((spec, spec) for spec in ('digits:13589', 'shapes:size+count')),
    (
      'tfds:cifar10:3.*.*,exclude=/home/jane/exclude.json',
      'tfds:cifar10:3.*.*',
    ),
    # Data that may lie in files.
    ('folder:/home/jane/birds/', 'folder'),
    ('hf:gs://jane-bucket/birds', 'hf'),
    ('arrayrecord:/home/jane/tfds/birds/1.0.0', 'arrayrecord'),
    ('mix:tfds:cifar10@3+folder:/home/jane@7', 'mix'),
  ],
)
def test_data_are_named_and_paths_are_not(run, tmp_path, spec, name):
  saved = json.loads((run / 'config.json').read_text())
  saved['data']['dataset'] = spec
  saved['init']['checkpoint'] = '/home/jane/weights.npz'
  (run / 'config.json').write_text(json.dumps(saved))
  card.write(epath.Path(tmp_path), interop.read(run))
  text = (tmp_path / 'README.md').read_text()
  assert f'## Data\n\n{name}\n' in text
  for word in ('jane', str(tmp_path)):
    assert word not in text


def test_the_card_of_weights_without_a_run(tmp_path):
  model = tiny.vit()
  interop.save_npz(tmp_path / 'a.npz', tiny.params(model), model, image_size=8)
  card.write(epath.Path(tmp_path), interop.read(tmp_path / 'a.npz'))
  text = (tmp_path / 'README.md').read_text()
  assert '`resize`' in text
  assert 'No license is given' in text
  assert '## Training' not in text
