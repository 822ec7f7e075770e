--- Recurrent networks over whole sequences: layers, both directions, dropout between layers.
local arguments = require "redco.arguments"
local check_params = require "redco.nn.check_params"
local dropout = require("redco.nn.dropout").dropout
local fail = require "redco.fail"
local init = require "redco.nn.initializers"
local registry = require "redco.registry"
local torch = require "redco.torch"
local parameter = require("redco.native").parameter

local stacks = {}

local function define_params(name, gates)
  local new = arguments("nn." .. name, { num_layers = 1, bias = true, bidirectional = false },
    { "generator" })
  stacks[name] = registry.define("redco.nn." .. name, ([[
%s(input_size, hidden_size, {num_layers = 1, bias = true, bidirectional = false, generator = nil}) -> params
Returns the parameters of `%s`, uniform in (-1/sqrt(hidden), 1/sqrt(hidden)), with PyTorch's names:
weight_ih_l0 [%s, input], weight_hh_l0 [%s, hidden], bias_ih_l0, bias_hh_l0, then those of layer 1.
The names of the backward direction end in _reverse.]])
    :format(name, name:lower(), gates > 1 and gates .. " hidden" or "hidden",
      gates > 1 and gates .. " hidden" or "hidden"),
  function(input_size, hidden_size, options)
    local o = new(options)
    local bound = { a = -1 / math.sqrt(hidden_size), b = 1 / math.sqrt(hidden_size),
      generator = o.generator }
    local function uniform(...) return init.uniform_(parameter { ... }, bound) end
    local params, rows = {}, gates * hidden_size
    for layer = 0, o.num_layers - 1 do
      for _, direction in ipairs(o.bidirectional and { "", "_reverse" } or { "" }) do
        local suffix = layer .. direction
        local columns = layer == 0 and input_size or hidden_size * (o.bidirectional and 2 or 1)
        params["weight_ih_l" .. suffix] = uniform(rows, columns)
        params["weight_hh_l" .. suffix] = uniform(rows, hidden_size)
        if o.bias then
          params["bias_ih_l" .. suffix], params["bias_hh_l" .. suffix] =
            uniform(rows), uniform(rows)
        end
      end
    end
    return params
  end)
end

-- The weights of one layer in the order of LibTorch's operators.
local function weights_of(params, layer, has_bias, is_bidirectional)
  local weights = {}
  for _, direction in ipairs(is_bidirectional and { "", "_reverse" } or { "" }) do
    for _, name in ipairs { "weight_ih_l", "weight_hh_l", has_bias and "bias_ih_l" or nil,
      has_bias and "bias_hh_l" or nil } do
      local full = name .. layer .. direction
      weights[#weights + 1] = params[full] or fail("the parameters have no %s", full)
    end
  end
  return weights
end

local function state_of(where, name, given, shape, x)
  if not given then  -- made from x, so that it is split over processes like x
    return torch.zeros_like(x:detach():select(1, 0):select(-1, 0)):view { 1, -1, 1 }
      :expand(shape):contiguous()
  end
  local actual, expected = table.concat(given.shape, ", "), table.concat(shape, ", ")
  if actual ~= expected then
    fail("%s: %s has shape [%s], expected [%s]: layers times directions, batch, hidden size",
      where, name, actual, expected)
  end
  return given
end

--- Runs the layers one by one, because LibTorch's dropout between them does not draw from `rng` on
--- a GPU. `states` has one tensor for each name in `names`.
local function run(where, params, x, names, given, o, apply)
  if x:dim() ~= 3 then
    fail("%s: expected x [batch, length, input_size], got [%s]", where,
      table.concat(x.shape, ", "))
  end
  if x:size(1) == 0 then fail("%s: x has no steps, [%s]", where, table.concat(x.shape, ", ")) end
  local has_bias, is_bidirectional = params.bias_ih_l0 ~= nil,
    params.weight_ih_l0_reverse ~= nil
  local n_layers, n_directions = 0, is_bidirectional and 2 or 1
  while params["weight_ih_l" .. n_layers] do n_layers = n_layers + 1 end
  if n_layers == 0 then fail("%s: the parameters have no weight_ih_l0", where) end
  local n_inputs = params.weight_ih_l0:size(1)
  if x:size(2) ~= n_inputs then
    fail("%s: expected x [batch, length, %d] as the layer's input_size is, got [%s]", where,
      n_inputs, table.concat(x.shape, ", "))
  end
  local shape = { n_layers * n_directions, x:size(0), params.weight_hh_l0:size(1) }
  local states, ends = {}, {}
  for i, name in ipairs(names) do
    states[i], ends[i] = state_of(where, name, given[i], shape, x), {}
  end
  local y = x
  for layer = 0, n_layers - 1 do
    if layer > 0 then y = dropout(y, o.dropout, { train = o.train, rng = o.rng }) end
    local first = {}
    for i, state in ipairs(states) do
      first[i] = state:narrow(0, layer * n_directions, n_directions)
    end
    local results = { apply(y, first, weights_of(params, layer, has_bias, is_bidirectional),
      has_bias, is_bidirectional) }
    y = results[1]
    for i in ipairs(states) do ends[i][layer + 1] = results[i + 1] end
  end
  for i in ipairs(states) do ends[i] = n_layers == 1 and ends[i][1] or torch.cat(ends[i]) end
  return y, unpack(ends)
end

-- LibTorch's operator runs both directions at once. It is looked up when it is called, because
-- restricted scripts do not have it.
local function fused(name, n_states)
  return function(x, states, weights, has_bias, is_bidirectional)
    return torch[name](x, n_states == 1 and states[1] or states, weights, has_bias, 1, 0, false,
      is_bidirectional, true)
  end
end

-- One direction, step by step: y [batch, length, hidden] and the last states.
local function run_direction(cell, x, states, weights, is_reversed)
  local outputs, length = {}, x:size(1)
  for i = 1, length do
    local t = is_reversed and length - i or i - 1
    states = { cell(x:select(1, t), states, unpack(weights)) }
    outputs[t + 1] = states[1]
  end
  return torch.stack(outputs, 1), states
end

-- The same with cells, for a batch that is split over processes: the fused operators would have to
-- gather the batch, because they merge it with the steps.
local function step_by_step(cell, n_states)
  return function(x, states, weights, _, is_bidirectional)
    local directions = is_bidirectional and 2 or 1
    local n_weights, parts, ends = #weights / directions, {}, {}
    for i = 1, n_states do ends[i] = {} end
    for d = 1, directions do
      local first, own = {}, {}
      for i, state in ipairs(states) do first[i] = state:select(0, d - 1) end
      for i = 1, n_weights do own[i] = weights[(d - 1) * n_weights + i] end
      local last
      parts[d], last = run_direction(cell, x, first, own, d == 2)
      for i, state in ipairs(last) do ends[i][d] = state end
    end
    for i in ipairs(ends) do ends[i] = torch.stack(ends[i]) end
    return torch.cat(parts, -1), unpack(ends)
  end
end

-- Returns the function for a layer that fits x.
local function chooser(name, cell, n_states)
  local whole, split = fused(name, n_states), step_by_step(cell, n_states)
  return function(x, ...) return (x:is_sharded() and split or whole)(x, ...) end
end

local function hidden_only(name)
  local cell = torch[name .. "_cell"]
  return chooser(name, function(x, states, ...) return cell(x, states[1], ...) end, 1)
end

define_params("RNN", 1)
define_params("GRU", 3)
define_params("LSTM", 4)

local about_dropout = [[
`dropout` is the probability with which, in training, outputs between layers are set to 0.]]

local operators = { tanh = hidden_only "rnn_tanh", relu = hidden_only "rnn_relu" }
local use_rnn = arguments("nn.rnn", { nonlinearity = "tanh", dropout = 0, train = false },
  { "h", "rng" })
stacks.rnn = registry.define("redco.nn.rnn", [[
rnn(params, x [batch, length, input], {h [layers, batch, hidden] = nil, nonlinearity = "tanh", dropout = 0, train = false, rng = nil}) -> y [batch, length, hidden], h
Runs a recurrent network of `RNN` over sequences: Elman, 1990. `h` is the first state, by default
zeros; the second result is the last one. With two directions their outputs are concatenated, and
h has both for each layer. ]] .. about_dropout .. [[ nonlinearity is "tanh" or "relu".]],
function(params, x, options)
  check_params("rnn", "RNN", params)
  local o = use_rnn(options)
  local apply = operators[o.nonlinearity]
    or fail("nn.rnn: nonlinearity: expected \"tanh\" or \"relu\", got %s", o.nonlinearity)
  return run("nn.rnn", params, x, { "h" }, { o.h }, o, apply)
end)

local run_gru = hidden_only "gru"
local use_gru = arguments("nn.gru", { dropout = 0, train = false }, { "h", "rng" })
stacks.gru = registry.define("redco.nn.gru", [[
gru(params, x [batch, length, input], {h [layers, batch, hidden] = nil, dropout = 0, train = false, rng = nil}) -> y [batch, length, hidden], h
Runs gated recurrent units of `GRU` over sequences. The arguments are as in `rnn`.]],
function(params, x, options)
  check_params("gru", "GRU", params)
  local o = use_gru(options)
  return run("nn.gru", params, x, { "h" }, { o.h }, o, run_gru)
end)

local run_lstm = chooser("lstm", torch.lstm_cell, 2)
local use_lstm = arguments("nn.lstm", { dropout = 0, train = false }, { "h", "c", "rng" })
stacks.lstm = registry.define("redco.nn.lstm", [[
lstm(params, x [batch, length, input], {h [layers, batch, hidden] = nil, c [layers, batch, hidden] = nil, dropout = 0, train = false, rng = nil}) -> y [batch, length, hidden], h, c
Runs the long short-term memories of `LSTM` over sequences. The arguments are as in `rnn`; c is the
state of the cells.]],
function(params, x, options)
  check_params("lstm", "LSTM", params)
  local o = use_lstm(options)
  return run("nn.lstm", params, x, { "h", "c" }, { o.h, o.c }, o, run_lstm)
end)

return stacks
