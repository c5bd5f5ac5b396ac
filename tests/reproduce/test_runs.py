"""Guards: each of the paper's runs has the right config at both scales."""

import pytest

from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import numbers
from vit_jax.paper.runs import Pretraining, Transfer, Vtab
from vit_jax.sweep import reading
from vit_jax.vtab import tasks as vtab_tasks

JFT = numbers.JFT


def _run(study):
  [run] = study.finals_of(None)
  return run


def _paper(node, specs=None):
  return reading.read_config(_run(reproduce.at_paper_scale(node, specs or {})))


def _mini(node, data=''):
  return reading.read_config(_run(reproduce.in_miniature(node, data)))


def test_a_pretraining():
  run = _run(reproduce.at_paper_scale(Pretraining('ViT-L/16', JFT, 14), {}))
  assert run.name == 'ViT-L_16,JFT-300M,14-epochs/run=pretraining'
  assert run.config == (
    'configs/pretrain.py:ViT-L/16,jft300m,few_shot=imagenet2012,epochs=14'
  )
  assert run.overrides == {'seed': 0}
  mini = _mini(Pretraining('ViT-L/16', JFT, 14, seed=2))
  assert (mini.total_steps, mini.seed) == (800, 2)


def test_miniatures_are_evaluated_often_where_figures_need_it():
  def every(node):
    evals = _mini(node).evals
    assert evals.validation.every == evals.few_shot.every
    return evals.few_shot.every

  # Figure 4 needs them for early stopping, and Figure 9 for its curves.
  of_parts = Pretraining('ViT-B/32', JFT, 7, images=9_000_000, seed=2)
  assert every(of_parts) == 80
  assert every(Pretraining('ViT-B/16', JFT, 28, seed=1)) == 320
  assert every(Pretraining('ViT-H/14', JFT, 14)) == 800
  assert every(Pretraining('BiT-R50x1', JFT, 7, optimizer='sgd')) == 400


@pytest.mark.parametrize('objective', ['supervised', 'masked_patch'])
def test_the_user_may_give_the_splits_of_private_data(objective):
  node = Pretraining('ViT-B/16', JFT, 14, objective=objective)
  config = _paper(node, {JFT: 'folder:/jft@all[1%:]@all[:1%]'})
  assert config.data.dataset == 'folder:/jft'
  assert config.data.train_split == 'all[1%:]'
  assert config.evals.validation.split == 'all[:1%]'
  with pytest.raises(ValueError, match='expected SPEC, or SPEC@TRAIN@HELD_OUT'):
    reproduce.at_paper_scale(node, {JFT: 'folder:/jft@all'})


def test_subsets_of_the_data():
  node = Pretraining('ViT-B/32', JFT, 7, images=9_000_000)
  config = _paper(node)
  assert config.data.train_split == 'shuffled(train[51200:])[:9000000]'
  assert config.checkpoint.best == 'validation/accuracy'
  # The miniature keeps the proportion of 9 to 300 million images.
  assert _mini(node).data.train_split == 'shuffled(train[:48000])[:1440]'


def test_options_are_adapted_to_the_scale():
  node = Pretraining(
    'ViT-L/16',
    JFT,
    7,
    options=(('schedule.peak', 2e-4), ('optimizer.weight_decay', 0.01)),
    label='LR 2e-4, WD 0.01',
  )
  config = _paper(node)
  assert (config.schedule.peak, config.optimizer.weight_decay) == (2e-4, 0.01)
  mini = _mini(node)
  # As in the paper: half the model's default rate, and a tenth of its decay.
  default = _mini(Pretraining('ViT-L/16', JFT, 7))
  assert mini.schedule.peak == pytest.approx(default.schedule.peak / 2)
  assert mini.optimizer.weight_decay == pytest.approx(0.003)
  assert default.optimizer.weight_decay == pytest.approx(0.03)


def test_shapes_are_scaled_down():
  options = (
    ('model.depth', 8),
    ('model.width', 1024),
    ('model.mlp_dim', 2048),
    ('model.heads', 16),
  )
  node = Pretraining(
    'ViT-L/32', JFT, 7, options=options, label='depth 8', few_shot='several'
  )
  model = _paper(node).model
  assert (model.depth, model.width, model.heads) == (8, 1024, 16)
  assert 'few_shot_uc_merced' in _paper(node).evals
  model = _mini(node).model
  assert (model.depth, model.width, model.mlp_dim, model.heads) == (
    *(2, 128, 256, 4),
  )
  assert 'few_shot_pets' in _mini(node).evals


def test_masked_patches():
  node = Pretraining('ViT-B/16', JFT, 14, objective='masked_patch')
  config = _paper(node)
  assert (config.loss.name, config.total_steps) == ('masked_patch', 1_000_000)
  assert _mini(node).loss.name == 'masked_patch'


def test_sgd():
  node = Pretraining('BiT-R50x1', JFT, 7, 'sgd')
  assert _paper(node).optimizer.name == _mini(node).optimizer.name == 'sgd'


def test_a_transfer_starts_from_its_pretraining():
  node = Transfer(Pretraining('ViT-B/16', JFT, 7), numbers.CIFAR10)
  study = reproduce.at_paper_scale(node, {})
  weights = 'run:ViT-B_16,JFT-300M,7-epochs/run=pretraining'
  finals = study.finals_of(study.candidates[0])
  for run in (*study.candidates, *finals):
    assert run.overrides['init.checkpoint'] == weights
  assert [run.overrides['seed'] for run in finals] == [0, 1, 2]
  assert not any('real' in run.config for run in finals)
  mini = reproduce.in_miniature(node)
  assert [run.overrides['seed'] for run in mini.finals_of(None)] == [0]


def test_imagenet_is_tested_on_real_labels_too():
  start = Pretraining('ViT-H/14', JFT, 14)
  study = reproduce.at_paper_scale(Transfer(start, numbers.IMAGENET, 518), {})
  [final, *_] = study.finals_of(study.candidates[0])
  config = reading.read_config(final)
  assert {*config.evals} == {'real', 'test'}
  assert config.image_size == (518, 518)
  assert config.polyak.decay == 0.9999


def test_the_bit_setup_keeps_its_resolution():
  node = Transfer(Pretraining('BiT-R50x1', JFT, 7), numbers.CIFAR10)
  study = reproduce.at_paper_scale(node, {})
  *table4, bit = study.candidates
  assert reading.read_config(bit).image_size == (128, 128)
  assert {reading.read_config(run).image_size for run in table4} == {(384, 384)}


def test_vtab_tasks_are_found_by_their_names():
  titles = {task.title: task.name for task in vtab_tasks.TASKS.values()}
  assert titles == reproduce.VTAB
  start = Pretraining('ViT-L/16', JFT, 14)
  node = Vtab(start, 'dSpr-Loc')
  runs = reproduce.at_paper_scale(node, {}).finals_of(None)
  assert len(runs) == 3
  assert reading.read_config(runs[0]).data.dataset == 'vtab:dsprites_location'
  assert _mini(node).data.dataset == 'shapes:position'
  assert reproduce.in_miniature(Vtab(start, 'Camelyon')) is None


def test_scenes_are_rendered_once():
  start = Pretraining('ViT-L/16', JFT, 14)
  for node in (start, Transfer(start, numbers.PETS), Vtab(start, 'SVHN')):
    for run in reproduce.in_miniature(node).finals_of(None):
      assert run.overrides['data.data_dir'] == 'sweep:scenes'
  # TFDS reads its data from the folder in this key, so it stays unset.
  for run in reproduce.in_miniature(start, 'tfds:cifar10').finals_of(None):
    assert 'data.data_dir' not in run.overrides


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('table5,data=folder:/a', 'data=folder:/a is only for scale=mini'),
    ('table5,scale=mini,jft=folder:/a', 'scale=mini has other data, so leave'),
    ('table5,seeds=many', 'seeds'),
    ('table5,scale=midi', 'trains on your photographs'),
    ('table5,scale=small', "scale='small' is unknown.*'paper', 'mini'"),
  ],
)
def test_invalid_arguments_are_refused(argument, message):
  with pytest.raises(ValueError, match=message):
    reproduce.get_sweep(argument)


def test_further_pretrainings_are_fine_tuned_like_the_first():
  node = Transfer(Pretraining('BiT-R50x1', JFT, 7, seed=1), numbers.PETS)
  [run] = reproduce.in_miniature(node).finals_of(None)
  assert run.overrides['init.checkpoint'] == (
    'run:BiT-R50x1,JFT-300M,7-epochs,seed-1/run=pretraining'
  )
  # Runs that share a seed of fine-tuning are not independent.
  assert run.overrides['seed'] == 1
  study = reproduce.at_paper_scale(Vtab(node.pretraining, 'Pets'), {})
  seeds = [run.overrides['seed'] for run in study.finals_of(None)]
  assert seeds == [3, 4, 5]
  study = reproduce.at_paper_scale(node, {})
  assert len(study.finals_of(study.candidates[0])) == 3


def test_a_sweep_has_the_seeds_that_claims_need():
  def names(argument):
    return [s.name for s in reproduce.get_sweep(argument).studies]

  start = 'ViT-L/16, JFT-300M, 14 epochs'
  hybrid = 'R50+ViT-L/16, JFT-300M, 14 epochs'
  # At the paper's scale there is one of each by default.
  assert names('figure11') == names('figure11,seeds=1') == [start, hybrid]
  for scale in ('paper', 'mini'):
    assert names(f'figure11,scale={scale},seeds=2') == [
      *(start, f'{start}, seed 1', hybrid, f'{hybrid}, seed 1')
    ]
