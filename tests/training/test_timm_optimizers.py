"""Guards: a hundred steps of optimizers are those of timm's and PyTorch's.

Muon has NumPy's reference alone: timm's and PyTorch's do not correct the bias
of the momentum, as optax does. So has LARS, whose rate timm puts elsewhere.
"""

import jax
import pytest

timm = pytest.importorskip('timm')
torch = pytest.importorskip('torch')

from timm import optim  # noqa: E402

from tests.training import made_optimizers as made  # noqa: E402
from vit_jax.training import schedule as schedule_lib  # noqa: E402

pytestmark = pytest.mark.hf

CASES = {
  'adamw': (torch.optim.AdamW, {}, {}),
  'sgd': (torch.optim.SGD, dict(momentum=0.9), {}),
  'lamb': (optim.Lamb, dict(max_grad_norm=None), {}),
  'lamb, clipped': (optim.Lamb, dict(max_grad_norm=2.0), {'clip_norm': 2.0}),
  'lion': (optim.Lion, dict(betas=(0.9, 0.99)), {}),
  'adafactor': (
    optim.AdafactorBigVision,
    dict(min_dim_size_to_factor=6, decay_rate=2.0, momentum_dtype='float32'),
    {},
  ),
}


def theirs(build, options):
  """Returns their parameters after all steps, in float64."""
  params = {
    name: torch.nn.Parameter(torch.tensor(p, dtype=torch.float64))
    for name, p in made.by_block(made.first_params()).items()
  }
  groups = [
    {
      'params': [
        p for n, p in params.items() if n.endswith('kernel') == decays
      ],
      'weight_decay': 0.1 * decays,
    }
    for decays in (True, False)
  ]
  optimizer = build(groups, lr=1.0, **options)
  schedule = jax.jit(schedule_lib.build_schedule(made.SCHEDULE, made.STEPS))
  for t in range(made.STEPS):
    slopes = made.by_block({n: s[t] for n, s in made.slopes().items()})
    for name, p in params.items():
      p.grad = 0.3 * p.detach() + torch.tensor(slopes[name])
    for group in optimizer.param_groups:
      group['lr'] = float(schedule(t))
    optimizer.step()
  return {name: p.detach().numpy() for name, p in params.items()}


@pytest.mark.parametrize('case', CASES)
def test_a_hundred_steps_are_theirs(case):
  build, options, own = CASES[case]
  found = made.trajectory(made.build(case.partition(',')[0], **own))
  made.assert_steps(found, theirs(build, options), 5e-5)
