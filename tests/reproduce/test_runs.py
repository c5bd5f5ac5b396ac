"""Guards: each of the paper's runs has the right config at both scales."""

import pytest

from vit_jax.configs.sweeps import reproduce
from vit_jax.paper.numbers import CIFAR10, IMAGENET, JFT, PETS
from vit_jax.paper.runs import Pretraining, Transfer, Vtab
from vit_jax.sweep import reading
from vit_jax.vtab import tasks as vtab_tasks

LARGE = Pretraining('ViT-L/16', epochs=14)


def _run(study):
  [run] = study.finals_of(None)
  return run


def _paper(node, specs=None):
  return reading.read_config(_run(reproduce.at_paper_scale(node, specs or {})))


def _mini(node, data=''):
  return reading.read_config(_run(reproduce.in_miniature(node, data)))


def _seeds(runs):
  return [run.overrides['seed'] for run in runs]


def test_a_pretraining():
  run = _run(reproduce.at_paper_scale(LARGE, {}))
  assert run.name == 'ViT-L_16,JFT-300M,14-epochs/run=pretraining'
  assert run.config == (
    'configs/pretrain.py:ViT-L/16,jft300m,few_shot=imagenet2012,epochs=14'
  )
  assert run.overrides == {'seed': 0}
  mini = _mini(Pretraining('ViT-L/16', epochs=14, seed=2))
  assert (mini.total_steps, mini.seed) == (800, 2)
  sgd = Pretraining('BiT-R50x1', epochs=7, optimizer='sgd')
  assert _paper(sgd).optimizer.name == _mini(sgd).optimizer.name == 'sgd'


@pytest.mark.parametrize(
  ('node', 'every'),
  [
    # Figure 4 needs them for early stopping, and Figure 9 for its curves.
    (Pretraining('ViT-B/32', epochs=7, images=9_000_000, seed=2), 80),
    (Pretraining('ViT-B/16', epochs=28, seed=1), 320),
    (Pretraining('ViT-H/14', epochs=14), 800),
    (Pretraining('BiT-R50x1', epochs=7, optimizer='sgd'), 400),
  ],
)
def test_miniatures_are_evaluated_often_where_figures_need_it(node, every):
  evals = _mini(node).evals
  assert evals.validation.every == evals.few_shot.every == every


@pytest.mark.parametrize('objective', ['supervised', 'masked_patch'])
def test_the_user_may_give_the_splits_of_private_data(objective):
  node = Pretraining('ViT-B/16', epochs=14, objective=objective)
  config = _paper(node, {JFT: 'folder:/jft@all[1%:]@all[:1%]'})
  assert config.data.dataset == 'folder:/jft'
  assert config.data.train_split == 'all[1%:]'
  assert config.evals.validation.split == 'all[:1%]'
  with pytest.raises(ValueError, match='expected SPEC, or SPEC@TRAIN@HELD_OUT'):
    reproduce.at_paper_scale(node, {JFT: 'folder:/jft@all'})
  masked = objective == 'masked_patch'
  for made in (_paper(node), _mini(node)):
    assert (made.loss.name == 'masked_patch') == masked


def test_subsets_of_the_data():
  node = Pretraining('ViT-B/32', epochs=7, images=9_000_000)
  config = _paper(node)
  assert config.data.train_split == 'shuffled(train[51200:])[:9000000]'
  assert config.checkpoint.best == 'validation/accuracy'
  # The miniature keeps the proportion of 9 to 300 million images.
  assert _mini(node).data.train_split == 'shuffled(train[:48000])[:1440]'


def test_options_are_adapted_to_the_scale():
  options = (('schedule.peak', 2e-4), ('optimizer.weight_decay', 0.01))
  node = Pretraining('ViT-L/16', epochs=7, options=options, label='lower')
  config = _paper(node)
  assert (config.schedule.peak, config.optimizer.weight_decay) == (2e-4, 0.01)
  mini, default = _mini(node), _mini(Pretraining('ViT-L/16', epochs=7))
  # As in the paper: half the model's default rate, and a tenth of its decay.
  assert mini.schedule.peak == pytest.approx(default.schedule.peak / 2)
  assert mini.optimizer.weight_decay == pytest.approx(0.003)
  assert default.optimizer.weight_decay == pytest.approx(0.03)
  shape = {'depth': 8, 'width': 1024, 'mlp_dim': 2048, 'heads': 16}
  node = Pretraining(
    'ViT-L/32',
    options=tuple((f'model.{key}', value) for key, value in shape.items()),
    few_shot='several',
    epochs=7,
  )
  for config, evaluation, expected in (
    (_paper(node), 'few_shot_uc_merced', (8, 1024, 2048, 16)),
    (_mini(node), 'few_shot_pets', (2, 128, 256, 4)),
  ):
    assert tuple(config.model[key] for key in shape) == expected
    assert evaluation in config.evals


def test_a_transfer_starts_from_its_pretraining():
  node = Transfer(Pretraining('ViT-B/16', epochs=7), CIFAR10)
  study = reproduce.at_paper_scale(node, {})
  weights = 'run:ViT-B_16,JFT-300M,7-epochs/run=pretraining'
  finals = study.finals_of(study.candidates[0])
  for run in (*study.candidates, *finals):
    assert run.overrides['init.checkpoint'] == weights
  assert _seeds(finals) == [0, 1, 2]
  assert not any('real' in run.config for run in finals)
  assert _seeds(reproduce.in_miniature(node).finals_of(None)) == [0]
  # BiT's own setup has its own resolution.
  node = Transfer(Pretraining('BiT-R50x1', epochs=7), CIFAR10)
  *table4, bit = reproduce.at_paper_scale(node, {}).candidates
  assert reading.read_config(bit).image_size == (128, 128)
  assert {reading.read_config(run).image_size for run in table4} == {(384, 384)}


def test_imagenet_is_tested_on_real_labels_too():
  start = Pretraining('ViT-H/14', epochs=14)
  study = reproduce.at_paper_scale(Transfer(start, IMAGENET, 518), {})
  [final, *_] = study.finals_of(study.candidates[0])
  config = reading.read_config(final)
  assert {*config.evals} == {'real', 'test'}
  assert (config.image_size, config.polyak.decay) == ((518, 518), 0.9999)


def test_vtab_tasks_are_found_by_their_names():
  titles = {task.title: task.name for task in vtab_tasks.TASKS.values()}
  assert titles == reproduce.VTAB
  node = Vtab(LARGE, 'dSpr-Loc')
  runs = reproduce.at_paper_scale(node, {}).finals_of(None)
  assert len(runs) == 3
  assert reading.read_config(runs[0]).data.dataset == 'vtab:dsprites_location'
  assert _mini(node).data.dataset == 'shapes:position'
  assert reproduce.in_miniature(Vtab(LARGE, 'Camelyon')) is None


def test_scenes_are_rendered_once():
  for node in (LARGE, Transfer(LARGE, PETS), Vtab(LARGE, 'SVHN')):
    run = _run(reproduce.in_miniature(node))
    assert run.overrides['data.data_dir'] == 'sweep:scenes'
  # TFDS reads its data from the folder in this key, so it stays unset.
  run = _run(reproduce.in_miniature(LARGE, 'tfds:cifar10'))
  assert 'data.data_dir' not in run.overrides


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('table5,data=folder:/a', 'data=folder:/a does not go with scale=paper'),
    ('table5,scale=mini,jft=folder:/a', 'jft=.* does not go with scale=mini'),
    *(('table5,seeds=many', 'seeds'), ('table5,scale=midi', 'photographs')),
    ('table5,scale=small', "scale='small' is unknown.*'paper', 'mini'"),
  ],
)
def test_invalid_arguments_are_refused(argument, message):
  with pytest.raises(ValueError, match=message):
    reproduce.get_sweep(argument)


def test_further_pretrainings_are_fine_tuned_like_the_first():
  node = Transfer(Pretraining('BiT-R50x1', epochs=7, seed=1), PETS)
  run = _run(reproduce.in_miniature(node))
  assert run.overrides['init.checkpoint'] == (
    'run:BiT-R50x1,JFT-300M,7-epochs,seed-1/run=pretraining'
  )
  # Runs that share a seed of fine-tuning are not independent.
  assert run.overrides['seed'] == 1
  study = reproduce.at_paper_scale(Vtab(node.pretraining, 'Pets'), {})
  assert _seeds(study.finals_of(None)) == [3, 4, 5]
  study = reproduce.at_paper_scale(node, {})
  assert _seeds(study.finals_of(study.candidates[0])) == [3, 4, 5]


def test_a_sweep_has_the_seeds_that_claims_need():
  def names(argument):
    return [s.name for s in reproduce.get_sweep(argument).studies]

  hybrid = 'R50+ViT-L/16, JFT-300M, 14 epochs'
  # At the paper's scale there is one of each by default.
  assert names('figure11') == names('figure11,seeds=1') == [LARGE.name, hybrid]
  for scale in ('paper', 'mini'):
    assert names(f'figure11,scale={scale},seeds=2') == [
      *(LARGE.name, f'{LARGE.name}, seed 1', hybrid, f'{hybrid}, seed 1')
    ]


def test_confirming_runs_have_other_seeds():
  argument = 'figure11,scale=mini,seeds=2'
  for first in (0, 1000):
    sweep = reproduce.get_sweep(f'{argument},first_seed={first}')
    seeds = _seeds(run for study in sweep.studies for run in study.all_runs())
    assert seeds == [first, first + 1] * 2
