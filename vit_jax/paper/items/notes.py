"""What a reader must know about several items."""

from collections.abc import Iterable

from vit_jax.paper.numbers import VTAB_GROUPS
from vit_jax.paper.runs import Pretraining, Results, Vtab

_SEEN = (
  'The learning rate of fine-tuning is chosen on validation images, which are'
  ' a part of the training images. A model that was pre-trained on ImageNet has'
  ' already seen these images of ImageNet.'
)
# Our number of images differs from that in the paper's text.
_IMAGES_21K = (
  'We count 12.4 million images as one epoch of ImageNet-21k. The authors of'
  ' the paper give this number for their copy without duplicates. So 90 epochs'
  " are 272,460 steps. The paper's text gives 14 million images. Then, 90"
  ' epochs would be 308,000 steps.'
)
_REAL = (
  "ImageNet ReaL has other labels for ImageNet's images; the miniature has no"
  ' stand-in for it.'
)


def seen(results: Results) -> list[str]:
  """Returns a note on the choice of the rate; a miniature chooses none."""
  return [_SEEN] if results.comparable else []


def images_21k(results: Results) -> list[str]:
  """Returns a note on ImageNet-21k's number of images; none in miniature."""
  return [_IMAGES_21K] if results.comparable else []


def real(results: Results) -> list[str]:
  """Returns a note on why ImageNet ReaL is empty in miniature."""
  return [] if results.comparable else [_REAL]


def vtab_tasks(results: Results, start: Pretraining) -> dict[str, list[str]]:
  """Returns group of VTAB -> the tasks that its mean covers.

  With the paper's own data, the means cover all 19 tasks. A miniature may have
  stand-ins for only some tasks, and for no task of some groups.
  """
  return {
    group: [
      task
      for task in tasks
      if results.comparable or results.has(Vtab(start, task))
    ]
    for group, tasks in VTAB_GROUPS.items()
  }


def vtab(results: Results, starts: Iterable[Pretraining]) -> list[str]:
  """Returns notes on which tasks the means cover, if these are not all tasks.

  There is a single note if it is the same for all of `starts`, as in miniature.
  """
  total = sum(map(len, VTAB_GROUPS.values()))
  notes: dict[str, None] = {}
  for start in starts:
    found = vtab_tasks(results, start)
    count = sum(map(len, found.values()))
    parts = [
      f'{len(tasks)} of {len(VTAB_GROUPS[group])} {group.title()} tasks'
      for group, tasks in found.items()
    ]
    if count < total:
      notes[
        f'Our VTAB means are over {count} of the {total} tasks. Only these'
        f' tasks have data in miniature: {", ".join(parts)}.'
      ] = None
  return [*notes]
