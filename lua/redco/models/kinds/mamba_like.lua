--- Decoders of layers that each have one norm and one mixer, as Mamba's. A family is a row of
--- facts.
local blocks = require "redco.models.layers.blocks"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"

local defaults = {
  num_hidden_layers = 64,
  vocab_size = 32768,
  hidden_size = 4096,
  layer_norm_epsilon = 1e-5,
  initializer_range = 0.1,
  residual_in_fp32 = true,
  tie_word_embeddings = false,
}

local function add_parameters(c, mixer_of, add)
  local normal, width = blocks.normal(c.initializer_range), c.hidden_size
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  add("backbone.embeddings.weight", { c.vocab_size, width }, normal, "embedding")
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("backbone.layers.%d."):format(i)
    local mixer = mixer_of(i)
    norms.rms.add(add, layer .. "norm", { width })
    mixer.add_parameters(layer .. mixer.name, linear, nil, add)
  end
  norms.rms.add(add, "backbone.norm_f", { width })
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, width }, normal, "head")
  end
end

local function new_forward(c, mixer_of)
  local mixers = {}
  for i = 0, c.num_hidden_layers - 1 do mixers[i] = mixer_of(i) end

  return function(params, inputs, o)
    local x = blocks.embedding(params, "backbone.embeddings", inputs.input_ids)
    local dtype, mask, routers = x.dtype, masks.causal(inputs, o, x), { numbers = {} }
    mask.kept = masks.kept(inputs, o, x)
    if c.residual_in_fp32 then x = x:to(blocks.wide_dtype(x)) end
    local function norm(name, y)
      return norms.rms.apply(params, name, y:to(dtype), c.layer_norm_epsilon)
    end
    local function apply_layer(i, input)
      local layer, mixer = ("backbone.layers.%d."):format(i), mixers[i]
      local y, logits, numbers = mixer.forward(params, layer .. mixer.name,
        norm(layer .. "norm", input), nil, mask, o)
      return input + y, logits, numbers
    end
    for i = 0, c.num_hidden_layers - 1 do
      local logits, numbers
      x, logits, numbers = nn.block(apply_layer, i, x)
      routers[#routers + 1], routers.numbers[#routers.numbers + 1] = logits, numbers
    end
    return norm("backbone.norm_f", x), routers
  end
end

--- Returns a family. A row has the fields of a family, and `mixer(c)`, which returns a function of
--- i: the mixer of layer i, as in llama_like.lua. It may also return a router's logits and numbers.
return function(row)
  local family = {
    base_model_prefix = "backbone", inputs = { "input_ids", "attention_mask" }, defaults = {},
    head = blocks.tied_head "backbone.embeddings.weight",
  }
  for key, value in pairs(row) do
    if key ~= "defaults" then family[key] = value end
  end
  for _, list in ipairs { defaults, row.defaults } do
    for key, value in pairs(list) do family.defaults[key] = value end
  end
  function family.add_parameters(c, add) add_parameters(c, row.mixer(c), add) end
  function family.new_forward(c) return new_forward(c, row.mixer(c)) end
  return family
end
