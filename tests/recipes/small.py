"""The recipes on tiny models and images."""

import importlib

from tests import tiny_run

# Recipe -> its argument, without the model's name.
RECIPES = {
  'augreg': '',
  'plain': '',
  'deit': '',
  'deit3': '',
  'deit3_21k': '',
  'vit5': '',
  'sam': '',
  'scaling': '',
  'mae': '',
  'distill': ',kind=token,teacher=t',
  'flexi': ',teacher=t',
}


def config_of(recipe):
  """Returns the config of NAME:ARGUMENT."""
  name, _, argument = recipe.partition(':')
  module = importlib.import_module(f'vit_jax.configs.recipes.{name}')
  return module.get_config(argument)


def shrunk(config, steps=4):
  """Makes a recipe's run small enough for a test; the recipe stays."""
  config.data.dataset, config.data.train_split = 'shapes:shape', 'train[:48]'
  config.data.batch_size, config.image_size = 8, (16, 16)
  config.data.num_examples = config.data.examples_per_epoch = 0
  config.num_classes = 0
  config.data.label_key = 'label'
  config.epochs, config.total_steps = 0.0, steps
  config.schedule.warmup_steps = 1
  config.schedule.warmup_epochs = 0.0
  if config.schedule.name == 'rsqrt':
    config.schedule.cooldown_steps = 1
  config.model.update(tiny_run.SIZES)
  if config.loss.name == 'mae':
    config.loss.update(decoder_depth=1, decoder_width=16, decoder_heads=2)
  for name in list(config.evals):
    del config.evals[name]
  config.checkpoint.best = ''
  config.log.every, config.log.tensorboard = 1, False
  config.mesh.data, config.mesh.fsdp = 1, 1
  return config


def run(name, teacher=None, steps=4):
  """Returns a recipe's small run; `teacher` is a run's directory."""
  config = shrunk(config_of(f'{name}:Ti/4{RECIPES[name]}'), steps)
  if config.distill.teacher != '':
    config.distill.teacher = str(teacher)
    config.distill.image_size = ()
  if name == 'flexi':
    config.init.checkpoint = str(teacher)
    config.model.kernel_size, config.model.position_grid = (8, 8), (2, 2)
    config.flexi.patch_sizes = (4, 8)
  return config
