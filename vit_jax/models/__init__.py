"""The paper's models: `build` makes one from its name, `names` lists them."""

from vit_jax.models.encoder import unstack_blocks as unstack_blocks
from vit_jax.models.variants import build as build
from vit_jax.models.variants import names as names
from vit_jax.models.variants import options as options
from vit_jax.models.variants import paper_name as paper_name
from vit_jax.models.variants import parse as parse
