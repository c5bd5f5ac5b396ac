"""Guards: the loss of distillation, and what a teacher sees."""

import jax
import numpy as np
import pytest
import scipy.special
from PIL import Image

from tests import tiny_run, tiny_step
from tests.models import naive
from vit_jax import config as config_lib
from vit_jax import losses, models, sharding
from vit_jax.losses import classification, distillation
from vit_jax.models.shared import normalize
from vit_jax.training import program as program_lib

pytestmark = pytest.mark.usefixtures('programs')

B, K = 16, 5
TEACHER = 'ViT-Ti/4:width=16,depth=1,heads=2,mlp_dim=32,dropout_rate=0.5'
RNG = np.random.default_rng(0)


def _config(**changes):
  given = {'distill.teacher': 'some', 'distill.model': TEACHER}
  return tiny_run.tiny_config(
    {'num_classes': K, 'model.dtype': 'float32'} | given, **changes
  )


class Student:
  """In place of a model: its logits, and those of a distillation token."""

  def __init__(self, **out):
    self.out = out

  def apply(self, variables, images, *, train, rngs):
    assert train
    return variables['params'], self.out


def _deit(kind, alpha, tau, base, student, teacher):
  """The loss by DeiT's paper: Eq. 2 and 3 of arXiv:2012.12877."""
  if kind == 'hard':
    log_p = scipy.special.log_softmax(student.astype(np.float64), axis=1)
    distilled = -log_p[np.arange(B), teacher.argmax(axis=1)]
  else:
    log_p, log_q = (
      scipy.special.log_softmax(x.astype(np.float64) / tau, axis=1)
      for x in (student, teacher)
    )
    distilled = tau**2 * (np.exp(log_q) * (log_q - log_p)).sum(axis=1)
  return (1 - alpha) * base + alpha * distilled.mean(), distilled.mean()


@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
@pytest.mark.parametrize('token', [False, True])
@pytest.mark.parametrize(
  'kind, alpha, tau',
  [('soft', 0.1, 3.0), ('soft', 1.0, 1.0), ('hard', 0.5, 1.0)],
)
def test_loss_of_deit(kind, alpha, tau, token, loss):
  config = _config(
    distill__kind=kind, distill__weight=alpha, distill__temperature=tau
  )
  logits, second, teacher = RNG.normal(0, 3, (3, B, K)).astype(np.float32)
  batch = tiny_step.batch(B, classes=K, rng=RNG) | {'teacher': teacher}
  on_labels = losses.build(loss)
  function = classification.mean_loss(
    Student(**({'distilled': second} if token else {})),
    on_labels,
    distillation.build(config),
  )
  found, metrics = function(logits, batch, jax.random.key(0))
  base = float(on_labels(logits, batch['label']).mean())
  student = second if token else logits
  expected, part = _deit(kind, alpha, tau, base, student, teacher)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  np.testing.assert_allclose(metrics['distillation_loss'], part, rtol=1e-5)
  np.testing.assert_allclose(metrics['label_loss'], base, rtol=1e-6)
  agreed = (student.argmax(axis=1) == teacher.argmax(axis=1)).mean()
  assert metrics['agreement'] == pytest.approx(agreed)
  assert {'accuracy', 'agreement'} < metrics.keys()


def test_labels_are_not_used_at_weight_1():
  distil = distillation.build(_config(distill__weight=1.0))
  student, teacher = RNG.normal(size=(2, B, K)).astype(np.float32)
  assert np.isfinite(distil(np.float32('nan'), student, teacher)[0])


@pytest.mark.parametrize(
  'sizes, options, steps, size',
  [
    ((8, 1, 1), {}, 2, ()),
    ((2, 2, 2), {'gather': 'micro_batch'}, 2, (5, 4)),
  ],
  ids=str,
)
def test_the_teacher_sees_the_students_images(sizes, options, steps, size):
  """Mixed and resized too, in the order of the rows, whatever splits them."""
  layout = sharding.Layout(sharding.make_mesh(*sizes), **options)
  config = _config(mixup_alpha=0.8, cutmix_alpha=1.0, accumulation_steps=steps)
  config.distill.image_size = size
  batch = tiny_step.batch(B, classes=K, rng=RNG) | {
    'share': np.full(B, 0.7, np.float32),
    'box': np.zeros((B, 4), np.int32),
    'outside': np.full(B, 0.7, np.float32),
  }
  batch['partner_image'] = np.roll(batch['image'], 1, axis=0)
  teacher = distillation.build_teacher(config, layout)
  size = size or (8, 8)
  params = naive.random_params(teacher, np.zeros((1, *size, 1), 'f'))
  found = jax.jit(
    lambda *arguments: distillation.add_logits(
      teacher, *arguments, layout, config
    )
  )(
    sharding.put_tree(params, layout.params(params)),
    sharding.put_batch(batch, layout.mesh),
  )
  own, partner = (
    np.asarray(normalize(batch[name])) for name in ('image', 'partner_image')
  )
  mixed = 0.7 * own[..., 0] + 0.3 * partner[..., 0]
  shown = [
    Image.fromarray(x).resize(size[::-1], Image.Resampling.BICUBIC)
    for x in mixed
  ]
  expected, _ = models.parse(TEACHER, num_classes=K).apply(
    {'params': params}, np.stack(shown)[..., None], train=False
  )
  np.testing.assert_allclose(found['teacher'], expected, rtol=1e-4, atol=1e-5)
  assert found.keys() - batch.keys() == {'teacher'}
  np.testing.assert_array_equal(found['image'], batch['image'])


def test_only_the_forward_pass_of_the_teacher_is_computed():
  def products(**changes):
    program = program_lib.Program(_config(**changes), tiny_step.one_device())
    step = jax.make_jaxpr(program.train_step)(*program.arguments)
    return str(step).count('dot_general')

  images = np.zeros((B, 8, 8, 1), np.float32)
  teacher = models.parse(TEACHER, num_classes=K)
  params = naive.random_params(teacher, images)
  forward = jax.make_jaxpr(
    lambda p: teacher.apply({'params': p}, images, train=False)[0]
  )(params)
  alone = products(distill__teacher='', distill__model='')
  assert products() == alone + str(forward).count('dot_general')


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'distill.model': ''}, 'needs distill.model'),
    ({'distill.model': 'ViT-X/4'}, 'Unknown model'),
    ({'mesh.tensor': 4, 'mesh.data': 2}, 'must divide the 2 heads'),
    ({'loss': config_lib.masked_patch()}, r'distill\.teacher.*masked_patch'),
  ],
)
def test_refused(changes, message):
  config = _config(model__heads=4)
  config.loss = changes.pop('loss', config.loss)
  config.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=message):
    program_lib.Program(config, sharding.build(**config.mesh))
