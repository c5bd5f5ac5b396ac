"""Guards: each config key has one meaning, and --print_config lists it."""

import inspect
import re

import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax.config import listing, sections
from vit_jax.configs import pretrain, quickstart
from vit_jax.training import optimizer


def test_every_key_has_one_meaning():
  config = config_lib.default()
  config.loss = config_lib.masked_patch()
  config.evals.a = config_lib.evaluation('test')
  config.evals.b = config_lib.masked_patch_evaluation('test')
  config.evals.c = config_lib.few_shot('train', 'test')
  entries = listing.entries(config)
  assert len(entries) > 100
  assert [entry.path for entry in entries if not entry.meaning] == []
  found = {entry.path: entry.meaning for entry in entries}
  assert found['optimizer.name'].startswith("Adam with the paper's betas")
  assert found['loss.other_share'].startswith('The share that get another')
  assert found['evals.a.kind'] == 'Accuracy and loss on a split.'
  assert found['evals.b.kind'] == 'Masked patch prediction on a split.'
  assert 'data/ops' in found['evals.c.preprocess']


@pytest.mark.parametrize(
  'name, function',
  [*optimizer.OPTIMIZERS.items(), *optimizer.SCHEDULES.items()],
)
def test_the_table_has_the_keys_of_each_function(name, function):
  parameters = inspect.signature(function).parameters.values()
  keys = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
  keys -= {'total_steps'}
  assert keys == sections.SECTIONS[name].keys() - {'name', 'clip_norm'}


def test_an_unknown_key_of_an_evaluation_is_refused():
  with pytest.raises(TypeError, match='evry'):
    config_lib.evaluation('test', evry=3)


def test_the_list_says_who_set_a_value():
  config = tiny_config({'epochs': 0, 'total_steps': 400})
  config.schedule = config_lib.schedule('cosine', peak=-1, warmup_steps=-1)
  config.evals.test = config_lib.evaluation('test', every=-1)
  config.seed = 7
  entries = {
    entry.path: (entry.value, entry.source)
    for entry in listing.entries(config, {'seed', 'schedule.warmup_steps'})
  }
  assert entries['seed'] == (7, 'command line')
  assert entries['channels'] == (1, 'config file')
  assert entries['checkpoint.keep'] == (2, 'default')
  assert entries['schedule.warmup_steps'] == (
    *(40, 'filled in; command line: -1'),
  )
  assert entries['schedule.peak'] == (
    pytest.approx(3e-3 * (16 / 4096) ** 0.5),
    'filled in; config file: -1.0',
  )
  assert entries['evals.test.every'] == (40, 'filled in; config file: -1')
  assert entries['evals.test.split'] == ('test', 'config file')
  assert entries['evals.test.batch_size'] == (0, 'default')
  # Data decide the number of classes.
  assert entries['num_classes'] == (None, 'default')
  assert config.schedule.warmup_steps == -1


def test_the_list_of_a_config_with_stages():
  config = quickstart.get_config()
  text = listing.text(config, {'stages.scratch.seed'}, 'seed')
  assert text.splitlines()[2:] == [
    '',
    'stages.pretrain.seed = 0  [default]',
    'stages.finetune.seed = 0  [default]',
    'stages.scratch.seed = 0  [command line]',
    '    The seed of initial parameters, shuffling, augmentation and dropout.',
  ]
  text = listing.text(config)
  assert re.match(r'(\d+) of \1 keys', text)
  assert '\norder = (' in text
  assert '\nstages.*.checkpoint.keep = 2  [default]\n' in text
  # The file chose the optimizer, which has this value by default.
  assert "\nstages.finetune.optimizer.name = 'sgd'  [config file]\n" in text
  assert '\nstages.finetune.optimizer.momentum = 0.9  [default]\n' in text
  assert max(map(len, text.splitlines())) <= 80
  with pytest.raises(ValueError, match="no key of this config has 'sede'"):
    listing.text(config, (), 'sede')


def test_epochs_become_steps_if_the_config_states_the_size_of_the_data():
  config = pretrain.get_config('ViT-B/16,imagenet2012')
  entries = {entry.path: entry for entry in listing.entries(config)}
  steps = entries['total_steps']
  given = int(config.epochs * config.data.num_examples / config.data.batch_size)
  assert (steps.value, steps.source) == (given, 'filled in; default: unset')
