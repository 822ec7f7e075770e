--- Decoders built as LLaMA is: norms, rotary positions, groups of heads that share keys and values,
--- feed-forward layers. A family is a row of facts.
local attention = require "redco.models.layers.llama_attention"
local blocks = require "redco.models.layers.blocks"
local experts = require "redco.models.layers.experts"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local new_mlp = require "redco.models.layers.llama_mlp"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local torch = require "redco.torch"

-- The facts of LLaMA. The function `facts(c)` of another family may change them.
local llama = {
  norm = norms.rms,
  eps = "rms_norm_eps",  -- the key of the configuration, or the number
  -- The norms before and after attention and the feed-forward layer.
  norms = { "input_layernorm", nil, "post_attention_layernorm", nil },
  first_norm = nil,  -- of the embeddings
  last_norm = "norm",
  is_parallel = false,  -- whether attention and the feed-forward layer both read the first norm
  qkv_bias = false,
  o_bias = false,
  o_name = "o_proj",
  o_range = nil,  -- the deviation of new weights of `o_name`, if not initializer_range
  mlp_bias = false,
  head_bias = false,
  joins_qkv = false,  -- whether q, k and v are one projection
  joins_gate = false,  -- whether gate and up are one projection
  joined_name = nil,  -- the name of that projection, if not gate_up_proj
  mlp_names = { "gate_proj", "up_proj", "down_proj" },  -- two, if no gate
  mlp_name = "mlp",
  gate_scale = 1,  -- a factor of the output of the gate's projection
  mlp_scale = 1,  -- a factor of the output of the feed-forward layer
  experts = nil,  -- function(i): another feed-forward layer i, like a mixture of experts.lua
  activation = "hidden_act",  -- the key of the configuration, or the name
  inner = nil,  -- the size of the feed-forward layer, if not intermediate_size
  -- Norms of q and k: of each "head" with the same weights or its "own", or of the "projection".
  head_norms = nil,
  head_norm = nil,  -- the kind of these norms, if not `norm`
  head_norm_names = { "q_norm", "k_norm" },
  turns_first = false,  -- whether norms of heads are after the positions
  embedding_range = nil,  -- the deviation of new embeddings, if not initializer_range
  embedding_scale = 1,
  rounds_embedding_scale = false,  -- to the dtype of the embeddings
  residual_scale = 1,
  attention_scale = nil,
  softcap = nil,  -- of the scores
  has_sinks = false,  -- whether each head has one more score, which takes its share of attention
  logits_scale = 1,
  embedding_dropout = 0,
  residual_dropouts = { 0, 0 },  -- of the outputs of attention and the feed-forward layer
  clamp = nil,  -- the largest absolute value of elements of q, k and v
  window = function() end,  -- the window of layer i, or nil
  reach = nil,  -- function(window): tokens see both sides, in a window up to this distance
  chunk = function() end,  -- the length of the chunks within which layer i attends, or nil
  rope = function(_, whole) return whole end,  -- settings of the positions of layer i, or nil
  turn = rotary.turn_halves,  -- how pairs of a head are turned
  axes = nil,  -- which of several positions turns each pair (rotary.angles)
  -- function(inputs, o, x, rope): a factor of q by position, [B or 1, 1, T, 1], or nil
  query_scale = nil,
  attention = attention,
  is_gated = false,  -- whether each head of q has a gate for the output of attention
  -- function(i, attention): the layer that replaces attention in layer i, or nil. It has the same
  -- fields as `attention`: `name`, add_parameters(name, linear, norm, add) and forward(params,
  -- name, x, angles, mask, o). mask.kept has the factors of masks.kept.
  mixer = function() end,
}

-- The defaults of configurations, unless the row of a family has others.
local defaults = {
  hidden_size = 4096,
  num_hidden_layers = 32,
  num_attention_heads = 32,
  initializer_range = 0.02,
  rope_theta = 10000,
  attention_dropout = 0,
  tie_word_embeddings = false,
}
local optional = { "num_key_value_heads", "head_dim", "rope_scaling", "rope_parameters",
  "original_max_position_embeddings", "is_causal" }

-- Returns function(i) -> the layer that mixes tokens in layer i, and whether it replaces attention.
local function mixers_of(c, facts)
  local ordinary = { name = "self_attn", forward = facts.attention.new(c, facts) }
  function ordinary.add_parameters(...) facts.attention.add_parameters(c, facts, ...) end
  return function(i)
    local mixer = facts.mixer(i, ordinary)
    return mixer or ordinary, mixer ~= nil
  end
end

-- Returns function(i) -> the feed-forward layer of layer i.
local function mlps_of(c, facts)
  local mlp
  return function(i)
    local own = facts.experts and facts.experts(i)
    if own then return own end
    mlp = mlp or new_mlp(c, facts)
    return mlp
  end
end

local function add_parameters(c, facts, add)
  local normal, width, mlp_of = blocks.normal(c.initializer_range), c.hidden_size, mlps_of(c, facts)
  local mixer_of = mixers_of(c, facts)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  local function norm(name, norm_sizes, kind) (kind or facts.norm).add(add, name, norm_sizes) end
  add("model.embed_tokens.weight", { c.vocab_size, width },
    blocks.normal_but_padding(c, facts.embedding_range or c.initializer_range), "embedding")
  for i = 0, c.num_hidden_layers - 1 do
    local layer, mlp = ("model.layers.%d."):format(i), mlp_of(i)
    local mixer = mixer_of(i)
    mixer.add_parameters(layer .. mixer.name, linear, norm, add)
    mlp.add_parameters(layer .. (mlp.name or "mlp"), linear, add)
    for k = 1, 4 do
      if facts.norms[k] then norm(layer .. facts.norms[k], { width }) end
    end
  end
  norm("model." .. facts.last_norm, { width })
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, width }, normal, "head")
  end
  if facts.head_bias then add("lm_head.bias", { c.vocab_size }, blocks.zeros) end
end

local function new_forward(c, facts)
  local mixer_of, mlp_of = mixers_of(c, facts), mlps_of(c, facts)
  local padding_row, whole = blocks.padding_row(c), rotary.settings(c.model_type, c, rotary.size(c))
  whole.axes = facts.axes
  local mixers, mlps, ropes, has_states = {}, {}, {}, false
  for i = 0, c.num_hidden_layers - 1 do
    local has_state
    mixers[i], has_state = mixer_of(i)
    mlps[i], ropes[i], has_states = mlp_of(i), facts.rope(i, whole), has_states or has_state
  end

  local function embedded(params, ids, o)
    local x = blocks.embedding(params, "model.embed_tokens", ids, padding_row)
    local scale = facts.embedding_scale
    if facts.rounds_embedding_scale then
      scale = torch.tensor(scale, { dtype = x.dtype }):item()
    end
    if scale ~= 1 then x = x * scale end
    return blocks.dropout(x, facts.embedding_dropout, o)
  end

  return function(params, inputs, o)
    local x = embedded(params, inputs.input_ids, o)
    if inputs.spliced then x = inputs.spliced(x) end
    local mask_of = masks.by_window(inputs, o, x, { reach = facts.reach,
      plain_dropout = not facts.softcap and not facts.has_sinks and c.attention_dropout or nil })
    local angles, routers = {}, { numbers = {} }
    local function angles_of(rope)
      local key = rope or "none"
      if not angles[key] then
        angles[key] = rope and { rotary.angles(rope, inputs, o, x) } or {}
        angles[key].query_scale = facts.query_scale and facts.query_scale(inputs, o, x, rope)
      end
      return angles[key]
    end
    local kept = has_states and masks.kept(inputs, o, x) or nil
    local function mask_for(i)
      local mask = mask_of(facts.window(i), facts.chunk(i))
      mask.kept = kept
      return mask
    end
    local function norm(name, y) return facts.norm.apply(params, name, y, facts.eps) end
    local function before(layer, k, y)
      return facts.norms[k] and norm(layer .. facts.norms[k], y) or y
    end
    -- Returns the output of attention (k = 1) or of the feed-forward layer (3), ready to be added.
    local function added(layer, k, y, logits, numbers)
      y = blocks.dropout(y, facts.residual_dropouts[(k + 1) / 2], o)
      if facts.norms[k + 1] then y = norm(layer .. facts.norms[k + 1], y) end
      return facts.residual_scale ~= 1 and y * facts.residual_scale or y, logits, numbers
    end
    local function apply_layer(i, input, turn, mask)
      local layer, mixer, mlp = ("model.layers.%d."):format(i), mixers[i], mlps[i]
      local y = before(layer, 1, input)
      local sum = input + added(layer, 1,
        mixer.forward(params, layer .. mixer.name, y, turn, mask, o))
      if not facts.is_parallel then y = before(layer, 3, sum) end
      local fed, logits, numbers = added(layer, 3,
        mlp.forward(params, layer .. (mlp.name or "mlp"), y, o))
      return sum + fed, logits, numbers
    end
    if facts.first_norm then x = norm("model." .. facts.first_norm, x) end
    for i = 0, c.num_hidden_layers - 1 do
      local logits, numbers
      x, logits, numbers = nn.block(apply_layer, i, x, angles_of(ropes[i]),
        mask_for(i))
      routers[#routers + 1], routers.numbers[#routers.numbers + 1] = logits, numbers
      if inputs.after_layer then x = inputs.after_layer(i, x) end
    end
    return norm("model." .. facts.last_norm, x), routers
  end
end

local function check(c, n_experts, n_chosen)
  blocks.check_multiple(c, "num_attention_heads", "num_key_value_heads")
  local has_experts = n_experts and c[n_experts] > 0
    and (c.first_k_dense_replace or 0) < c.num_hidden_layers
  if has_experts and c[n_chosen] > c[n_experts] then
    fail("%s: %s (%d) exceeds %s (%d)", c.model_type, n_chosen, c[n_chosen], n_experts,
      c[n_experts])
  end
  rotary.settings(c.model_type, c, rotary.size(c))
end

-- Returns a function of the routers' loss and its factor, if the configuration asks for the loss.
local function router_loss(row, c)
  if not row.n_experts or not c.output_router_logits then return end
  return function(routers, attention_mask)
    return experts.balance(routers, attention_mask), c.router_aux_loss_coef
  end
end

--- Returns a family. A row has the fields of a family, `facts(c)`, `complete(c)`, rope_type_key if
--- transformers calls it otherwise, and of mixtures n_experts and n_chosen: the keys of how many
--- experts there are and are chosen (by default num_experts_per_tok).
return function(row)
  local family = {
    base_model_prefix = "model", takes_features = true,
    defaults = {}, optional = { unpack(optional) },
    inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
    -- Buffers that old checkpoints store among the weights.
    ignored = { "%.rotary_emb%.inv_freq$" },
  }
  for key, value in pairs(row) do
    if key ~= "defaults" and key ~= "optional" then family[key] = value end
  end
  for _, list in ipairs { defaults, row.defaults } do
    for key, value in pairs(list) do family.defaults[key] = value end
  end
  if not family.defaults.partial_rotary_factor then
    -- transformers rotates whole heads, or fails with other values.
    family.only = { partial_rotary_factor = 1 }
    for key, value in pairs(row.only or {}) do family.only[key] = value end
  end
  for _, key in ipairs(row.optional or {}) do table.insert(family.optional, key) end

  local function facts_of(c)
    local facts = setmetatable(row.facts and row.facts(c) or {}, { __index = llama })
    -- Version 5 of transformers reads this key for all decoders.
    if c.is_causal == false and not facts.reach then
      facts.reach = function(window) return window end
    end
    if type(facts.eps) == "string" then facts.eps = c[facts.eps] end
    return facts
  end

  function family.complete(c, is_file)
    if row.complete then row.complete(c, is_file) end
    rotary.complete(c)
    if row.rope_type_key and c.rope_scaling then
      c.rope_scaling[row.rope_type_key], c.rope_scaling.rope_type = c.rope_scaling.rope_type, nil
    end
    c.num_key_value_heads = c.num_key_value_heads or c.num_attention_heads
  end

  function family.check(c)
    check(c, row.n_experts, row.n_chosen or "num_experts_per_tok")
    if row.check then row.check(c) end
  end

  function family.add_parameters(c, add) add_parameters(c, facts_of(c), add) end

  local head = blocks.tied_head "model.embed_tokens.weight"
  function family.head(c) return head(c), facts_of(c).head_bias and "lm_head.bias" or nil end

  function family.new_forward(c) return new_forward(c, facts_of(c)) end

  function family.new_head_input(c)
    local scale = facts_of(c).logits_scale
    return scale ~= 1 and function(_, hidden) return hidden * scale end
  end

  function family.router_loss(c) return router_loss(row, c) end

  return family
end
