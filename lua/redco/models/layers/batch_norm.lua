--- Batch norms of models. Their running statistics are kept with the parameters; a Trainer does not
--- train them.
local blocks = require "redco.models.layers.blocks"
local nn = require "redco.nn"

local batch_norm = {}

--- Weights of files that nothing reads: how many batches moved the statistics.
batch_norm.ignored = "%.num_batches_tracked$"

--- Declares the parameters of a norm over `size` channels.
function batch_norm.add(add, name, size)
  blocks.add_layer_norm(add, name, size)
  add(name .. ".running_mean", { size }, blocks.zeros)
  add(name .. ".running_var", { size }, blocks.ones)
end

--- Normalises x [B, channels, ...]. In training the statistics are those of the whole batch, and
--- move the running ones.
function batch_norm.apply(params, name, x, o, eps)
  return nn.batch_norm(blocks.with_prefix(params, name .. "."), x, { train = o.train, eps = eps })
end

return batch_norm
