"""Guards that a run survives damaged records, and counts them."""

import numpy as np
import pytest
from array_record.python import array_record_module

from tests import tiny_run
from tests.prepare_data import imagenet21k, odd_files
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import pipeline
from vit_jax.data.ops import decoding
from vit_jax.prepare_data import prepare, shards, tars
from vit_jax.training import train
from vit_jax.workdir import metrics

IMAGES, DAMAGED = 400, 4
EPOCHS, BATCH = 3, 40


@pytest.fixture
def folder(tmp_path):
  """Returns a prepared data set, of which 1% of the records are damaged."""
  rng = np.random.default_rng(0)
  names = [f'{"ab"[i % 2]}/{i}.jpg' for i in range(IMAGES)]
  raw = {name: imagenet21k.picture(rng) for name in names}
  (tmp_path / 'raw.tar').write_bytes(imagenet21k.tar_file(raw))
  source = tars.Tars('tar', f'{tmp_path}/raw.tar')
  job = prepare.describe(source, str(tmp_path), count=1)
  prepare.run(job)
  made = data.open_source(f'arrayrecord:{job.target}')
  records = [made.read('train', i) for i in range(IMAGES)]
  [path] = job.target.glob('*.array_record-*')
  # As TFDS and others would store them, without a look at the pictures.
  writer = array_record_module.ArrayRecordWriter(str(path), 'group_size:1')
  for i, record in enumerate(records):
    image = (
      odd_files.JPEG[:99] if i % (IMAGES // DAMAGED) == 7 else record.image
    )
    writer.write(shards.serialize(image, [record.label], record.name))
  writer.close()
  return job.target


def _config(folder):
  config = tiny_run.tiny_config()
  config.data.dataset = f'arrayrecord:{folder}'
  config.data.batch_size = BATCH
  config.channels = 3
  config.total_steps = EPOCHS * IMAGES // BATCH
  config.log.every = 1
  config.evals.train = config_lib.evaluation('train')
  return config


@pytest.mark.gate
def test_one_percent_damaged_records(folder, tmp_path, caplog):
  config = _config(folder)
  config.data.unreadable = 'skip-and-count'
  train.train_and_evaluate(config, tmp_path / 'run')
  rows = metrics.read(tmp_path / 'run')
  # Each epoch meets each of them once.
  counted = sum(row.get('train/unreadable', 0) for row in rows)
  assert counted == EPOCHS * DAMAGED
  assert f'leaves out {DAMAGED} unreadable' in caplog.text
  assert rows[-1]['step'] == config.total_steps


def test_a_preparation_finds_them(folder, tmp_path):
  source = data.open_source(f'arrayrecord:{folder}')
  with pytest.raises(decoding.CorruptImageError):
    decoding.decode(source.read('train', 7).image, 3)
  job = prepare.describe(source, str(tmp_path / 'clean'), name='clean')
  report = prepare.run(job)
  assert f'set_aside: {DAMAGED}' in report
  clean = data.open_source(f'arrayrecord:{job.target}')
  assert len(data.View(clean, 'train')) == IMAGES - DAMAGED
  assert pipeline.num_eval_batches(data.View(clean, 'train'), 40) == 10
