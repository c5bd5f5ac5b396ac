"""Guards: each config key has one meaning, and --print_config lists it."""

import inspect
import re

import ml_collections
import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax.config import listing, meanings, sections
from vit_jax.configs import pretrain, quickstart
from vit_jax.training import optimizer


def _section(function):
  needed = [
    p.name
    for p in inspect.signature(function).parameters.values()
    if p.default is p.empty and p.kind is not p.VAR_KEYWORD
  ]
  return function(**{name: '' for name in needed if name != 'peak'})


def _sections():
  functions = dict(inspect.getmembers(sections, inspect.isfunction))
  made = {
    name: _section(function)
    for name, function in functions.items()
    if name != 'schedule'
    and function.__module__ == sections.__name__
    and function.__annotations__['return'] is ml_collections.ConfigDict
  }
  for name, function in optimizer.SCHEDULES.items():
    others = set(inspect.signature(function).parameters) - {'total_steps'}
    made[f'schedule {name}'] = sections.schedule(
      name, **dict.fromkeys(others, 0)
    )
  return made


def test_every_key_has_a_meaning():
  entries = listing.entries(config_lib.default())
  assert len(entries) > 80
  assert [entry.path for entry in entries if not entry.meaning] == []
  made = _sections() | {'sigmoid': dict(sections.softmax(), name='sigmoid')}
  assert {'adam', 'evaluation', 'few_shot', 'schedule staircase'} <= set(made)
  assert [
    (name, key)
    for name, section in made.items()
    for key in section
    if not meanings.find(f'section.{key}', section)
  ] == []


def test_meanings_are_those_of_the_source():
  found = {
    entry.path: entry.meaning for entry in listing.entries(tiny_config())
  }
  assert found['seed'] == (
    'The seed of initial parameters, shuffling, augmentation and dropout.'
  )
  # A comment behind a key holds for that key alone.
  assert found['data.max_labels'] == (
    'The most labels per image; above 1: multi-label.'
  )
  # A comment above a key holds for the next keys, too.
  assert found['total_steps'] == found['epochs']
  assert found['epochs'].startswith("The run's length. A config sets exactly")
  assert found['polyak.decay'].startswith('A moving average of the weights,')
  # From the docstring, and from the comments of the function.
  assert found['optimizer.clip_norm'].endswith(' norm; 0 clips none.')
  assert found['optimizer.eps'] == 'Added to the denominator.'
  assert found['optimizer.name'].startswith("Adam with the paper's betas")
  config = tiny_config()
  config.evals.a = config_lib.evaluation('test')
  config.evals.b = config_lib.masked_patch_evaluation('test')
  config.loss = config_lib.masked_patch()
  for key, start in (
    ('evals.a.kind', 'An entry of `config.evals`: accuracy and loss'),
    ('evals.a.split', "A split of the training data's source"),
    ('evals.b.kind', 'An entry of `config.evals`: masked patch prediction'),
    ('loss.other_share', 'The share of corrupted patches that get the mask'),
  ):
    section = config[key.rpartition('.')[0]]
    assert meanings.find(key, section).startswith(start), key


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
