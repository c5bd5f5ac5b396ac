"""The paper's numbers and pictures from the authors' released weights.

Nothing is trained: `python -m vit_jax.reproduce released --weights=DIR`.

files       the released files that are needed, and where they are
evaluating  their accuracies on ImageNet and ImageNet-ReaL, kept once measured
sections    these beside printed numbers, and the pictures
command     the command
"""
