"""Guards: early stopping takes the step that validates best; means need all."""

import pytest

from tests import run_files
from vit_jax import config as config_lib
from vit_jax.configs import mini, pretrain
from vit_jax.paper.numbers import JFT
from vit_jax.paper.runs import Pretraining, Results
from vit_jax.sweep import Run, Study

NODE = Pretraining('ViT-B/32', JFT, 7)
FEW_SHOT = 'few_shot/5shot/accuracy'


def _results(folder, config, rows, node=NODE):
  """Writes the files of one finished run and returns its `Results`."""
  run_files.leave(folder, *rows, config=config)
  return Results(
    [Study(node.name, finals=[Run('run', 'config.py')])],
    {'run': rows[-1]},
    workdir=lambda name: folder,
  )


ROWS = [
  {'step': 1, 'validation/accuracy': 0.5, FEW_SHOT: 0.25},
  {'step': 2, 'validation/accuracy': 0.7, FEW_SHOT: 0.5},
  {'step': 3, 'validation/accuracy': 0.6, FEW_SHOT: 0.75},
]


def test_early_stopping_uses_the_best_validation_step(tmp_path):
  config = pretrain.get_config('ViT-B/32,jft300m,few_shot=imagenet2012')
  # The config names no best metric, and `few_shot` precedes `validation`.
  assert config.checkpoint.best == ''
  assert {'few_shot', 'validation'} <= set(config.evals)
  found = _results(tmp_path, config, ROWS).early_stopped([NODE], FEW_SHOT)
  assert found.values == (50.0,)
  assert found.runs == ('run',)


@pytest.mark.parametrize(
  'rows',
  [
    # The run was never validated.
    [{'step': 3, FEW_SHOT: 0.5}],
    # The step that was validated has no few-shot accuracy.
    [{'step': 2, 'validation/accuracy': 0.5}, {'step': 3, FEW_SHOT: 0.5}],
  ],
)
def test_without_a_step_to_choose_there_is_no_number(rows, tmp_path):
  config = pretrain.get_config('ViT-B/32,jft300m,few_shot=imagenet2012')
  found = _results(tmp_path, config, rows)
  assert found.early_stopped([NODE], FEW_SHOT) is None


def test_early_stopping_uses_the_metric_of_the_best_checkpoint(tmp_path):
  config = mini.get_config('ViT-B/32,jft300m')
  assert config.checkpoint.best == 'validation/loss'
  rows = [
    row | {'validation/loss': loss}
    for row, loss in zip(ROWS, (3.0, 2.0, 1.0), strict=True)
  ]
  found = _results(tmp_path, config, rows).early_stopped([NODE], FEW_SHOT)
  assert found.values == (75.0,)


def test_an_average_is_over_the_data_sets_of_the_config(tmp_path):
  config = config_lib.default()
  for name in ('few_shot', 'few_shot_pets'):
    config.evals[name] = config_lib.evaluation(
      'test', 'few_shot', train_split='train'
    )
  config.evals.validation = config_lib.evaluation('train[:1%]')
  pets = 'few_shot_pets/5shot/accuracy'
  row = {'step': 3, FEW_SHOT: 0.5, pets: 0.75}
  found = _results(tmp_path, config, [row]).average_few_shot([NODE])
  assert found.values == (62.5,)
  # A missing data set gives no average, not an average over fewer.
  row = {'step': 3, FEW_SHOT: 0.5}
  assert _results(tmp_path, config, [row]).average_few_shot([NODE]) is None
