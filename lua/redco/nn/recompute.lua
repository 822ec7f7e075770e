--- Blocks of a model, whose activations backward can compute again.
local native = require "redco.native"
local registry = require "redco.registry"

local recompute = {
  --- Calls f(...) in place of `block`, or nil.
  call = nil,
}

recompute.block = registry.define("redco.nn.block", [[
block(f, ...) -> what f returns
Calls f(...), a layer of a model. With `recompute = "blocks"` of the Trainer, only the arguments are
kept for backward, which calls f again with the same random numbers: that saves memory and takes
about a third more time. With `recompute = "selective"` the results of products with weights and of
attention are kept, too. f must compute the same both times, and change nothing else; a tensor
that it reads must not be written in place before backward has run, which is an error. The layers of
`redco.models` are such blocks. Inside another block, or in `redco.checkpoint`, it only calls f.
The stages of a pipeline (n_pipeline_stages of `redco.Deployer`) begin with a block.]],
function(f, ...)
  if recompute.call then return recompute.call(f, ...) end
  if native.begins_recomputed_block() then return native.checkpoint_block(f, ...) end
  return f(...)
end)

return recompute
