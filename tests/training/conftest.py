"""The finished run that many tests read, and copies of it."""

import shutil

import pytest
from absl import logging

from tests import tiny_run
from vit_jax.training import train


@pytest.fixture(scope='package', autouse=True)
def programs(compiled):
  """Launches share their compiled programs, as those of users do."""
  with tiny_run.keeping_programs(compiled):
    yield


@pytest.fixture(scope='package')
def finished(programs, tmp_path_factory):
  """An uninterrupted run on one device: its work directory and its result."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.INFO)
  workdir = tmp_path_factory.mktemp('runs') / 'finished'
  config = tiny_run.eventful_config()
  config.log.tensorboard = True
  config.profile = dict(start_step=4, steps=2)
  config.evals.test.save_predictions = True
  result = train.train_and_evaluate(config, workdir)
  logging.set_verbosity(before)
  return workdir, result


@pytest.fixture
def copy(finished, tmp_path):
  """A copy of the finished run, without its profile, which is large."""
  return shutil.copytree(
    finished[0], tmp_path / 'copy', ignore=shutil.ignore_patterns('profile')
  )
