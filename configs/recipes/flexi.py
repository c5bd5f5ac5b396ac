"""FlexiViT: one model for all patch sizes (arXiv:2212.08013).

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/recipes/flexi.py:B/16,teacher=WEIGHTS

Each step draws a patch size; the kernel of the patches is resized to it. The
student begins as its teacher, DeiT III at 384 px, and matches its
probabilities. After 1,200 epochs S, B and L reach 82.6, 84.7 and 85.6% on
ImageNet at 240 px; the default are 90. Any patch size can be chosen later:
--config.model.patch_size=30, for speed or for accuracy. By estimate, 90 epochs
of B/16 with a B/16 as the teacher take about 3.0 device days on v4-128 and 0.43
on h100x8.

Data of your own: with a teacher that deit3.py fine-tuned on them at 384 px, or
else --config.distill.image_size='(224,224)'.

Differs from big_vision (proj/flexivit/i1k_deit3_distill.py): the teacher's 384
px are the student's 240, enlarged, not cut from the image: with a random
kernel, tokens of ImageNet's photos differ by 0.6% of their variance. The class
token has a position. Weight decay differs as in augreg.py. As in that code, the
stored kernel keeps the teacher's size: a kernel that was enlarged to the
paper's 32 px would be another one when it is resized to 16 again.
"""

from ml_collections import config_dict

from vit_jax import config as config_lib
from vit_jax.configs.recipes import base, plain

# Of 240 px: grids of 30, 24, 20, 16, 15, 12, 10, 8, 6 and 5 patches a side.
PATCH_SIZES = (8, 10, 12, 15, 16, 20, 24, 30, 40, 48)


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  args = base.parse(argument, 'flexi', ',teacher=PATH', train='train[:99%]')
  teacher = args.get('teacher', config_dict.placeholder(str))
  patch = int(args['model'].rpartition('/')[2])  # The teacher's.
  return base.build(
    args,
    init=teacher,
    epochs=90,
    batch_size=1024,
    image_size=240,
    test='resize({larger})|central_crop',
    model={
      'gelu': 'exact',
      'layer_scale': 1e-4,
      'kernel_size': (patch, patch),
      'position_grid': (7, 7),
    },
    keys={
      'mixup_alpha': 1.0,
      'flexi.patch_sizes': PATCH_SIZES,
      'distill.teacher': teacher,
      'distill.image_size': (384, 384),
      'distill.weight': 1.0,
      'init.new_head': False,
      'loss': config_lib.softmax(),
      **plain.sections(weight_decay=0.1, peak=1e-4, warmup_steps=5_000),
    },
  )
