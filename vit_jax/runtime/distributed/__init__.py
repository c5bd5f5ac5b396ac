"""Several processes as one run: start-up, supervision, small agreements.

`connected` finds out whether this process is one of several, waits until all
have joined, and starts JAX's distributed runtime. When another process is lost,
it ends this process and names the cause. `broadcast` and `any_true` let the
processes agree on small values without touching a device. With `barrier` they
wait for each other.
"""

from vit_jax.runtime.distributed.session import (
  any_true,
  barrier,
  broadcast,
  connected,
  stop_all,
)

__all__ = ['any_true', 'barrier', 'broadcast', 'connected', 'stop_all']
