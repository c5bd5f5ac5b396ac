"""A worker process of `gpu_vs_timm`: timm's model, trained in PyTorch's way.

It imports neither JAX nor other files of this repository: its interpreter may
have no JAX.
"""

import json
import platform
import sys
import time
from typing import Any

# timm's names for the paper's and AugReg's sizes.
_SIZES = {'Ti': 'tiny', 'S': 'small', 'B': 'base', 'L': 'large', 'H': 'huge'}


def main(task: dict[str, Any], torch: Any, timm: Any) -> dict[str, Any]:
  """Measures the training step of a task.

  Args:
    task: see `jax_worker.main`; also `device`, 'cuda' or 'cpu'. Only for a GPU
      torch compiles.
    torch: the imported package.
    timm: the imported package.

  Returns:
    See `gpu_vs_timm.work`.
  """
  device, cuda = torch.device(task['device']), task['device'] == 'cuda'
  if cuda and not torch.cuda.is_available():
    raise ValueError('torch sees no GPU. Install its build for CUDA.')
  # Any float32 products use TF32, as in JAX.
  torch.set_float32_matmul_precision('high')
  size, patch = task['model'].removeprefix('ViT-').split('/')
  model = timm.create_model(
    f'vit_{_SIZES[size]}_patch{patch}_224',
    img_size=task['image_size'],
    num_classes=task['num_classes'],
  ).to(device)
  model.train()
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-3, weight_decay=0.1, fused=True
  )
  shape = (task['batch_size'], 3, task['image_size'], task['image_size'])
  images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
  labels = torch.randint(
    0, task['num_classes'], (task['batch_size'],), device=device
  )

  def loss_of(images, labels):
    with torch.autocast(device.type, torch.bfloat16):
      logits = model(images.float() / 127.5 - 1)
    return torch.nn.functional.cross_entropy(logits.float(), labels)

  if cuda:
    loss_of = torch.compile(loss_of)

  def run(steps):
    """Returns the seconds until the device has finished the steps."""
    start = time.perf_counter()
    for _ in range(steps):
      loss_of(images, labels).backward()
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    if cuda:
      torch.cuda.synchronize()
    return time.perf_counter() - start

  first = run(1)
  seconds = []
  for _ in range(task['turns']):
    run(task['warmup'])
    seconds.append(run(task['steps']) / task['steps'])
  peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
  return {
    'seconds': seconds,
    'params': sum(p.numel() for p in model.parameters()),
    'compile_sec': first - min(seconds),
    'peak_gib': peak,
    'device_kind': (
      torch.cuda.get_device_name() if cuda else platform.processor() or 'cpu'
    ),
    'versions': {'torch': torch.__version__, 'timm': timm.__version__},
  }


if __name__ == '__main__':
  import timm as timm_package
  import torch as torch_package

  given = json.loads(sys.argv[1])
  print(json.dumps(main(given, torch_package, timm_package)))
