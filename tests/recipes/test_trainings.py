"""Guards: a recipe trains a small model as its authors' loop does in PyTorch.

Fifty steps on the same batches, blends, masks and patch sizes, at the rates of
our schedule. Nothing is dropped at random. Optimizers, losses and groups of
parameters are timm's and PyTorch's, with the published values.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

timm = pytest.importorskip('timm')
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from timm import optim  # noqa: E402
from timm.data import mixup  # noqa: E402
from timm.loss import SoftTargetCrossEntropy  # noqa: E402
from torch.nn import functional, utils  # noqa: E402

from tests import tiny_step  # noqa: E402
from tests.recipes import peers, small  # noqa: E402
from vit_jax import config as config_lib  # noqa: E402
from vit_jax.losses import corruption, flexi  # noqa: E402
from vit_jax.training.program import Program  # noqa: E402

pytestmark = pytest.mark.hf

STEPS, BATCH, CLASSES = 50, 8, 5
SIDES = (4, 8)  # Of the patches of FlexiViT.
TEACHER = 'ViT-Ti/4:width=16,depth=1,heads=2,mlp_dim=32'


# What the peers see -----------------------------------------------------------


def _images(batch):
  """Returns the blended images of a batch, [B, C, H, W]."""
  own = batch['image'] / np.float32(127.5) - 1
  if 'share' in batch:
    other = batch['partner_image'] / np.float32(127.5) - 1
    share = batch.get('outside', batch['share'])[0]
    blend = share * own + (1 - share) * other
    top, left, bottom, right = batch.get('box', np.zeros((1, 4), int))[0]
    blend[:, top:bottom, left:right] = other[:, top:bottom, left:right]
    own = blend
  return torch.tensor(own.transpose(0, 3, 1, 2))


def _targets(batch, smoothing=0.0):
  """Returns timm's targets of a batch, [B, classes]."""
  off = smoothing / CLASSES
  own, other = (
    mixup.one_hot(torch.tensor(labels), CLASSES, 1 - smoothing + off, off)
    for labels in (batch['label'], batch.get('partner_label', batch['label']))
  )
  share = float(batch.get('share', [1.0])[0])
  return share * own + (1 - share) * other


# Losses -----------------------------------------------------------------------


def _softmax(model, batch, smoothing=0.1):
  return SoftTargetCrossEntropy()(
    model(_images(batch)), _targets(batch, smoothing)
  )


def _binary(model, batch):
  targets = _targets(batch).gt(0.0).float()
  return torch.nn.BCEWithLogitsLoss()(model(_images(batch)), targets)


def _sigmoid(model, batch):
  logits, targets = model(_images(batch)), _targets(batch)
  loss = torch.nn.BCEWithLogitsLoss(reduction='sum')
  return loss(logits, targets) / BATCH


def _hard(model, batch):
  logits, distilled = model(_images(batch))
  loss = SoftTargetCrossEntropy()(logits, _targets(batch, 0.1))
  best = batch['teacher'].argmax(dim=1)
  return 0.5 * loss + 0.5 * functional.cross_entropy(distilled, best)


def _soft(model, batch):
  side = SIDES[batch[flexi.DRAWN][0]]
  student, teacher = (
    functional.log_softmax(x, dim=1)
    for x in (model(_images(batch), side), batch['teacher'])
  )
  return functional.kl_div(
    student, teacher, reduction='batchmean', log_target=True
  )


def _masked(model, batch):
  hidden = torch.tensor(batch['hidden']).float()
  return model(_images(batch), noise=hidden).loss  # They keep the least.


# The authors' settings --------------------------------------------------------


class Case(NamedTuple):
  """How the authors train.

  Attributes:
    optimizer: PyTorch's or timm's.
    decay: the weight decay.
    loss: of a model and a batch.
    build: makes the model, see `peers`.
    layer_decay: the ratio of the rates of two layers.
    clip: the largest norm of a gradient; 0: any.
    rounds: whether the first moment is kept in bfloat16.
    ascends: whether the gradient is that of GSAM.
    changes: keys that make our run smaller.
  """

  optimizer: Callable
  decay: float
  loss: Callable
  build: Callable = peers.vit
  layer_decay: float = 1.0
  clip: float = 0.0
  rounds: bool = False
  ascends: bool = False
  changes: tuple = ()


partial = functools.partial
ADAMW = partial(torch.optim.AdamW, betas=(0.9, 0.999), eps=1e-8)
LAMB = partial(optim.Lamb, eps=1e-8, max_grad_norm=None)
SCALED = partial(peers.vit, init_values=1e-4)
TANH = partial(peers.vit, act_layer='gelu_tanh')
MEAN = partial(TANH, class_token=False, global_pool='avg', fc_norm=False)
BIG_VISION = {'clip': 1.0, 'rounds': True}
CASES = {
  'deit:Ti/4': Case(ADAMW, 0.05, _softmax),
  'deit3:Ti/4': Case(LAMB, 0.05, _binary, SCALED),
  'deit3:Ti/4,stage=finetune': Case(ADAMW, 0.1, _softmax, SCALED),
  'deit3_21k:Ti/4': Case(LAMB, 0.02, _softmax, SCALED),
  'vit5:Ti/4': Case(LAMB, 0.05, _binary, peers.vit5),
  'mae:Ti/4': Case(
    *(partial(torch.optim.AdamW, betas=(0.9, 0.95)), 0.05, _masked, peers.mae),
    changes=tuple((f'loss.decoder_{k}', n) for k, n in peers.DECODER.items()),
  ),
  'mae:Ti/4,stage=finetune': Case(
    *(ADAMW, 0.05, _softmax, partial(peers.vit, global_pool='avg'), 0.65)
  ),
  'distill:Ti/4,teacher=t,kind=token': Case(ADAMW, 0.05, _hard),
  'sam:Ti/4': Case(ADAMW, 1 / 3, _sigmoid, MEAN, clip=1.0, ascends=True),
  'plain:Ti/4': Case(
    ADAMW, 0.1, partial(_softmax, smoothing=0.0), MEAN, **BIG_VISION
  ),
  'augreg:Ti/4': Case(ADAMW, 0.1, _sigmoid, TANH, **BIG_VISION),
  'flexi:Ti/4,teacher=t': Case(
    *(ADAMW, 0.1, _soft, partial(SCALED, kind=peers.Flexi)),
    changes=(('flexi.patch_sizes', SIDES), ('distill.image_size', ())),
    **BIG_VISION,
  ),
}


def _optimizer(case, model):
  """Returns the optimizer of timm's groups of parameters.

  Differs from the authors' code of MAE, which lets the class token and the
  mask's decay: our recipe does not.
  """
  names = getattr(model, 'no_weight_decay', lambda: ['*_token'])()
  options = dict(weight_decay=case.decay, no_weight_decay_list=names)
  groups = optim.param_groups_weight_decay
  if case.layer_decay != 1:
    groups = partial(
      optim.param_groups_layer_decay, layer_decay=case.layer_decay
    )
  return case.optimizer(groups(model, **options))


# The two loops ----------------------------------------------------------------


def _program(recipe):
  config = small.shrunk(small.config_of(recipe), STEPS)
  config.schedule.update(peak_batch=0, warmup_steps=5)
  config.model.update(dtype='float32', dropout_rate=0.0, stochastic_depth=0.0)
  config.model.mlp_dim = 48
  if config.distill.teacher:
    config.distill.model = TEACHER
  config.update_from_flattened_dict(dict(CASES[recipe].changes))
  config = config_lib.resolve(config, num_examples=48, num_classes=CLASSES)
  return Program(config, tiny_step.one_device())


def _batches(program):
  """Returns the batches of a run, and what a step makes of each."""
  rng, rows = np.random.default_rng(0), (STEPS, BATCH)
  arrays = {
    'image': rng.integers(0, 256, (*rows, peers.SIDE, peers.SIDE, 3), np.uint8),
    'label': rng.integers(0, CLASSES, rows, np.int32),
    'mask': np.ones(rows, bool),
    'unreadable': np.zeros(rows, bool),
  }
  plain = [{k: x[i] for k, x in arrays.items()} for i in range(STEPS)]
  prepare = program.objective.prepare_batch or (lambda batch, step: batch)

  @jax.jit
  def prepared(batch, step):
    batch = prepare(batch, step)
    if 'corruption_key' in batch:  # Three quarters of 16 patches are hidden.
      draw = corruption.Corruption(16, 12, 1.0, 0.0).draw
      batch['hidden'], _ = draw(batch['corruption_key'])
    return batch

  return plain, [
    jax.device_get(prepared(batch, step)) for step, batch in enumerate(plain)
  ]


def _ours(program, params, batches, teacher):
  state = program.init_state(jax.tree.map(jnp.asarray, params))
  losses = []
  for batch in batches:
    state, metrics = program.train_step(state, batch, *teacher)
    losses.append(float(metrics['loss']))
  return losses


def _ascend(params, loss, rho, alpha=0.6):
  """Makes gradients those of GSAM, Algorithm 1 of arXiv:2203.08065."""
  first = [p.grad.clone() for p in params]
  before = [p.detach().clone() for p in params]
  flat = torch.cat([g.flatten() for g in first])
  with torch.no_grad():
    for p, g in zip(params, first, strict=True):
      p += rho * g / flat.norm()
      p.grad = None
  loss().backward()
  sharp = torch.cat([p.grad.flatten() for p in params])
  along = (flat @ sharp) / (sharp @ sharp)
  with torch.no_grad():
    for p, old, g in zip(params, before, first, strict=True):
      p.copy_(old)
      p.grad -= alpha * (g - along * p.grad)


def _theirs(case, model, rates, batches):
  params = [p for p in model.parameters() if p.requires_grad]
  optimizer, losses = _optimizer(case, model), []
  for rate, batch in zip(rates, batches, strict=True):
    for group in optimizer.param_groups:
      group['lr'] = rate * group.get('lr_scale', 1)
    loss = partial(case.loss, model, batch)
    value = loss()
    losses.append(value.item())
    optimizer.zero_grad()
    value.backward()
    if case.ascends:  # Further at the peak of 3e-3 than at the end.
      share = (rate - 3e-5) / (3e-3 - 3e-5)
      _ascend(params, loss, 0.1 + (0.6 - 0.1) * share)
    if case.clip:
      utils.clip_grad_norm_(params, case.clip)
    optimizer.step()
    if case.rounds:  # optax rounds the decay of 0.9, too.
      for state in optimizer.state.values():
        kept = state['exp_avg'].bfloat16().float()
        state['exp_avg'] = 0.8984375 / 0.9 * kept
  return losses


@pytest.mark.parametrize('recipe', CASES)
def test_fifty_losses_are_those_of_the_authors_loop(recipe):
  case, program = CASES[recipe], _program(recipe)
  model, params = case.build(program.model, program.shapes.params)
  batches, prepared = _batches(program)
  teacher = ()
  if program.teacher:
    shapes = program.teacher[0]
    theirs, own = TANH(program.objective.teacher, shapes)
    teacher = (own,)
    for batch in prepared:
      batch['teacher'] = theirs(_images(batch)).detach()
  found = _ours(program, params, batches, teacher)
  rates = [float(program.schedule(step)) for step in range(STEPS)]
  expected = _theirs(case, model, rates, prepared)
  np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
