--- The architectures of GGUF files, by `general.architecture`. A row has:
---   model_type
---   layers       the beginning of the names of a layer's weights
---   of_layer     Hugging Face's names of the parts of a layer; %d is the number of an expert
---   others       and of the other tensors
---   eps          the key of the norms' epsilon, and its name in the configuration
---   inner, kv_heads, context   names in the configuration of the feed-forward layers' size, the
---                number of heads of keys, and the length of texts; nil for none
---   has_head_dim whether the configuration has the size of a head
---   rotary       "whole" or "part" of each head, or nil
---   convert      for parts: function(tensor, config) -> the tensor of Hugging Face. Matrices only
---                have their rows moved, because the functions also get blocks of quantized numbers
---   transposed   parts whose matrices Hugging Face has as [in, out]
---   n_experts    function(config) -> the number of experts
---   complete     function(reader, config): sets the rest of the configuration
---   variant      function(reader) -> the row to use instead, or nil
local convert = require "redco.models.gguf.convert"
local fail = require "redco.fail"
local json = require "redco.models.json"

-- Returns a new table with the entries of all.
local function merged(...)
  local result = {}
  for _, entries in ipairs { ... } do
    for key, value in pairs(entries) do result[key] = value end
  end
  return result
end

local attention = {
  attn_norm = "input_layernorm",
  attn_q = "self_attn.q_proj",
  attn_k = "self_attn.k_proj",
  attn_v = "self_attn.v_proj",
  attn_output = "self_attn.o_proj",
}
local head_norms = { attn_q_norm = "self_attn.q_norm", attn_k_norm = "self_attn.k_norm" }
local mlp = { ffn_norm = "post_attention_layernorm", ffn_gate = "mlp.gate_proj",
  ffn_up = "mlp.up_proj", ffn_down = "mlp.down_proj" }
local experts = { ffn_norm = "post_attention_layernorm", ffn_gate_inp = "mlp.gate",
  ffn_gate_exps = "mlp.experts.%d.gate_proj", ffn_up_exps = "mlp.experts.%d.up_proj",
  ffn_down_exps = "mlp.experts.%d.down_proj" }
local four_norms = { post_attention_norm = "post_attention_layernorm",
  ffn_norm = "pre_feedforward_layernorm", post_ffw_norm = "post_feedforward_layernorm" }

-- A decoder like LLaMA.
local decoder = {
  layers = "model.layers.",
  of_layer = merged(attention, mlp),
  others = { token_embd = "model.embed_tokens", output_norm = "model.norm", output = "lm_head" },
  eps = { "attention.layer_norm_rms_epsilon", "rms_norm_eps" },
  inner = "intermediate_size", kv_heads = "num_key_value_heads",
  context = "max_position_embeddings", has_head_dim = true, rotary = "whole",
  convert = {}, transposed = {},
}

local function set_attention_bias(r, c) c.attention_bias = r.has "blk.0.attn_q.bias" end

local function set_biases(r, c)
  set_attention_bias(r, c)
  c.mlp_bias = r.has "blk.0.ffn_up.bias"
end

-- Sets the number of experts, and of those that are chosen.
local function set_experts(r, c, name)
  c[name] = r.count "expert_count"
  c.num_experts_per_tok = r.count "expert_used_count"
  if c[name] > 4096 then
    fail("%s: %s is %d, expected at most 4096", r.path, r.name "expert_count", c[name])
  end
end

-- Whether layer i has a window: every one but the last of each `pattern`, or as a list says.
local function has_window(pattern, i)
  if type(pattern) == "number" then return pattern == 0 or i % pattern < pattern - 1 end
  local flag = nil
  if type(pattern) == "table" then flag = pattern[i + 1] end
  if type(flag) == "number" then return flag ~= 0 end
  return flag
end

-- Sets the window, 0 for none, and the layers that have it, by default every one but the last of
-- each `period`.
local function set_windows(r, c, window, period)
  local key = "attention.sliding_window_pattern"
  local pattern = r.value(key)
  if pattern == nil then pattern = period end
  c.sliding_window = window > 0 and r.count("attention.sliding_window", window) or nil
  c.layer_types = {}
  for i = 0, c.num_hidden_layers - 1 do
    local flag = window > 0 and has_window(pattern, i)
    if type(flag) ~= "boolean" then
      fail("%s: %s is a %s, expected a number, or a boolean for each of %d layers", r.path,
        r.name(key), type(pattern), c.num_hidden_layers)
    end
    c.layer_types[i + 1] = flag and "sliding_attention" or "full_attention"
  end
end

-- Gemma's largest models, known by their number of layers, scale queries in another way.
local function set_query_scale(c, n_layers_of_largest)
  c.query_pre_attn_scalar = c.num_hidden_layers == n_layers_of_largest
    and c.hidden_size / c.num_attention_heads or c.head_dim
  c.hidden_activation = "gelu_pytorch_tanh"
end

-- Sets a cap, of which 0 is none.
local function set_cap(r, c, key, default)
  local value = r.fraction(key, default)
  if value == 0 then return json.set_null(c, key) end
  c[key] = value
end

-- A scale, of which 0 is none.
local function scale(r, key, default)
  local value = r.fraction(key, 0)
  return value ~= 0 and value or default
end

local rows = {}

local mixtral = merged(decoder, {
  model_type = "mixtral", convert = convert.neighbours_of_heads,
  of_layer = merged(attention, { ffn_norm = "post_attention_layernorm",
    ffn_gate_inp = "block_sparse_moe.gate", ffn_gate_exps = "block_sparse_moe.experts.%d.w1",
    ffn_up_exps = "block_sparse_moe.experts.%d.w3",
    ffn_down_exps = "block_sparse_moe.experts.%d.w2" }),
  n_experts = function(c) return c.num_local_experts end,
  complete = function(r, c) set_experts(r, c, "num_local_experts") end,
})

rows.llama = merged(decoder, {
  model_type = "llama", convert = convert.neighbours_of_heads, complete = set_biases,
  variant = function(r) return r.number("expert_count", 0) > 1 and mixtral or nil end,
})

rows.qwen2 = merged(decoder, { model_type = "qwen2" })

rows.qwen3 = merged(decoder, {
  model_type = "qwen3", of_layer = merged(attention, head_norms, mlp),
  complete = set_attention_bias,
})

rows.qwen3moe = merged(decoder, {
  model_type = "qwen3_moe", of_layer = merged(attention, head_norms, experts),
  n_experts = function(c) return c.num_experts end,
  complete = function(r, c)
    set_attention_bias(r, c)
    set_experts(r, c, "num_experts")
    c.moe_intermediate_size = r.count("expert_feed_forward_length",
      math.floor(c.intermediate_size / c.num_experts_per_tok))
    c.norm_topk_prob, c.decoder_sparse_step = true, 1
  end,
})

rows.olmoe = merged(decoder, {
  model_type = "olmoe", of_layer = merged(attention, head_norms, experts),
  n_experts = function(c) return c.num_experts end,
  complete = function(r, c)
    set_attention_bias(r, c)
    set_experts(r, c, "num_experts")
    c.norm_topk_prob = false
  end,
})

rows.gemma2 = merged(decoder, {
  model_type = "gemma2", of_layer = merged(attention, mlp, four_norms),
  convert = convert.norms_from_one,
  complete = function(r, c)
    set_attention_bias(r, c)
    set_query_scale(c, 46)
    set_cap(r, c, "attn_logit_softcapping", 50)
    set_cap(r, c, "final_logit_softcapping", 30)
    set_windows(r, c, r.number("attention.sliding_window", 4096), 2)
    local near = r.fraction("rope.freq_base_swa", c.rope_theta)
    if near ~= c.rope_theta then
      fail("%s: %s is %s, which is not supported, only %s", r.path, r.name "rope.freq_base_swa",
        near, c.rope_theta)
    end
  end,
})

rows.gemma3 = merged(decoder, {
  model_type = "gemma3_text", of_layer = merged(attention, head_norms, mlp, four_norms),
  convert = convert.norms_from_one,
  complete = function(r, c)
    set_attention_bias(r, c)
    set_query_scale(c, 62)
    set_cap(r, c, "final_logit_softcapping", 0)
    set_windows(r, c, r.number("attention.sliding_window", 0), 6)
    c.rope_local_base_freq = r.fraction("rope.freq_base_swa", 10000)
  end,
})

rows.phi3 = merged(decoder, {
  model_type = "phi3", rotary = "part", has_head_dim = false,
  of_layer = { attn_norm = "input_layernorm", attn_qkv = "self_attn.qkv_proj",
    attn_output = "self_attn.o_proj", ffn_norm = "post_attention_layernorm",
    ffn_up = "mlp.gate_up_proj", ffn_down = "mlp.down_proj" },
  complete = function(r, c)
    c.original_max_position_embeddings =
      r.count("rope.scaling.original_context_length", c.max_position_embeddings)
    local window = r.number("attention.sliding_window", 0)
    c.sliding_window = window > 0 and r.count "attention.sliding_window" or nil
  end,
})

rows.smollm3 = merged(decoder, {
  model_type = "smollm3", convert = convert.neighbours_of_heads,
  complete = function(r, c)
    set_biases(r, c)
    c.no_rope_layer_interval = 4
  end,
})

rows.granite = merged(decoder, {
  model_type = "granite", has_head_dim = false, convert = convert.neighbours_of_heads,
  complete = function(r, c)
    set_biases(r, c)
    c.logits_scaling = r.fraction "logit_scale"
    c.residual_multiplier = scale(r, "residual_scale", 1)
    c.embedding_multiplier = scale(r, "embedding_scale", 1)
    c.attention_multiplier = scale(r, "attention.scale",
      1 / math.sqrt(c.hidden_size / c.num_attention_heads))
    if not r.flag("rope.scaling.finetuned", true) then
      fail("%s: %s is false, which is not supported: layers without positions", r.path,
        r.name "rope.scaling.finetuned")
    end
  end,
})

rows.olmo2 = merged(decoder, {
  model_type = "olmo2", complete = set_attention_bias,
  of_layer = merged(attention, head_norms, mlp,
    { post_attention_norm = "post_attention_layernorm",
      post_ffw_norm = "post_feedforward_layernorm" }),
})

rows.starcoder2 = merged(decoder, {
  model_type = "starcoder2", eps = { "attention.layer_norm_epsilon", "norm_epsilon" },
  of_layer = merged(attention, { ffn_norm = "post_attention_layernorm", ffn_up = "mlp.c_fc",
    ffn_down = "mlp.c_proj" }),
  complete = function(r, c)
    c.hidden_act, c.use_bias = "gelu_pytorch_tanh", r.has "blk.0.ffn_up.bias"
  end,
})

rows.gpt2 = merged(decoder, {
  model_type = "gpt2", layers = "transformer.h.",
  of_layer = { attn_norm = "ln_1", attn_qkv = "attn.c_attn", attn_output = "attn.c_proj",
    ffn_norm = "ln_2", ffn_up = "mlp.c_fc", ffn_down = "mlp.c_proj" },
  others = { token_embd = "transformer.wte", position_embd = "transformer.wpe",
    output_norm = "transformer.ln_f", output = "lm_head" },
  transposed = { attn_qkv = true, attn_output = true, ffn_up = true, ffn_down = true },
  eps = { "attention.layer_norm_epsilon", "layer_norm_epsilon" }, inner = "n_inner",
  has_head_dim = false,
  complete = function(_, c) c.activation_function = "gelu_new" end,
})
rows.gpt2.kv_heads, rows.gpt2.rotary = nil, nil

-- Of BLOOM and those that were built after it. Falcon's `attn_norm_2` is the norm of attention.
local after_bloom = merged(decoder, {
  layers = "transformer.h.",
  of_layer = { attn_norm = "input_layernorm", attn_qkv = "self_attention.query_key_value",
    attn_output = "self_attention.dense", ffn_norm = "post_attention_layernorm",
    ffn_up = "mlp.dense_h_to_4h", ffn_down = "mlp.dense_4h_to_h" },
  others = { token_embd = "transformer.word_embeddings", output_norm = "transformer.ln_f",
    token_embd_norm = "transformer.word_embeddings_layernorm", output = "lm_head" },
  eps = { "attention.layer_norm_epsilon", "layer_norm_epsilon" }, has_head_dim = false,
})

local function set_falcon(r, c)
  c.alibi, c.parallel_attn, c.multi_query, c.activation = false, true, true, "gelu"
  c.bias = r.has "blk.0.attn_qkv.bias"
  local n_norms = r.has "blk.0.attn_norm_2.weight" and 2 or 1
  c.new_decoder_architecture = c.num_kv_heads > 1 or n_norms == 2
  c.num_ln_in_parallel_attn = n_norms
end

local falcon = merged(after_bloom, {
  model_type = "falcon", inner = "ffn_hidden_size", kv_heads = "num_kv_heads",
  convert = { attn_qkv = convert.groups_together }, complete = set_falcon,
})
local falcon_with_two_norms = merged(falcon, {
  of_layer = merged(after_bloom.of_layer, { attn_norm = "ln_mlp", attn_norm_2 = "ln_attn" }),
})

rows.falcon = merged(falcon, {
  variant = function(r)
    return r.has "blk.0.attn_norm_2.weight" and falcon_with_two_norms or nil
  end,
})

rows.bloom = merged(after_bloom, {
  model_type = "bloom", inner = "n_inner", convert = { attn_qkv = convert.heads_together },
})
rows.bloom.kv_heads, rows.bloom.context, rows.bloom.rotary = nil, nil, nil

rows.gptneox = merged(decoder, {
  model_type = "gpt_neox", layers = "gpt_neox.layers.", rotary = "part", has_head_dim = false,
  of_layer = merged(after_bloom.of_layer, { attn_qkv = "attention.query_key_value",
    attn_output = "attention.dense" }),
  others = { token_embd = "gpt_neox.embed_in", output_norm = "gpt_neox.final_layer_norm",
    output = "embed_out" },
  eps = { "attention.layer_norm_epsilon", "layer_norm_eps" },
  convert = { attn_qkv = convert.heads_together },
  complete = function(r, c)
    c.hidden_act, c.attention_bias = "gelu", r.has "blk.0.attn_qkv.bias"
    c.use_parallel_residual = r.flag("use_parallel_residual", true)
    c.rotary_pct, c.partial_rotary_factor = c.partial_rotary_factor, nil
    c.rotary_emb_base, c.rope_theta = c.rope_theta, nil
  end,
})
rows.gptneox.kv_heads = nil

return rows
