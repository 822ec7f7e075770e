--- Dropout.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"

local dropout = {}

local use = arguments("nn.dropout", { train = false }, { "rng" })
dropout.dropout = registry.define("redco.nn.dropout", [[
dropout(x, p, {train = false, rng = nil}) -> like x
In training, sets each element to 0 with probability p and divides the others by 1 - p. `rng` is the
Generator that loss_fn receives. Without `train`, returns x itself.]], function(x, p, options)
  local o = use(options)
  if not o.train or p == 0 then return x end
  if not o.rng then
    fail "nn.dropout: with train = true it needs rng, the Generator that loss_fn is given"
  end
  return native.dropout(x, p, o.rng)
end)

return dropout
