"""Distillation: a small model learns from a frozen large one.

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/recipes/distill.py:BiT-R50x1,teacher=WEIGHTS

`kind=patient` (arXiv:2106.05237; big_vision, proj/distill): the student matches
the teacher's probabilities on strong blends of images, which both see, for a
very long time. A BiT-R50x1 whose teacher is a BiT-R152x2 reaches 82.8% on
ImageNet after 1,200 epochs. `kind=token` is DeiT's: a token and a head of their
own learn the teacher's first choice, for 300 epochs (configs/recipes/deit.py).
S/16 reaches 81.2 and B/16 83.4%; their teacher was a RegNetY-16GF. By the plan,
300 epochs of B/16 with L/16 as the teacher take 10.5 device days on v4-128 and
1.6 on h100x8.

WEIGHTS are a run's work directory, a file, a Hugging Face folder or a released
name; --config.distill.model names their model where they do not tell it.

Data of your own: train or fine-tune a large model first, then distil it on the
same images. Labels are not used with `kind=patient`, so any images will do.

Differs from DeiT's code: see deit.py; and from big_vision's as augreg.py does.
"""

from ml_collections import config_dict

from vit_jax import config as config_lib
from vit_jax.configs.recipes import base, deit, plain


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  args = base.parse(argument, 'distill', ',teacher=PATH[,kind=patient|token]')
  kind = args.get('kind', 'patient')
  row = {'patient': patient, 'token': token}[kind]()
  row['keys']['distill.teacher'] = args.get(
    'teacher', config_dict.placeholder(str)
  )
  return base.build(args, **row)


def token():
  """Returns DeiT's settings: half of the loss is that of the token's head."""
  row = deit.row(distillation_token=True)
  row['keys'] |= {'distill.kind': 'hard', 'distill.weight': 0.5}
  return row


def patient():
  """Returns the settings of patient and consistent teaching."""
  return dict(
    epochs=1200,
    batch_size=4096,
    model={},
    keys={
      'mixup_alpha': 1.0,
      'distill.kind': 'soft',
      'distill.temperature': 1.0,
      'distill.weight': 1.0,
      'loss': config_lib.softmax(),
      # big_vision decays by 3e-4 at the peak of 0.03; here the rate multiplies.
      **plain.sections(weight_decay=0.01, peak=0.03, warmup_steps=5_000),
    },
  )
