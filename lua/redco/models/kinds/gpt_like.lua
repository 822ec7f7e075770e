--- Decoders built as GPT-2 is, with ordinary linear layers: layer norms with biases, learned or
--- rotary positions, feed-forward layers without a gate. A family is a row of facts.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local rotary = require "redco.models.layers.rotary"

-- The facts that several rows share; those without a default are listed with nil. The function
-- `facts(c)` of a row returns its own.
local shared = {
  width = nil, n_layers = nil, n_heads = nil,
  inner = nil,  -- the size of a feed-forward layer, by default 4 * width
  positions = nil,  -- the key of the number of positions
  rotary_size = nil,  -- how many elements of a head have rotary positions; nil if they are learned
  embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0,
  attention = "attn",
  -- { add, split }: add(linear) declares the layers before the heads with linear(name, n_in, n_out,
  -- bias). split(linear, x) computes q, k and v with linear(name, x), each [B, H, T, D].
  heads = nil,
  out = "out_proj", out_bias = nil,  -- false if there is no bias
  mlp = { "fc_in", "fc_out" },
  attention_scale = nil,
  residual_init = 1,  -- a factor of the deviation of the layers at the end of a branch
  is_parallel = false,  -- whether attention and the feed-forward layer read the same, after ln_1
  window = function() end,  -- the window of layer i, or nil
  head_bias = false,
}

--- Heads of three layers: q_proj, k_proj and v_proj.
local function separate_heads(width, n_heads)
  return {
    add = function(linear)
      for _, name in ipairs { "k_proj", "v_proj", "q_proj" } do
        linear(name, width, width, false)
      end
    end,
    split = function(linear, x)
      local function heads(name) return blocks.split_heads(linear(name, x), n_heads) end
      return heads "q_proj", heads "k_proj", heads "v_proj"
    end,
  }
end

local function rope(c, f)
  return rotary.settings(c.model_type,
    { rope_theta = 10000, max_position_embeddings = c[f.positions] }, f.rotary_size)
end

local function check(c, f)
  if f.width % f.n_heads ~= 0 then
    fail("%s: %d elements cannot be split into %d heads", c.model_type, f.width, f.n_heads)
  end
  if not f.rotary_size then return end
  if f.rotary_size > f.width / f.n_heads then
    fail("%s: rotary_dim (%d) exceeds the size of a head, %d", c.model_type, f.rotary_size,
      f.width / f.n_heads)
  end
  rope(c, f)
end

local function add_parameters(c, f, add)
  local normal, width = blocks.normal(c.initializer_range), f.width
  local last = blocks.normal(c.initializer_range * f.residual_init)
  local inner = f.inner or 4 * width
  add("transformer.wte.weight", { c.vocab_size, width }, normal)
  if not f.rotary_size then
    add("transformer.wpe.weight", { c[f.positions], width }, normal)
  end
  for i = 0, f.n_layers - 1 do
    local block = ("transformer.h.%d."):format(i)
    local attention = block .. f.attention .. "."
    blocks.add_layer_norm(add, block .. "ln_1", width)
    f.heads.add(function(name, n_in, n_out, bias)
      blocks.add_linear(add, attention .. name, n_in, n_out, normal, bias)
    end)
    blocks.add_linear(add, attention .. f.out, width, width, last, f.out_bias)
    if not f.is_parallel then blocks.add_layer_norm(add, block .. "ln_2", width) end
    blocks.add_linear(add, block .. "mlp." .. f.mlp[1], width, inner, normal)
    blocks.add_linear(add, block .. "mlp." .. f.mlp[2], inner, width, last)
  end
  blocks.add_layer_norm(add, "transformer.ln_f", width)
  if not c.tie_word_embeddings then add("lm_head.weight", { c.vocab_size, width }, normal) end
  if f.head_bias then add("lm_head.bias", { c.vocab_size }, blocks.zeros) end
end

local function new_forward(c, f)
  local mlp = blocks.new_mlp(blocks.activation(c.model_type, c.activation_function),
    { "." .. f.mlp[1], "." .. f.mlp[2] })
  local settings = f.rotary_size and rope(c, f)

  local function attend(params, name, x, angles, mask, o)
    local q, k, v = f.heads.split(function(part, y)
      return blocks.linear(params, name .. "." .. part, y, o)
    end, x)
    if angles then
      q, k = rotary.turn_neighbours(q, unpack(angles)), rotary.turn_neighbours(k, unpack(angles))
    end
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v, { seen = mask, scale = f.attention_scale,
      dropout = f.attention_dropout, enable_gqa = k:size(1) < q:size(1) }, o)
    return blocks.dropout(blocks.linear(params, name .. "." .. f.out, y, o), f.residual_dropout, o)
  end

  local function layer(params, block, x, angles, mask, o)
    local function norm(name, y)
      return blocks.layer_norm(params, block .. name, y, c.layer_norm_epsilon)
    end
    local y = norm("ln_1", x)
    x = x + attend(params, block .. f.attention, y, angles, mask, o)
    if not f.is_parallel then y = norm("ln_2", x) end
    return x + blocks.dropout(mlp(params, block .. "mlp", y, o), f.residual_dropout, o)
  end

  return function(params, inputs, o)
    blocks.check_length(c, f.positions, o, inputs.input_ids)
    local x = blocks.embedding(params, "transformer.wte", inputs.input_ids)
    if not settings then
      x = x + blocks.position_embedding(params, "transformer.wpe", inputs, o, inputs.input_ids)
    end
    x = blocks.dropout(x, f.embedding_dropout, o)
    local angles = settings and { rotary.angles(settings, inputs, o, x) }
    local mask_of = masks.by_window(inputs, o, x, { plain_dropout = f.attention_dropout })
    for i = 0, f.n_layers - 1 do
      x = nn.block(layer, params, ("transformer.h.%d."):format(i), x, angles, mask_of(f.window(i)),
        o)
    end
    return blocks.layer_norm(params, "transformer.ln_f", x, c.layer_norm_epsilon)
  end
end

--- Returns a family. A row has the fields of a family and `facts(c)`.
return function(row)
  local family = { base_model_prefix = "transformer",
    inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" } }
  for key, value in pairs(row) do family[key] = value end

  local function facts_of(c)
    local facts = setmetatable(row.facts(c), { __index = shared })
    facts.heads = facts.heads or separate_heads(facts.width, facts.n_heads)
    return facts
  end

  function family.check(c)
    if row.check then row.check(c) end
    check(c, facts_of(c))
  end

  function family.add_parameters(c, add) add_parameters(c, facts_of(c), add) end

  local head = blocks.tied_head "transformer.wte.weight"
  function family.head(c) return head(c), facts_of(c).head_bias and "lm_head.bias" or nil end

  function family.new_forward(c) return new_forward(c, facts_of(c)) end

  return family
end
