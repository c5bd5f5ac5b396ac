"""A sweep of fake runs."""

import pathlib
import sys

from etils import epath

from tests import run_files
from vit_jax.sweep import Study, Sweep, make_run
from vit_jax.sweep.commands import Folders

SCRIPT = pathlib.Path(__file__).with_name('fake_run.py')
# Rate -> held-out accuracy of its candidate. Two are best; the first must win.
HELD_OUT = {0.001: 0.5, 0.01: 0.75, 0.1: 0.75, 1.0: 0.25}
TEST = (0.9, 0.8, 1.0)  # Test accuracy for each seed.


def study(name='a', rates=tuple(HELD_OUT), seeds=3):
  def finals(winner):
    return [
      make_run(
        name,
        'test.py',
        {**winner.overrides, 'seed': i},
        **winner.labels,
        seed=i,
      )
      for i in range(seeds)
    ]

  candidates = [
    make_run(name, 'held_out.py', {'rate': rate}, rate=rate) for rate in rates
  ]
  return Study(name, candidates, finals)


def sweep():
  return Sweep([study('a'), study('b')])


def folders(path):
  path.mkdir(parents=True, exist_ok=True)
  return Folders(path, epath.Path(path))


def measured(run):
  """Returns the metrics of a run's last step."""
  if 'seed' in run.labels:
    return {'step': 7, 'test/accuracy': TEST[run.labels['seed']]}
  accuracy = HELD_OUT.get(run.labels['rate'], 0.5)
  return {'step': 7, 'validation/accuracy': accuracy}


def finish(where, run, metrics=None):
  """Writes the files of a finished run."""
  values = measured(run) if metrics is None else metrics
  run_files.leave(
    where.workdir(run.name),
    values | {'step': 7},
    **dict(config={'total_steps': 7}, done=7),
  )


def command(seconds, codes=()):
  """Returns a function that makes commands; `codes`: run name -> exit code."""

  def make(run, where):
    accuracy = next(v for k, v in measured(run).items() if k != 'step')
    words = [where.workdir(run.name), accuracy, seconds]
    return [
      sys.executable,
      *map(str, [SCRIPT, *words, dict(codes).get(run.name, 0)]),
    ]

  return make
