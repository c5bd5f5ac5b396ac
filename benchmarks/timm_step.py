"""Times timm's training step: `python -m benchmarks.timm_step MODEL`.

The step is that of PyTorch's users: torch.compile, bfloat16 autocast, fused
AdamW, no dropout, synthetic data on the device. It needs torch and timm, and
imports neither JAX nor other files of this repository: its interpreter may have
no JAX. For the same model and images, in turns on the same GPU:

  python -m benchmarks.timm_step ViT-B/16 --batch_size=256
  python -m benchmarks.train_step --config=configs/recipes/deit.py:B/16 \\
    --config.data.batch_size=256 --config.model.dtype=bfloat16 \\
    --config.model.stochastic_depth=0.0 --config.mixup_alpha=0.0 \\
    --config.cutmix_alpha=0.0

Both print `params`, which must be equal. --device=cpu is for a test: torch does
not compile then.
"""

import argparse
import json
import statistics
import time
from typing import Any

# timm's names for the paper's and AugReg's sizes.
_SIZES = {'Ti': 'tiny', 'S': 'small', 'B': 'base', 'L': 'large', 'H': 'huge'}


def main(args: argparse.Namespace, torch: Any, timm: Any) -> dict[str, Any]:
  """Measures the training step.

  Args:
    args: the command line, see `__main__`.
    torch: the imported package.
    timm: the imported package.

  Returns:
    `step_ms` (the median), `values` (each turn's, in ms), `images_per_sec`,
    `params`, `compile_sec`, `peak_gib` and `versions`.
  """
  device, cuda = torch.device(args.device), args.device == 'cuda'
  if cuda and not torch.cuda.is_available():
    raise ValueError('torch sees no GPU. Install its build for CUDA.')
  # Any float32 products use TF32, as in JAX.
  torch.set_float32_matmul_precision('high')
  size, patch = args.model.removeprefix('ViT-').split('/')
  side, classes, batch = args.image_size, args.num_classes, args.batch_size
  model = timm.create_model(
    f'vit_{_SIZES[size]}_patch{patch}_224', img_size=side, num_classes=classes
  ).to(device)
  model.train()
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-3, weight_decay=0.1, fused=True
  )
  shape = (batch, 3, side, side)
  images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
  labels = torch.randint(0, classes, (batch,), device=device)

  def loss_of(images, labels):
    with torch.autocast(device.type, torch.bfloat16):
      logits = model(images.float() / 127.5 - 1)
    return torch.nn.functional.cross_entropy(logits.float(), labels)

  if cuda:
    loss_of = torch.compile(loss_of)

  def run(steps):
    """Returns the milliseconds until the device has finished the steps."""
    start = time.perf_counter()
    for _ in range(steps):
      loss_of(images, labels).backward()
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    if cuda:
      torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)

  first, values = run(1), []
  for _ in range(args.rounds):
    run(args.warmup)
    values.append(run(args.steps) / args.steps)
  median = statistics.median(values)
  return {
    'step_ms': median,
    'values': values,
    'images_per_sec': 1000 * batch / median,
    'params': sum(p.numel() for p in model.parameters()),
    'compile_sec': (first - min(values)) / 1000,
    'peak_gib': torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
    'versions': {'torch': torch.__version__, 'timm': timm.__version__},
  }


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument('model', help='Name of a ViT, such as ViT-B/16.')
  parser.add_argument('--device', default='cuda', choices=['cuda', 'cpu'])
  for name, default in {
    **{'batch_size': 128, 'image_size': 224, 'num_classes': 1000},
    **{'rounds': 6, 'steps': 20, 'warmup': 3},
  }.items():
    parser.add_argument(
      f'--{name}', type=int, default=default, help='%(default)s'
    )
  given = parser.parse_args()  # --help needs no torch.
  import timm as timm_package
  import torch as torch_package

  print(json.dumps(main(given, torch_package, timm_package)))
