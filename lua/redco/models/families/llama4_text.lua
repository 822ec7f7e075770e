--- Llama 4 (Meta, 2025), as Hugging Face's `Llama4ForCausalLM`: LLaMA with an expert for each token
--- beside one for all, attention within chunks, and layers without positions.
local attention = require "redco.models.layers.llama_attention"
local blocks = require "redco.models.layers.blocks"
local experts = require "redco.models.layers.experts"
local fail = require "redco.fail"
local native = require "redco.native"
local new_family = require "redco.models.kinds.llama_like"
local new_mlp = require "redco.models.layers.llama_mlp"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"
local ties = require "redco.models.ties"

local llama4 = {
  model_type = "llama4_text",
  models = "Llama 4 Scout, Maverick",
  remarks = "experts",
  architecture = "Llama4ForCausalLM",
  tasks = { features = tasks.features "Llama4Text" },
  defaults = {
    vocab_size = 202048,
    hidden_size = 5120,
    intermediate_size = 8192,
    intermediate_size_mlp = 16384,
    num_hidden_layers = 48,
    num_attention_heads = 40,
    num_key_value_heads = 8,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-5,
    rope_theta = 500000,
    attention_bias = false,
    num_experts_per_tok = 1,
    num_local_experts = 16,
    interleave_moe_layer_step = 1,
    use_qk_norm = true,
    no_rope_layer_interval = 4,
    attention_chunk_size = 8192,
    attn_temperature_tuning = true,
    floor_scale = 8192,
    attn_scale = 0.1,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads", "head_dim", "attention_chunk_size" },
  -- Model folders contain the last keys, which transformers does not read.
  optional = { "layer_types", "no_rope_layers", "moe_layers", "output_router_logits",
    "router_aux_loss_coef", "router_jitter_noise", "for_llm_compressor" },
  n_experts = "num_local_experts",
}

-- Completes lists with an entry for each layer, or of the layers with experts.
function llama4.complete(c, is_file)
  -- Version 4 of transformers does not read attention_bias.
  if is_file and (ties.version(c) or 0) < 5 then c.attention_bias = false end
  for _, key in ipairs { "no_rope_layers", "moe_layers" } do
    if c[key] ~= nil and type(c[key]) ~= "table" then
      fail("llama4_text: %s must be a list, got %s", key, c[key])
    end
  end
  local given = c.no_rope_layers or {}
  if #given > 0 and #given < c.num_hidden_layers then
    fail("llama4_text: no_rope_layers has %d entries, but num_hidden_layers is %d", #given,
      c.num_hidden_layers)
  end
  if #given == 0 then
    c.no_rope_layers = {}
    for i = 1, c.num_hidden_layers do
      c.no_rope_layers[i] = i % c.no_rope_layer_interval ~= 0 and 1 or 0
    end
  end
  if not c.moe_layers then
    c.moe_layers = {}
    for i = c.interleave_moe_layer_step, c.num_hidden_layers, c.interleave_moe_layer_step do
      table.insert(c.moe_layers, i - 1)
    end
  end
  if c.layer_types then return end
  c.layer_types = {}
  for i = 1, c.num_hidden_layers do
    local is_chunked = c.no_rope_layers[i] ~= 0 and c.attention_chunk_size
    c.layer_types[i] = is_chunked and "chunked_attention" or "full_attention"
  end
end

function llama4.check(c)
  for _, kind in ipairs(c.layer_types) do
    if kind == "chunked_attention" and not c.attention_chunk_size then
      fail "llama4_text: layer_types have chunked_attention, but there is no attention_chunk_size"
    end
  end
end

-- Returns attention that normalises heads only in layers with rotary positions.
local function new_attention(c)
  return setmetatable({
    new = function(_, facts)
      local plain = attention.new(c, facts)
      if not c.use_qk_norm then return plain end
      local normed = attention.new(c, setmetatable({
        head_norms = "head", head_norm = norms.rms_plain, turns_first = true,
      }, { __index = facts }))
      return function(params, name, x, angles, mask, o)
        return (angles[1] and normed or plain)(params, name, x, angles, mask, o)
      end
    end,
  }, { __index = attention })
end

-- Returns function(i) -> the feed-forward layer of layer i.
local function new_layers(c)
  local function route(params, name, x, o)
    -- Each model shard chooses among all experts.
    local logits = native.whole_on_shards(blocks.linear(params, name .. ".router", x, o))
    local top, numbers = unpack { logits:topk(c.num_experts_per_tok, -1) }
    return logits, top:to(blocks.wide_dtype(top)):sigmoid(), numbers
  end
  local names = { "gate_proj", "up_proj", "down_proj" }
  local mixture = experts.new(c, {
    n = c.num_local_experts, inner = c.intermediate_size, name = "feed_forward",
    router = "router", route = route, scales_inputs = true, names = names,
    stacked = { "experts.gate_up_proj", "experts.down_proj" }, is_transposed = true,
    shared = c.intermediate_size, shared_name = "shared_expert",
  })
  local dense = new_mlp(
    setmetatable({ intermediate_size = c.intermediate_size_mlp }, { __index = c }),
    { activation = "hidden_act", mlp_names = names, mlp_bias = false })
  dense.name = "feed_forward"
  local has_experts = {}
  for _, i in ipairs(c.moe_layers) do has_experts[i] = true end
  return function(i) return has_experts[i] and mixture or dense end
end

-- Returns function(inputs, o, x, rope) -> a factor of queries without rotary positions, by
-- position. Positions count padding on the left, as in transformers.
local function new_query_scale(c)
  return function(inputs, o, x, rope)
    if rope or not c.attn_temperature_tuning then return end
    local places = inputs.segment_ids and inputs.position_ids or blocks.places(o, x)
    local scale = ((places:float() + 1) / c.floor_scale):floor():log1p() * c.attn_scale + 1
    return scale:unsqueeze(1):unsqueeze(-1):to(x.dtype)
  end
end

function llama4.facts(c)
  return {
    turn = rotary.turn_neighbours, qkv_bias = c.attention_bias, o_bias = c.attention_bias,
    attention = new_attention(c), experts = new_layers(c), query_scale = new_query_scale(c),
    -- Despite the key's name, 0 means no positions.
    rope = function(i, whole) return c.no_rope_layers[i + 1] ~= 0 and whole or nil end,
    chunk = function(i)
      return c.layer_types[i + 1] == "chunked_attention" and c.attention_chunk_size or nil
    end,
  }
end

return new_family(llama4)
