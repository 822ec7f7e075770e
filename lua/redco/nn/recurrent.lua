--- Recurrent cells: one step of a sequence.
local arguments = require "redco.arguments"
local check_params = require "redco.nn.check_params"
local fail = require "redco.fail"
local init = require "redco.nn.initializers"
local registry = require "redco.registry"
local torch = require "redco.torch"
local parameter = require("redco.native").parameter

local recurrent = {}

--- Defines the constructor of a cell with `gates` blocks of hidden units.
local function define(name, gates, order)
  local blocks = gates > 1 and gates .. " " or ""
  local new = arguments("nn." .. name, { bias = true }, { "generator" })
  recurrent[name] = registry.define("redco.nn." .. name, ([[
%s(input_size, hidden_size, {bias = true, generator = nil}) -> params
Returns the parameters of `%s`: {weight_ih [%shidden, input], weight_hh [%shidden, hidden],
bias_ih, bias_hh}, uniform in (-1/sqrt(hidden), 1/sqrt(hidden)).%s]])
    :format(name, (name:lower():gsub("cell", "_cell")), blocks, blocks,
      order and (" The order of blocks is %s."):format(order) or ""),
  function(input_size, hidden_size, options)
    local o = new(options)
    local bound = { a = -1 / math.sqrt(hidden_size), b = 1 / math.sqrt(hidden_size),
      generator = o.generator }
    local function uniform(...) return init.uniform_(parameter { ... }, bound) end
    local rows = gates * hidden_size
    local params = { weight_ih = uniform(rows, input_size), weight_hh = uniform(rows, hidden_size) }
    if o.bias then params.bias_ih, params.bias_hh = uniform(rows), uniform(rows) end
    return params
  end)
end

define("RNNCell", 1)
define("GRUCell", 3, "reset, update, new")
define("LSTMCell", 4, "input, forget, cell, output")

local rnn_cells = { tanh = torch.rnn_tanh_cell, relu = torch.rnn_relu_cell }
local use_rnn = arguments("nn.rnn_cell", { nonlinearity = "tanh" })
recurrent.rnn_cell = registry.define("redco.nn.rnn_cell", [[
rnn_cell(params, x [batch, input], h [batch, hidden], {nonlinearity = "tanh"}) -> h
Computes one step of a recurrent network: Elman, 1990. nonlinearity is "tanh" or "relu".]],
function(params, x, h, options)
  check_params("rnn_cell", "RNNCell", params)
  local nonlinearity = use_rnn(options).nonlinearity
  local cell = rnn_cells[nonlinearity]
    or fail("nn.rnn_cell: nonlinearity: expected \"tanh\" or \"relu\", got %s",
      nonlinearity)
  return cell(x, h, params.weight_ih, params.weight_hh, params.bias_ih, params.bias_hh)
end)

recurrent.gru_cell = registry.define("redco.nn.gru_cell", [[
gru_cell(params, x [batch, input], h [batch, hidden]) -> h
Computes one step of a gated recurrent unit: Cho et al., 2014, with the reset gate as in
PyTorch.]],
function(params, x, h)
  check_params("gru_cell", "GRUCell", params)
  return torch.gru_cell(x, h, params.weight_ih, params.weight_hh, params.bias_ih, params.bias_hh)
end)

recurrent.lstm_cell = registry.define("redco.nn.lstm_cell", [[
lstm_cell(params, x [batch, input], h [batch, hidden], c [batch, hidden]) -> h, c
Computes one step of a long short-term memory: Hochreiter and Schmidhuber, 1997.]],
function(params, x, h, c)
  check_params("lstm_cell", "LSTMCell", params)
  return torch.lstm_cell(x, { h, c }, params.weight_ih, params.weight_hh, params.bias_ih,
    params.bias_hh)
end)

return recurrent
