"""Guards: a plan's figures that need neither devices nor data."""

import pytest

from vit_jax import config as config_lib
from vit_jax.configs import finetune, pretrain, quickstart
from vit_jax.plan import analysis


def _analyse(config):
  return analysis.analyse(analysis.resolve(config, 'tpu'))


def _pretraining(argument):
  config = pretrain.get_config(argument)
  config.model.scan = True  # One block is traced for all.
  return config


def test_l_16_on_jft():
  found = _analyse(_pretraining('ViT-L/16,jft300m,epochs=14'))
  assert found['params'] == found['trained_params'] == 323_099_507
  assert found['tokens'] == 14 * 14 + 1
  # 303e6 x 14 / 4096 steps, and the paper's exaFLOPs.
  assert found['total_steps'] == 1_035_644
  assert found['epochs'] == pytest.approx(14, rel=1e-5)
  assert found['total_exaflops'] == pytest.approx(1567, rel=2e-3)
  assert found['paper_core_days'] == 680


@pytest.mark.parametrize(
  'argument, days',
  [
    ('ViT-H/14,jft300m', 2500),
    ('ViT-L/16,imagenet21k', 230),
  ],
)
def test_the_papers_core_days(argument, days):
  assert _analyse(_pretraining(argument))['paper_core_days'] == days


def test_another_run_is_not_compared_with_the_paper():
  config = _pretraining('ViT-L/16,jft300m,epochs=14')
  config.model.pooling = 'gap'
  assert _analyse(config)['paper_core_days'] is None


def test_a_linear_probe_saves_the_backward_pass():
  config = finetune.get_config('ViT-B/16,cifar10,tune=head')
  config.model.depth = 2
  found = _analyse(config)
  assert found['trained_params'] == 768 * 10 + 10
  assert found['backward_gmacs'] == 768 * 10 / 1e9
  account = analysis.account(analysis.resolve(config, 'tpu'))
  assert account.activation_bytes == 768 * 4
  images = 512 * 10_000
  assert found['total_exaflops'] == pytest.approx(
    2 * (account.macs + account.backward_macs) * images / 1e18
  )


@pytest.mark.parametrize(
  'teacher, model',
  [
    ('augreg/Ti_16', ''),  # A released name, without its file.
    (None, 'ViT-Ti/16'),  # A recipe that leaves the place of the file open.
  ],
)
def test_a_teacher_costs_its_forward_pass(teacher, model):
  config = pretrain.get_config('ViT-S/32,imagenet2012')
  config.model.update(scan=True, depth=1)
  alone = _analyse(config)
  config.distill.update(teacher=teacher, model=model, image_size=(96, 64))
  found = _analyse(config)
  tiny = pretrain.get_config('ViT-Ti/16,imagenet2012')
  tiny.image_size = (96, 64)
  tiny.model.update(scan=True, representation_size=0)
  forward = _analyse(tiny)['forward_gmacs']
  assert found['teacher_gmacs'] == forward
  more = found['total_exaflops'] - alone['total_exaflops']
  images = 4096 * alone['total_steps']
  assert more == pytest.approx(2 * forward * images / 1e9, rel=1e-3)
  assert found['params'] == alone['params']


def test_a_teacher_that_is_not_known():
  config = pretrain.get_config('ViT-S/32,imagenet2012')
  for teacher in ('nowhere.npz', None):
    config.distill.teacher = teacher
    with pytest.raises(ValueError, match=r'distill\.model'):
      _analyse(config)


def test_additions_train_beside_the_head():
  config = finetune.get_config('ViT-B/16,cifar10,tune=lora')
  config.model.depth = 2
  found = _analyse(config)
  # Two blocks of four kernels with 768 inputs and outputs, of rank 8.
  assert found['trained_params'] == 2 * 4 * 2 * 768 * 8 + 768 * 10 + 10
  # The parameters are those of the plain model.
  config.lora.rank = 0
  config.tuning.train = ''
  assert _analyse(config)['params'] == found['params']
  forward, backward = found['forward_gmacs'], found['backward_gmacs']
  assert forward < backward < 2 * forward


@pytest.mark.parametrize(
  'argument, classes',
  [
    ('ViT-B/16,imagenet2012', 1000),
    ('ViT-B/16,cifar100', 100),
    ('ViT-B/16,pets,train=selection', 37),
    ('ViT-B/16,flowers', 102),
  ],
)
def test_fine_tuning_is_planned_without_data_or_weights(argument, classes):
  config = finetune.get_config(argument)
  assert analysis.resolve(config, 'tpu').num_classes == classes


def test_built_in_data_sets_are_read():
  resolved = analysis.resolve(quickstart.pretrain(), 'cpu')
  assert resolved.num_classes == 5
  assert resolved.data.num_examples > 500
  assert resolved.model.dtype == 'float32'
  assert (
    analysis.resolve(quickstart.pretrain(), 'gpu').model.dtype == 'bfloat16'
  )


def test_missing_data_need_explicit_counts():
  config = pretrain.get_config('ViT-B/16,folder:/nowhere')
  with pytest.raises(ValueError, match='there is no folder /nowhere'):
    analysis.resolve(config, 'tpu')
  config.num_classes = 10
  config.data.num_examples = 40_960
  resolved = analysis.resolve(config, 'tpu')
  # The default batch is at most a 256th of the examples: 128.
  assert (resolved.num_classes, resolved.total_steps) == (10, 96_000)
  config.data.dataset = None
  config.num_classes = 0
  with pytest.raises(ValueError, match='Set num_classes, and'):
    analysis.resolve(config, 'tpu')


def test_subsets():
  config = pretrain.get_config('ViT-B/16,digits,eval=test,subset=10%')
  resolved = analysis.resolve(config, 'tpu')
  assert resolved.total_steps == 300 * 1437 // 16
  assert resolved.data.num_examples == 144
  config.num_classes, config.data.num_examples = 10, 144
  assert analysis.resolve(config, 'tpu').total_steps == 300 * 1437 // 16
  config = pretrain.get_config('ViT-B/16,jft300m,subset=9000000')
  resolved = analysis.resolve(config, 'tpu')
  assert resolved.total_steps == 7 * 303_000_000 // 4096
  config = pretrain.get_config('ViT-B/16,imagenet2012,subset=10%')
  # The epoch excludes the examples that are held out for early stopping.
  resolved = analysis.resolve(config, 'tpu')
  assert resolved.total_steps == 300 * 1_268_355 // 4096
  config = pretrain.get_config('ViT-B/16,folder:/no,eval=test,subset=10%')
  with pytest.raises(ValueError, match=r'data\.examples_per_epoch or total_st'):
    analysis.resolve(config, 'tpu')
  config.num_classes = 2
  config.total_steps, config.epochs = 10, 0.0
  with pytest.raises(ValueError, match=r'Also set data\.batch_size'):
    analysis.resolve(config, 'tpu')
  config.data.batch_size = 64
  assert analysis.resolve(config, 'tpu').total_steps == 10


def test_a_masked_autoencoder_encodes_a_quarter():
  config = _pretraining('ViT-B/16,imagenet21k')
  config.model.representation_size, config.model.depth = None, 2
  config.loss = config_lib.mae(decoder_depth=2)
  found = _analyse(config)

  def macs(width, depth, tokens):  # Of blocks.
    return depth * tokens * (12 * width**2 + 2 * tokens * width)

  expected = 196 * 768**2 + macs(768, 2, 49 + 1)
  expected += 50 * 768 * 512 + macs(512, 2, 197) + 196 * 512 * 768
  assert found['forward_gmacs'] * 1e9 == expected


def test_patches_of_drawn_sizes_cost_their_mean():
  config = pretrain.get_config('ViT-S/32,imagenet2012')
  config.model.update(scan=True, depth=1, kernel_size=(32, 32))
  config.model.position_grid = (7, 7)
  costs = []
  for side in (16, 28):
    config.model.patch_size = (side, side)
    costs.append(_analyse(config)['total_exaflops'])
  config.flexi.patch_sizes = (16, 28)
  mean = sum(costs) / 2
  assert _analyse(config)['total_exaflops'] == pytest.approx(mean)
