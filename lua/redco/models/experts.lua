--- Mixtures of experts (Shazeer et al., 2017): a router chooses some of many feed-forward layers
--- for each token, and adds up what they put out by its probabilities.
local blocks = require "redco.models.blocks"
local torch = require "redco.torch"

local experts = {}

local function wide(t) return t:to(blocks.wide_dtype(t)) end

-- The probabilities and numbers [N, k] of the experts of each token, by the router's logits.
local function chosen(logits, given)
  local weights, numbers = unpack { wide(logits):softmax(-1):topk(given.n_chosen, -1) }
  if given.is_normalised then weights = weights / weights:sum({ -1 }, true) end
  return weights, numbers
end

-- Every expert on all tokens, by weights that are 0 where it is not chosen: the sizes depend on no
-- values, as the layout over several processes must not.
local function on_all(run, x, weights, numbers, n)
  local shape = { x:size(0), n }
  local all = torch.zeros(shape, { dtype = weights.dtype, device = x.device })
    :scatter(1, numbers, weights):to(x.dtype)
  local sum
  for i = 0, n - 1 do
    local y = run(i, x, all:narrow(1, i, 1))
    sum = sum and sum + y or y
  end
  return sum
end

-- Each expert on its tokens. Those without any run too: their gradients are 0, as on_all's are.
local function on_own(run, x, weights, numbers, n)
  local k = numbers:size(1)
  local order = numbers:reshape { -1 }:argsort { stable = true }
  local counts = torch.bincount(numbers:reshape { -1 }, nil, n):tolist()
  local tokens = order:div(k, { rounding_mode = "floor" })
  local inputs = x:index_select(0, tokens)
  local shares = weights:to(x.dtype):reshape { -1, 1 }:index_select(0, order)
  local parts, at = {}, 0
  for i = 0, n - 1 do
    local count = counts[i + 1]
    parts[i + 1] = run(i, inputs:narrow(0, at, count), shares:narrow(0, at, count))
    at = at + count
  end
  return torch.zeros_like(x):index_add(0, tokens, torch.cat(parts, 0))
end

--- Returns a feed-forward layer as that of llama_mlp.lua, whose `forward` also returns the
--- router's logits [tokens, n]. given: n, n_chosen, inner (the size of an expert), is_normalised
--- (whether the probabilities of the chosen add up to 1), name (of the layer), names (of gate, up
--- and down).
function experts.new(c, given)
  local activation = blocks.activation(c.model_type, c.hidden_act)
  local gate, up, down = unpack(given.names)
  local layer = { name = given.name }

  function layer.add_parameters(name, linear)
    linear(name .. ".gate", c.hidden_size, given.n, false)
    for i = 0, given.n - 1 do
      local expert = ("%s.experts.%d."):format(name, i)
      linear(expert .. gate, c.hidden_size, given.inner, false)
      linear(expert .. up, c.hidden_size, given.inner, false)
      linear(expert .. down, given.inner, c.hidden_size, false)
    end
  end

  function layer.forward(params, name, x, o)
    local tokens = x:reshape { -1, c.hidden_size }
    local logits = blocks.linear(params, name .. ".gate", tokens, o)
    local weights, numbers = chosen(logits, given)
    local function run(i, y, shares)
      local expert = ("%s.experts.%d."):format(name, i)
      local function linear(part, z) return blocks.linear(params, expert .. part, z, o) end
      return linear(down, activation(linear(gate, y)) * linear(up, y) * shares)
    end
    local compute = tokens:is_sharded() and on_all or on_own
    return compute(run, tokens, weights, numbers, given.n):view(x.shape), logits
  end

  return layer
end

--- Returns the loss that spreads tokens evenly over the experts (Fedus et al., 2021), of the
--- router's logits of each layer: n times the sum over experts of their share of the tokens and
--- their mean probability. Padding does not count.
function experts.balance(routers, attention_mask, n_chosen)
  local shares, probs, count = 0, 0, 0
  for _, logits in ipairs(routers) do
    local p = wide(logits):softmax(-1)
    local hits = torch.zeros_like(p):scatter(1, select(2, p:topk(n_chosen, -1)), 1)
    local kept = attention_mask and attention_mask:reshape { -1, 1 }:to(p.dtype)
    shares = shares + (kept and hits * kept or hits):sum { 0 }
    probs = probs + (kept and p * kept or p):sum { 0 }
    count = count + (kept and kept:sum() or p:size(0))
  end
  return (shares / count * (probs / count)):sum() * routers[1]:size(1)
end

return experts
