--- GPT-2 (Radford et al., 2019). The configuration, the names and the layouts of the parameters are
--- those of Hugging Face's `GPT2LMHeadModel`: the matrices of the blocks are [in, out], the head is
--- the embedding.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local nn = require "redco.nn"
local registry = require "redco.registry"
local torch = require "redco.torch"
local parameter = require("redco.native").parameter

local gpt2 = {}

local config_of = arguments("gpt2.from_config", {
  vocab_size = 50257,
  n_positions = 1024,
  n_embd = 768,
  n_layer = 12,
  n_head = 12,
  embd_pdrop = 0.1,
  resid_pdrop = 0.1,
  attn_pdrop = 0.1,
  layer_norm_epsilon = 1e-5,
  initializer_range = 0.02,
}, { "n_inner" })

-- Names in a block, with what it takes to make each.
local function block_layout(c)
  local inner = c.n_inner or 4 * c.n_embd
  -- The output layers of the residual branches start smaller, by the number of branches.
  local residual = c.initializer_range / math.sqrt(2 * c.n_layer)
  return {
    { "attn.c_attn", c.n_embd, 3 * c.n_embd, c.initializer_range },
    { "attn.c_proj", c.n_embd, c.n_embd, residual },
    { "mlp.c_fc", c.n_embd, inner, c.initializer_range },
    { "mlp.c_proj", inner, c.n_embd, residual },
  }
end

local function make_params(c, generator)
  local params = {}
  local function normal(name, std, ...)
    params[name] = nn.init.normal_(parameter { ... }, { std = std, generator = generator })
  end
  local function layer_norm(name)
    params[name .. ".weight"] = torch.ones { c.n_embd }
    params[name .. ".bias"] = torch.zeros { c.n_embd }
  end
  normal("transformer.wte.weight", c.initializer_range, c.vocab_size, c.n_embd)
  normal("transformer.wpe.weight", c.initializer_range, c.n_positions, c.n_embd)
  for i = 0, c.n_layer - 1 do
    local block = ("transformer.h.%d."):format(i)
    layer_norm(block .. "ln_1")
    layer_norm(block .. "ln_2")
    for _, layer in ipairs(block_layout(c)) do
      local name, n_in, n_out, std = unpack(layer)
      normal(block .. name .. ".weight", std, n_in, n_out)
      params[block .. name .. ".bias"] = torch.zeros { n_out }
    end
  end
  layer_norm("transformer.ln_f")
  return params
end

--- The functions of a model with this configuration.
local function make_forward(c)
  local function layer_norm(params, name, x)
    return torch.layer_norm(x, { c.n_embd }, params[name .. ".weight"], params[name .. ".bias"],
      c.layer_norm_epsilon)
  end

  local function linear(params, name, x)
    return torch.linear(x, params[name .. ".weight"]:t(), params[name .. ".bias"])
  end

  local function attention(params, name, x, options)
    local batch, length = x:size(0), x:size(1)
    local qkv = linear(params, name .. ".c_attn", x)
      :view { batch, length, 3, c.n_head, c.n_embd / c.n_head }
    local q, k, v = unpack(qkv:transpose(1, 3):unbind(2))
    local y = nn.attention(q, k, v, { causal = true, dropout = c.attn_pdrop,
      train = options.train, rng = options.rng })
    y = y:transpose(1, 2):reshape { batch, length, c.n_embd }
    return nn.dropout(linear(params, name .. ".c_proj", y), c.resid_pdrop, options)
  end

  local function mlp(params, name, x, options)
    local y = torch.gelu(linear(params, name .. ".c_fc", x), { approximate = "tanh" })
    return nn.dropout(linear(params, name .. ".c_proj", y), c.resid_pdrop, options)
  end

  return function(params, input_ids, options)
    local length = input_ids:size(1)
    if length > c.n_positions then
      fail("gpt2: %d tokens are more than the model's n_positions, %d", length, c.n_positions)
    end
    local x = torch.embedding(params["transformer.wte.weight"], input_ids)
      + params["transformer.wpe.weight"]:narrow(0, 0, length)
    x = nn.dropout(x, c.embd_pdrop, options)
    for i = 0, c.n_layer - 1 do
      local block = ("transformer.h.%d."):format(i)
      x = x + attention(params, block .. "attn", layer_norm(params, block .. "ln_1", x), options)
      x = x + mlp(params, block .. "mlp", layer_norm(params, block .. "ln_2", x), options)
    end
    return layer_norm(params, "transformer.ln_f", x)
  end
end

local call_options = arguments("gpt2", { train = false }, { "rng" })
local loss_options = arguments("gpt2.loss",
  { train = false, ignore_index = -100, label_smoothing = 0 }, { "rng" })

gpt2.from_config = registry.define("redco.models.gpt2.from_config", [[
from_config(config, generator) -> model
A GPT-2 with new weights. `config`: vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12,
n_head = 12, n_inner = 4 n_embd, embd_pdrop = resid_pdrop = attn_pdrop = 0.1, layer_norm_epsilon = 1e-5,
initializer_range = 0.02. `model.params` is a flat table by Hugging Face's names; `model(params,
{input_ids [batch, length]}, {train = false, rng})` gives the logits [batch, length, vocab_size];
`model.loss(params, {input_ids, labels}, {train, rng, ignore_index = -100, label_smoothing = 0})` the
mean cross-entropy of the labels, which the collate_fn has shifted, and their number, without holding
all logits; `model.hidden_states` what the head sees. `model.config` is what was given.]],
function(config, generator)
  local c = config_of(config or {})
  if c.n_embd % c.n_head ~= 0 then
    fail("gpt2.from_config: n_embd (%d) is no multiple of n_head (%d)", c.n_embd, c.n_head)
  end
  local forward = make_forward(c)
  local model = { config = c, params = make_params(c, generator) }

  function model.hidden_states(params, inputs, options)
    return forward(params, inputs.input_ids, call_options(options))
  end

  function model.loss(params, inputs, options)
    local o = loss_options(options)
    local hidden = model.hidden_states(params, inputs, { train = o.train, rng = o.rng })
    return nn.linear_cross_entropy(hidden, params["transformer.wte.weight"], inputs.labels,
      { ignore_index = o.ignore_index, label_smoothing = o.label_smoothing })
  end

  return setmetatable(model, {
    __call = function(_, params, inputs, options)
      local hidden = model.hidden_states(params, inputs, options)
      return torch.linear(hidden, params["transformer.wte.weight"])
    end,
  })
end)

return gpt2
