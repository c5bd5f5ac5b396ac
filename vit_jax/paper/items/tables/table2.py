"""Table 2: the largest models, beside the state of the art (Section 4.2)."""

from vit_jax.paper import cost, numbers
from vit_jax.paper.claims import Claim, Mean, tuned, vtab
from vit_jax.paper.item import of_paper
from vit_jax.paper.items.tables import table5
from vit_jax.paper.report import Cell
from vit_jax.paper.runs import Pretraining, Results, pretraining

# Column -> its pre-training. The numbers of the others are from other papers.
STARTS = {
  f'{model}, {data}': pretraining(model, data)
  for model, data in (
    ('ViT-H/14', numbers.JFT),
    ('ViT-L/16', numbers.JFT),
    ('ViT-L/16', numbers.IMAGENET21K),
  )
}
# The resolution of fine-tuning on ImageNet (B.1.1).
RESOLUTION = {'ViT-L/16': 512, 'ViT-H/14': 518}
_BIT = 'BiT-R152x4, JFT-300M'
# BiT-L is BiT-R152x4; Noisy Student is EfficientNet-L2.
PAPER = numbers.printed('table2')
# BiT-L. The paper took its numbers from the BiT paper; here it is trained like
# the other ResNets of the ViT paper.
RESNET = Pretraining('BiT-R152x4', epochs=14)
LARGE, HUGE = (Pretraining(m, epochs=14) for m in ('ViT-L/16', 'ViT-H/14'))
VTAB_IN_MINIATURE = (
  'In miniature, VTAB means are over the tasks that have a stand-in, which the'
  ' table at the top of the page lists.'
)

_RESNET = (
  'The paper took the numbers of BiT-R152x4 from the BiT paper. Ours is trained'
  ' like the other ResNets of the ViT paper, with Adam for 14 epochs, and'
  ' fine-tuned at 384 px.'
)
_COSTS = (
  table5.IMAGES_21K,
  cost.CORE_DAYS_ARE,
  'By the text of Section 4.2, ViT-L/16 takes about 30 days on ImageNet-21k'
  ' with 8 TPUv3 cores, which are 240 core-days.',
)
_CLAIMS = [
  Claim(
    'ahead_of_resnet',
    'Pre-trained on JFT-300M, ViT-L/16 is ahead of a large ResNet on all'
    ' tasks (4.2, Table 2).',
    {
      f'lead of {LARGE.model} over {RESNET.model}: {of.name}': of(LARGE)
      - of(RESNET)
      for of in (*map(tuned, numbers.AVERAGE5), vtab())
    },
    'The BiT-R152x4 of the paper is that of the BiT paper, fine-tuned at a'
    ' higher resolution. Here, it is trained like the other ResNets, and both'
    ' models are fine-tuned at the same resolution.',
  ),
  Claim(
    'huge_is_best',
    'ViT-H/14 is ahead of ViT-L/16 on the harder tasks: ImageNet, CIFAR-100'
    ' and VTAB (4.2, Table 2).',
    {
      f'lead of {HUGE.model}: {of.name}': of(HUGE) - of(LARGE)
      for of in (tuned(numbers.IMAGENET), tuned(numbers.CIFAR100), vtab())
    },
  ),
]


def _computed(results: Results) -> dict[tuple[str, str], Cell]:
  """Returns the estimated core-days."""
  row = cost.CORE_DAYS
  return {
    (row, column): Cell(results.core_days(start), PAPER[row, column], False)
    for column, start in STARTS.items()
  }


def _cell(task: str, start: Pretraining) -> Mean:
  if task == numbers.VTAB:
    return vtab()(start)
  on_imagenet = task in (numbers.IMAGENET, numbers.REAL)
  larger = on_imagenet and RESOLUTION.get(start.model)
  return table5.measured(task, larger or 384)(start)


ITEM = of_paper(
  PAPER,
  {
    (task, column): _cell(task, start)
    for column, start in {**STARTS, _BIT: RESNET}.items()
    for task in PAPER.rows
    if task != cost.CORE_DAYS
  },
  claims=_CLAIMS,
  notes=lambda results: [_RESNET, *(_COSTS if results.comparable else ())],
  miniature=[table5.REAL_IN_MINIATURE, VTAB_IN_MINIATURE],
  computed=_computed,
)
