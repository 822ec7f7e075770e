--- Zamba2 (Zyphra, 2024), as Hugging Face's `Zamba2ForCausalLM`: layers of Mamba-2. In front of
--- some stands a transformer layer that also reads the embeddings. These layers share
--- num_mem_blocks sets of weights in turn, and each has adapters of its own.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local mamba2_layer = require "redco.models.states.mamba2_layer"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local steps = require "redco.models.states.steps"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local zamba2 = {
  model_type = "zamba2",
  models = "Zamba2 1.2B, 2.7B, 7B",
  remarks = "states; without `use_long_context`",
  inputs = { "input_ids", "attention_mask", "position_ids" },
  architecture = "Zamba2ForCausalLM",
  base_model_prefix = "model",
  tasks = tasks.of_decoder("Zamba2", {}),
  head = blocks.tied_head "model.embed_tokens.weight",
  defaults = {
    vocab_size = 32000,
    max_position_embeddings = 4096,
    hidden_size = 2560,
    num_hidden_layers = 54,
    mamba_d_state = 64,
    mamba_d_conv = 4,
    mamba_expand = 2,
    mamba_ngroups = 1,
    n_mamba_heads = 8,
    time_step_min = 0.001,
    time_step_max = 0.1,
    time_step_floor = 1e-4,
    add_bias_linear = false,
    hidden_act = "gelu",
    num_attention_heads = 32,
    attention_dropout = 0,
    num_mem_blocks = 1,
    use_shared_attention_adapter = false,
    adapter_rank = 128,
    use_mem_rope = false,
    rope_theta = 10000,
    initializer_range = 0.02,
    rms_norm_eps = 1e-5,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "pad_token_id" },
  -- transformers computes some of these keys and ignores the others.
  optional = { "layers_block_type", "layer_types", "intermediate_size", "num_key_value_heads",
    "rope_scaling", "rope_parameters", "attention_head_dim", "attention_hidden_size", "head_dim",
    "kv_channels", "mamba_headdim", "num_query_groups", "time_step_limit", "use_conv_bias" },
  only = { use_long_context = false },
  layer_kinds = { "mamba", "linear_attention", "hybrid" },
  -- Copies of weights that layers share.
  ignored = { "%.shared_transformer%.", "%.rotary_emb%.inv_freq$" },
}

-- Returns the numbers of the layers with attention, from 0.
local function hybrid_layers(c)
  local list = {}
  for i, kind in ipairs(c.layers_block_type) do
    if kind == "hybrid" then list[#list + 1] = i - 1 end
  end
  return list
end

-- Returns the kinds of the layers of Zamba2 2.7B.
local function usual_kinds()
  local list, is_hybrid = {}, {}
  for _, i in ipairs { 6, 12, 18, 24, 30, 36, 42, 47, 51 } do is_hybrid[i] = true end
  for i = 0, 53 do list[i + 1] = is_hybrid[i] and "hybrid" or "mamba" end
  return list
end

function zamba2.complete(c)
  rotary.complete(c)
  c.layers_block_type = c.layers_block_type or c.layer_types or usual_kinds()
  c.layer_types = c.layers_block_type
  c.intermediate_size = c.intermediate_size or 4 * c.hidden_size
  c.num_key_value_heads = c.num_key_value_heads or c.num_attention_heads
  c.head_dim = math.floor(2 * c.hidden_size / c.num_attention_heads)
end

function zamba2.check(c)
  if #c.layers_block_type ~= c.num_hidden_layers then
    fail("zamba2: layers_block_type has %d entries, but num_hidden_layers is %s",
      #c.layers_block_type, c.num_hidden_layers)
  end
  if 2 * c.hidden_size % c.num_attention_heads ~= 0 then
    fail("zamba2: 2 * hidden_size (%d) is not a multiple of num_attention_heads (%d)",
      2 * c.hidden_size, c.num_attention_heads)
  end
  if c.mamba_expand * c.hidden_size % c.n_mamba_heads ~= 0 then
    fail("zamba2: mamba_expand * hidden_size (%g) is not a multiple of n_mamba_heads (%d)",
      c.mamba_expand * c.hidden_size, c.n_mamba_heads)
  end
  blocks.check_multiple(c, "num_attention_heads", "num_key_value_heads")
  blocks.check_multiple(c, "n_mamba_heads", "mamba_ngroups")
  blocks.activation("zamba2", c.hidden_act)
end

local function new_mamba(c)
  return mamba2_layer(c, {
    n_heads = c.n_mamba_heads, inner = c.mamba_expand * c.hidden_size, n_groups = c.mamba_ngroups,
    n_states = c.mamba_d_state, kernel = c.mamba_d_conv, conv_bias = true,
    in_bias = c.add_bias_linear, out_bias = c.add_bias_linear, activation = "silu", eps = 1e-5,
    least = c.time_step_min, most = math.huge, norm = "gated", dt_init = steps.init(c),
  })
end

-- Returns the layers with attention, {[i] = { name, number, is_first }}: `name` is the prefix of
-- the weights that they share.
local function shared_layers(c)
  local found, list = {}, hybrid_layers(c)
  for j, i in ipairs(list) do
    local first = list[(j - 1) % c.num_mem_blocks + 1]
    found[i] = { name = ("model.layers.%d.shared_transformer."):format(first), number = j - 1,
      is_first = i == first }
  end
  return found
end

local function sizes_of(c)
  return { q = c.num_attention_heads * c.head_dim, k = c.num_key_value_heads * c.head_dim,
    v = c.num_key_value_heads * c.head_dim }
end

function zamba2.add_parameters(c, add)
  local normal, width, mamba, shared = blocks.normal(c.initializer_range), c.hidden_size,
    new_mamba(c), shared_layers(c)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  local function adapter(name, n_in, n_out)
    linear(name .. ".0", n_in, c.adapter_rank, false)
    linear(name .. ".1", c.adapter_rank, n_out, false)
  end
  local function norm(name, size) norms.rms.add(add, name, { size }) end

  local function attention(own)
    norm(own .. "input_layernorm", 2 * width)
    for _, part in ipairs { "q", "k", "v" } do
      linear(own .. "self_attn." .. part .. "_proj", 2 * width, sizes_of(c)[part], false)
    end
    linear(own .. "self_attn.o_proj", sizes_of(c).q, width, false)
    norm(own .. "pre_ff_layernorm", width)
    linear(own .. "feed_forward.gate_up_proj", width, 2 * c.intermediate_size, c.add_bias_linear)
    linear(own .. "feed_forward.down_proj", c.intermediate_size, width, c.add_bias_linear)
  end

  -- The adapters of one layer.
  local function adapters(own, number)
    adapter(("%sfeed_forward.gate_up_proj_adapter_list.%d"):format(own, number), width,
      2 * c.intermediate_size)
    if not c.use_shared_attention_adapter then return end
    for _, part in ipairs { "q", "k", "v" } do
      adapter(("%sself_attn.linear_%s_adapter_list.%d"):format(own, part, number), 2 * width,
        sizes_of(c)[part])
    end
  end

  add("model.embed_tokens.weight", { c.vocab_size, width },
    blocks.normal_but_padding(c, c.initializer_range), "embedding")
  for i = 0, c.num_hidden_layers - 1 do
    local layer, own = ("model.layers.%d."):format(i), shared[i]
    if own then
      if own.is_first then attention(own.name) end
      adapters(own.name, own.number)
      linear(layer .. "linear", width, width, false)
      layer = layer .. "mamba_decoder."
    end
    norm(layer .. "input_layernorm", width)
    mamba.add_parameters(layer .. "mamba", linear, nil, add)
  end
  norm("model.final_layernorm", width)
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, width }, normal, "head")
  end
end

-- Returns function(params, layer, own, x, angles, mask, o), the transformer in front of a layer.
local function new_transformer(c)
  local activation = blocks.activation("zamba2", c.hidden_act)

  local function linear(params, name, x, o) return blocks.linear(params, name, x, o) end
  local function adapted(params, name, adapter, x, o)
    local less = linear(params, adapter .. ".0", x, o)
    return linear(params, name, x, o) + linear(params, adapter .. ".1", less, o)
  end

  local function project(params, own, part, x, o)
    local name = ("%sself_attn.%s_proj"):format(own.name, part)
    if not c.use_shared_attention_adapter then return linear(params, name, x, o) end
    return adapted(params, name,
      ("%sself_attn.linear_%s_adapter_list.%d"):format(own.name, part, own.number), x, o)
  end

  return function(params, layer, own, x, angles, mask, o)
    local function norm(name, y)
      return norms.rms.apply(params, own.name .. name, y, c.rms_norm_eps)
    end
    x = norm("input_layernorm", x)
    local q = blocks.split_heads(project(params, own, "q", x, o), c.num_attention_heads)
    local k = blocks.split_heads(project(params, own, "k", x, o), c.num_key_value_heads)
    local v = blocks.split_heads(project(params, own, "v", x, o), c.num_key_value_heads)
    if angles then
      q, k = rotary.turn_halves(q, unpack(angles)), rotary.turn_halves(k, unpack(angles))
    end
    if o.cache then k, v = o.cache:extend(layer .. "self_attn", k, v) end
    local y = blocks.attention(q, k, v, { seen = mask, scale = (c.head_dim / 2) ^ -0.5,
      dropout = c.attention_dropout,
      enable_gqa = c.num_key_value_heads < c.num_attention_heads }, o)
    y = norm("pre_ff_layernorm", linear(params, own.name .. "self_attn.o_proj", y, o))
    local name = own.name .. "feed_forward."
    local gate, up = unpack(adapted(params, name .. "gate_up_proj",
      name .. "gate_up_proj_adapter_list." .. own.number, y, o):chunk(2, -1))
    return linear(params, layer .. "linear",
      linear(params, name .. "down_proj", blocks.gated(activation, gate, up), o), o)
  end
end

function zamba2.new_forward(c)
  local mamba, transformer, shared, padding_row = new_mamba(c), new_transformer(c),
    shared_layers(c), blocks.padding_row(c)
  local rope = c.use_mem_rope and rotary.settings("zamba2", c, c.head_dim)

  return function(params, inputs, o)
    local embedded = blocks.embedding(params, "model.embed_tokens", inputs.input_ids, padding_row)
    local mask = masks.causal(inputs, o, embedded)
    mask.kept = masks.kept(inputs, o, embedded)
    local angles = rope and { rotary.angles(rope, inputs, o, embedded) }

    local function apply_layer(i, x, first)
      local layer, own, input = ("model.layers.%d."):format(i), shared[i], x
      if own then
        input = x + transformer(params, layer, own, torch.cat({ x, first }, -1), angles, mask, o)
        layer = layer .. "mamba_decoder."
      end
      input = norms.rms.apply(params, layer .. "input_layernorm", input, c.rms_norm_eps)
      return x + mamba.forward(params, layer .. "mamba", input, nil, mask, o)
    end

    local x = embedded
    for i = 0, c.num_hidden_layers - 1 do x = nn.block(apply_layer, i, x, embedded) end
    return norms.rms.apply(params, "model.final_layernorm", x, c.rms_norm_eps)
  end
end

return zamba2
