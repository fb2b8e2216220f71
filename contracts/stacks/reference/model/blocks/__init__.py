"""The blocks: one file a pattern letter. A is `attention`, E `moe` or `mlp`, M `mamba2` or `mamba3`, R `m2rnn`.

Every mixer is a module `Mixer(recipe, layer, parts)` with `forward(x_BTD, packing, state) -> Output`. Parameters are
held in float32 and take part in the dtype of the activations (`Linear`), except where a block says otherwise. A block
keeps nothing between two calls: what it routed, lost or carried is in its output, so that recomputing it counts
nothing twice.
"""
