"""Guards: each config key has one meaning, and --print_config lists it."""

import inspect
import re

import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax.config import listing, optimizers, sections
from vit_jax.configs import quickstart


def test_every_key_has_one_meaning():
  config = config_lib.default()
  config.loss = config_lib.masked_patch()
  for kind, keys in sections.EVALUATIONS.items():
    more = {'train_split': 'train'} if 'train_split' in keys else {}
    config.evals[kind] = config_lib.evaluation('test', kind, **more)
  entries = listing.entries(config)
  assert [entry.path for entry in entries if not entry.meaning] == []
  found = {entry.path: entry.meaning for entry in entries}
  assert found['optimizer.name'].startswith('Adam with weight decay')
  assert found['evals.masked_patch.kind'].startswith('Masked patch prediction')


def test_the_keys_of_an_optimizer_are_the_arguments_of_optax():
  config = config_lib.default()
  for name, function in optimizers.OPTIMIZERS.items():
    config.optimizer = config_lib.optimizer(name)
    entries = {e.path: e for e in listing.entries(config)}
    assert f'optimizer.{name}.learning_rate' not in entries
    for key, parameter in inspect.signature(function).parameters.items():
      entry = entries.pop(f'optimizer.{key}', None)
      if entry is None:  # A schedule, or parts of the parameters.
        assert re.fullmatch('.*(learning_rate|mask|numbers)', key)
        continue
      kept = entry.value == parameter.default
      assert kept or ('dtype' in key and entry.value == 'float32')
      # Optax explains it, in several words, without marks.
      assert re.fullmatch(r'[A-Z][^`]* [^`]*', entry.meaning)
    own = {p for p in entries if p.startswith('optimizer.')}
    more = {'optimizer.weight_decay'} if name == 'sgd' else set()
    assert own == more | {
      f'optimizer.{k}' for k in ('name', 'clip_norm', 'weight_decay_params')
    }
  assert entries['optimizer.weight_decay'].meaning


def test_the_list_says_who_set_a_value():
  config = tiny_config({'epochs': 0, 'total_steps': 400})
  config.schedule = config_lib.schedule('cosine', peak=-1, warmup_steps=-1)
  config.evals.test = config_lib.evaluation('test', every=-1)
  config.seed = 7
  entries = {
    entry.path: (entry.value, entry.source)
    for entry in listing.entries(config, {'seed', 'schedule.warmup_steps'})
  }
  expected = {
    'seed': (7, 'command line'),
    'channels': (1, 'config file'),
    'checkpoint.keep': (2, 'default'),
    'schedule.warmup_steps': (40, 'filled in; command line: -1'),
    'schedule.peak': (
      pytest.approx(3e-3 * (16 / 4096) ** 0.5),
      'filled in; config file: -1.0',
    ),
    'evals.test.every': (40, 'filled in; config file: -1'),
    'evals.test.split': ('test', 'config file'),
    'num_classes': (None, 'default'),  # Data decide it.
  }
  assert {key: entries[key] for key in expected} == expected
  assert config.schedule.warmup_steps == -1


def test_the_list_of_a_config_with_stages():
  config = quickstart.get_config()
  text = listing.text(config, {'stages.scratch.seed'}, 'seed')
  assert text.splitlines()[3:6] == [
    'stages.pretrain.seed = 0  [default]',
    'stages.finetune.seed = 0  [default]',
    'stages.scratch.seed = 0  [command line]',
  ]
  text = listing.text(config)
  assert re.match(r'(\d+) of \1 keys', text)
  assert '\nstages.*.checkpoint.keep = 2  [default]\n' in text
  # The file chose the optimizer, which has this value by default.
  assert "\nstages.finetune.optimizer.name = 'sgd'  [config file]\n" in text
  assert '\nstages.finetune.optimizer.weight_decay = 0.0  [default]\n' in text
  assert max(map(len, text.splitlines())) <= 80
  with pytest.raises(ValueError, match="no key of this config has 'sede'"):
    listing.text(config, (), 'sede')
