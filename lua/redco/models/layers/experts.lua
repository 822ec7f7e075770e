--- Mixtures of experts (Shazeer et al., 2017): a router chooses some of many feed-forward layers
--- for each token, and adds up what they put out by its probabilities. Shapes: N tokens, n experts,
--- of which k are chosen.
local adapter = require "redco.lora.adapter"
local blocks = require "redco.models.layers.blocks"
local native = require "redco.native"
local new_mlp = require "redco.models.layers.llama_mlp"
local quantized = require "redco.quant.weights"
local torch = require "redco.torch"

local experts = {}

local function wide(t) return t:to(blocks.wide_dtype(t)) end

-- Returns the router of most mixtures: function(params, name, x [N, size], o) -> logits [N, n],
-- weights and numbers [N, k] of the experts of each token.
local function new_softmax_router(given)
  return function(params, name, x, o)
    local logits = blocks.linear(params, name .. "." .. (given.router or "gate"), x, o)
    local weights, numbers = unpack { wide(logits):softmax(-1):topk(given.n_chosen, -1) }
    if given.is_normalised then weights = weights / weights:sum({ -1 }, true) end
    return logits, weights, numbers
  end
end

-- Returns a function that lists a name's form in all experts: "a.%d.b" -> { a.0.b, ... }.
local function new_names(n)
  local lists = {}
  return function(pattern)
    if not lists[pattern] then
      local list = {}
      for i = 1, n do list[i] = pattern:format(i - 1) end
      lists[pattern] = list
    end
    return lists[pattern]
  end
end

-- Returns { add_parameters, inner, out } of experts with separate weights for gate, up and down, or
-- for up and down. `inner` computes the input of the last layer for the experts `numbers`,
-- [N, k, inner]; `out` applies the last layer.
local function separate(c, given)
  local gate, up, down = unpack(given.names)
  if not down then gate, up, down = nil, gate, up end
  local activation, names_of = blocks.activation(c.model_type, c.hidden_act), new_names(given.n)

  -- Layer `part` of the experts chosen for each row: [N, size] or [N, k, size] -> [N, k, size].
  local function linear(params, name, part, y, numbers, o)
    local names, matrices, types = names_of(name .. ".experts.%d." .. part), {}, {}
    for i, own in ipairs(names) do
      matrices[i], types[i] = params[own .. ".weight"], params[own .. ".weight_type"]
    end
    local z = quantized.grouped(y, numbers, matrices, types)
    return adapter.grouped(params, names, y, z, numbers, o)
  end

  return {
    add_parameters = function(name, add_linear)
      for i = 0, given.n - 1 do
        local expert = ("%s.experts.%d."):format(name, i)
        if gate then add_linear(expert .. gate, c.hidden_size, given.inner, false) end
        add_linear(expert .. up, c.hidden_size, given.inner, false)
        add_linear(expert .. down, given.inner, c.hidden_size, false)
      end
    end,
    inner = function(params, name, x, numbers, o)
      local y = linear(params, name, up, x, numbers, o)
      return gate and blocks.gated(activation, linear(params, name, gate, x, numbers, o), y)
        or activation(y)
    end,
    out = function(params, name, y, numbers, o)
      return linear(params, name, down, y, numbers, o)
    end,
  }
end

-- The same with one weight for gate and up of all experts, and one for down.
local function stacked(c, given)
  local joined, down = "." .. given.stacked[1], "." .. given.stacked[2]
  local activation = blocks.activation(c.model_type, c.hidden_act)
  local gated = given.gated or function(y)
    local gate, up = unpack(y:chunk(2, -1))
    return blocks.gated(activation, gate, up)
  end

  -- Part `part` of the experts chosen for each row: [N, size] or [N, k, size] -> [N, k, size].
  local function linear(params, part, y, numbers, o)
    local weights, type = params[part], params[part .. "_type"]
    if given.is_transposed and not type then weights = weights:transpose(1, 2) end
    local z = native.grouped_linear(y, numbers, weights:unbind(0), type)
    return adapter.stacked(params, part, y, z, numbers, given.is_transposed, o)
  end

  -- The biases of part `part` for each row: [N, k, size].
  local function biases(params, part, numbers)
    return torch.embedding(params[part .. "_bias"], numbers)
  end

  return {
    add_parameters = function(name, _, add)
      local normal = blocks.normal(c.initializer_range)
      local function add_part(part, n_out, n_in)
        add(part, given.is_transposed and { given.n, n_in, n_out } or { given.n, n_out, n_in },
          normal, given.is_transposed and "transposed" or "linear")
        if given.bias then add(part .. "_bias", { given.n, n_out }, blocks.zeros) end
      end
      add_part(name .. joined, 2 * given.inner, c.hidden_size)
      add_part(name .. down, c.hidden_size, given.inner)
    end,
    inner = function(params, name, x, numbers, o)
      local y = linear(params, name .. joined, x, numbers, o)
      return gated(given.bias and y + biases(params, name .. joined, numbers) or y)
    end,
    out = function(params, name, y, numbers, o, weights)
      local z = linear(params, name .. down, y, numbers, o)
      return given.bias and z + biases(params, name .. down, numbers) * weights or z
    end,
  }
end

--- Returns a feed-forward layer as that of llama_mlp.lua, whose `forward` also returns the router's
--- logits [N, n] and the numbers [N, k] of the chosen experts; its last argument, of_router, is
--- what the router reads, if not what experts read. given: n, n_chosen, inner (the size of an
--- expert), is_normalised (whether the probabilities of the chosen add up to 1), name (of the
--- layer), names (of gate, up and down, or of up and down) or stacked (the names of two weights:
--- gate and up of all experts [n, 2 inner, size], down [n, size, inner]), router (the name of its
--- layer), router_bias (its initialiser, or false), route (another router), scales_inputs (whether
--- the weights are factors of what experts read), add_more(name, add) for more parameters. Stacked
--- weights may be is_transposed ([n, in, out]), have a bias ([n, out], by their names with "_bias")
--- and put gate and up together by gated(y [..., 2 inner]). A layer for all tokens, of the size
--- `shared`, may be beside the experts by the name shared_name, and its parts by `names`; the
--- sigmoid of the linear layer `shared_gate` is a factor of it.
function experts.new(c, given)
  local mlps = given.stacked and stacked(c, given) or separate(c, given)
  local route, shared_name = given.route or new_softmax_router(given),
    "." .. (given.shared_name or "shared_experts")
  local shared = given.shared and new_mlp(
    setmetatable({ intermediate_size = given.shared }, { __index = c }),
    { activation = "hidden_act", mlp_names = given.names, mlp_bias = given.shared_bias or false })
  local layer = { name = given.name }

  function layer.add_parameters(name, linear, add)
    linear(name .. "." .. (given.router or "gate"), c.hidden_size, given.n,
      given.router_bias or false)
    if given.add_more then given.add_more(name, add) end
    mlps.add_parameters(name, linear, add)
    if shared then shared.add_parameters(name .. shared_name, linear) end
    if given.shared_gate then linear(name .. "." .. given.shared_gate, c.hidden_size, 1, false) end
  end

  function layer.forward(params, name, x, o, of_router)
    local tokens = x:reshape { -1, c.hidden_size }
    local logits, weights, numbers = route(params, name,
      of_router and of_router:reshape { -1, c.hidden_size } or tokens, o)
    weights = weights:to(x.dtype):unsqueeze(-1)
    if given.scales_inputs then tokens = tokens:unsqueeze(1) * weights end
    local inner = mlps.inner(params, name, tokens, numbers, o)
    if not given.scales_inputs then inner = inner * weights end
    local y = mlps.out(params, name, inner, numbers, o, weights):sum { 1 }:view(x.shape)
    if shared then
      local of_all = shared.forward(params, name .. shared_name, x, o)
      local factor = given.shared_gate
        and blocks.linear(params, name .. "." .. given.shared_gate, x, o):sigmoid()
      y = y + (factor and of_all * factor or of_all)
    end
    return y, logits, numbers
  end

  return layer
end

--- Returns Qwen's mixture, with a layer for all tokens that has a factor. Where the configuration
--- has `experts_are_stacked`, the matrices of all experts are in two weights.
function experts.with_shared(c, is_normalised)
  return experts.new(c, {
    stacked = c.experts_are_stacked and { "experts.gate_up_proj", "experts.down_proj" } or nil,
    n = c.num_experts, n_chosen = c.num_experts_per_tok, inner = c.moe_intermediate_size,
    is_normalised = is_normalised, names = { "gate_proj", "up_proj", "down_proj" },
    shared = c.shared_expert_intermediate_size, shared_name = "shared_expert",
    shared_gate = "shared_expert_gate",
  })
end

-- Returns the sum of x [N, n] over the tokens that are not padding: [n].
local function sum_of_tokens(x, attention_mask)
  local kept = attention_mask and attention_mask:reshape { -1, 1 }:to(x.dtype)
  return (kept and x * kept or x):sum { 0 }
end

-- Returns how many tokens each expert of a layer gets: [n].
local function load_of(routers, i, attention_mask)
  local like = wide(routers[i]:detach())
  local hits = torch.zeros_like(like):scatter(1, routers.numbers[i], 1)
  return sum_of_tokens(hits, attention_mask)
end

--- Returns the loss that spreads tokens evenly over the experts (Fedus et al., 2021), of the
--- router's logits of each layer: n times the sum over experts of their share of the tokens and
--- their mean probability. Padding does not count.
function experts.balance(routers, attention_mask)
  local loads, probs, count = 0, 0, 0
  for i, logits in ipairs(routers) do
    local p = wide(logits):softmax(-1)
    loads = loads + load_of(routers, i, attention_mask)
    probs = probs + sum_of_tokens(p, attention_mask)
    count = count + (attention_mask and attention_mask:sum() or p:size(0))
  end
  return (loads / count * (probs / count)):sum() * routers[1]:size(1)
end

--- Returns metrics of the routers: the most and the fewest tokens that an expert of a layer gets,
--- as multiples of the mean of the layer.
function experts.metrics(routers, attention_mask)
  return torch.no_grad(function()
    local relative = {}
    for i = 1, #routers do
      local loads = load_of(routers, i, attention_mask)
      relative[i] = loads / loads:mean()
    end
    local all = torch.cat(relative)
    return { expert_load_max = all:max(), expert_load_min = all:min() }
  end)
end

return experts
