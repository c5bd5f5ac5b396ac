"""Guards: early stopping takes the step that validates best; means need all."""

import json

import pytest

from vit_jax import config as config_lib
from vit_jax.configs import mini, pretrain
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, Results, pretraining, seeds
from vit_jax.sweep import Run, Study

NODE = Pretraining('ViT-B/32', values.JFT, 7)
FEW_SHOT = 'few_shot/5shot/accuracy'


def _results(folder, config, rows, node=NODE):
  """Writes the files of one finished run and returns its `Results`."""
  folder.mkdir(exist_ok=True)
  config_lib.save(config, folder)
  lines = [json.dumps(row) for row in rows]
  (folder / 'metrics.jsonl').write_text('\n'.join(lines) + '\n')
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


def test_early_stopping_falls_back_to_another_evaluation(tmp_path):
  config = config_lib.default()
  config.evals.a = config_lib.evaluation(
    'test', 'few_shot', train_split='train'
  )
  config.evals.held_out = config_lib.evaluation('train[:1%]')
  rows = [
    {'step': 1, 'held_out/accuracy': 0.5, FEW_SHOT: 0.25},
    {'step': 2, 'held_out/accuracy': 0.4, FEW_SHOT: 0.5},
  ]
  found = _results(tmp_path, config, rows).early_stopped([NODE], FEW_SHOT)
  assert found.values == (25.0,)


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


def test_without_anything_to_validate_by_there_is_no_number(tmp_path):
  config = config_lib.default()
  config.evals.few_shot = config_lib.evaluation(
    'test', 'few_shot', train_split='train'
  )
  found = _results(tmp_path, config, ROWS)
  assert found.early_stopped([NODE], FEW_SHOT) is None
  (tmp_path / 'config.json').unlink()
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


def test_pretrainings_on_jft_have_the_epochs_of_table_3():
  for model, epochs in (('ViT-B/16', 7), ('ViT-L/16', 14), ('ViT-H/14', 14)):
    assert pretraining(model, values.JFT) == (
      Pretraining(model, values.JFT, epochs)
    )
  # On other data, all models of a kind have the same epochs.
  assert pretraining('ViT-L/16', values.IMAGENET).epochs is None


def test_results_know_how_many_pretrainings_differ_in_their_seed():
  other = Pretraining('ViT-B/16')
  results = Results([], {}, counts={NODE: 3})
  assert results.seeds(NODE) == seeds(NODE, 3)
  assert [node.name for node in results.seeds(NODE)] == [
    *('ViT-B/32, JFT-300M, 7 epochs', 'ViT-B/32, JFT-300M, 7 epochs, seed 1'),
    'ViT-B/32, JFT-300M, 7 epochs, seed 2',
  ]
  assert results.seeds(other) == [other]
  # Items share results, but not how many pre-trainings there are.
  again = results.counting({other: 2}, {NODE.name: {'far_head': 5.0}})
  assert again.seeds(NODE) == [NODE]
  assert len(again.seeds(other)) == 2
  assert again.inside(NODE) == {'far_head': 5.0}
  assert again.inside(other) == results.inside(NODE) == {}
  assert results.seeds(NODE) == seeds(NODE, 3)
