"""The peak bfloat16 rate of this machine's device, by JAX's device kind."""

import re

from vit_jax import topology
from vit_jax.plan import chips

# Words in JAX's device kind -> dense bfloat16 operations a second. The first
# match counts, so longer names come first. The source is NVIDIA's data sheet of
# each GPU (H100, H200: SXM; half of the figure with sparsity).
GPUS = {
  'H200 NVL': 835e12,
  'H200': 989e12,
  'H100 PCIe': 756e12,
  'H100 NVL': 835e12,
  'H100': 989e12,
  'B200': 2250e12,
  'A100': 312e12,
  'L40S': 362e12,
  'L4': 121e12,
  'A10G': 70e12,
  'V100': 125e12,
  'T4': 65e12,
}


def of_device_kind(device_kind: str) -> float | None:
  """Returns the peak operations a second of one JAX device; None if unknown.

  Args:
    device_kind: `jax.Device.device_kind`, such as 'TPU v5 lite' or 'NVIDIA L4'.
      On the hardware a v4 chip is one device, so both cores count.
  """
  if device_kind.startswith('TPU'):
    try:
      chip = chips.get(device_kind)
    except ValueError:
      return None
    shown = topology.GENERATIONS[chip.name].devices_per_chip
    return chip.peak_flops * chip.devices_per_chip / shown
  for name, peak in GPUS.items():
    # Match whole words only: an L4 is not an L40.
    if re.search(rf'\b{name}\b', device_kind):
      return peak
  return None
