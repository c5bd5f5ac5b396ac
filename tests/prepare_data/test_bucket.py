"""Guards preparing from a bucket, and into one."""

import numpy as np
import pytest
from etils import epath

from tests.prepare_data import imagenet21k
from tests.workdir.buckets.conftest import bucket, server  # noqa: F401
from vit_jax import data
from vit_jax.prepare_data import prepare, tars

pytestmark = pytest.mark.usefixtures('bucket')


def test_into_a_bucket(tmp_path):
  rng = np.random.default_rng(0)
  content = {f'owl/{i}.jpg': imagenet21k.picture(rng) for i in range(20)}
  (tmp_path / 'birds.tar').write_bytes(imagenet21k.tar_file(content))
  source = tars.Tars(f'{tmp_path}/birds.tar')
  job = prepare.describe(source, 'gs://bucket/tfds', count=3)
  report = prepare.run(job)
  folder = epath.Path('gs://bucket/tfds/birds/1.0.0')
  names = sorted(path.name for path in folder.iterdir())
  assert names == [
    *(f'birds-train.array_record-{i:05}-of-00003' for i in range(3)),
    *('dataset_info.json', 'features.json', 'label.labels.txt'),
    *('report.json', 'report.txt', 'set_aside.csv'),
  ]
  assert (folder / 'report.txt').read_text() == report
  assert prepare.run(job) == report
  made = data.open_source('arrayrecord:gs://bucket/tfds')
  assert made.info.is_remote
  assert {made.read('train', i).image for i in range(20)} == {
    source.read('train', i).image for i in range(20)
  }
  # The same files as in a local folder.
  local = prepare.describe(source, str(tmp_path), count=3)
  prepare.run(local)
  for name in names:
    if 'array_record' in name:
      made = (tmp_path / 'birds/1.0.0' / name).read_bytes()
      assert (folder / name).read_bytes() == made
