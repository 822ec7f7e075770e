--- Initialisers of SigLIP's weights.
local blocks = require "redco.models.layers.blocks"
local nn = require "redco.nn"

local inits = {}

--- Of an embedding [n, size].
function inits.embedding(size) return blocks.normal(size ^ -0.5) end

--- Of a weight with so many inputs. The normal distribution is cut at two deviations, and wider so
--- that the deviation is that of the whole.
function inits.lecun(n_in)
  local std = n_in ^ -0.5 / 0.87962566103423978
  return function(t, generator)
    return nn.init.trunc_normal_(t, { std = std, a = -2 * std, b = 2 * std, generator = generator })
  end
end

function inits.xavier(t, generator) return nn.init.xavier_uniform_(t, { generator = generator }) end

inits.layers = {
  projection = inits.xavier, out = inits.xavier, fc1 = inits.xavier, fc2 = inits.xavier,
  fc_bias = blocks.normal(1e-6),
}

return inits
