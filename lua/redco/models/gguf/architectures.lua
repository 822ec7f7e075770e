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
---   convert      for parts: function(tensor, config) -> the tensor of Hugging Face, with its rows
---                moved, because the functions also get blocks of quantized numbers; or a number
---                that is added
---   transposed   parts whose matrices Hugging Face has as [in, out]
---   n_experts    the name of the number of experts in the configuration
---   fields       the rest of the configuration (fields.lua)
---   divides      whether positions may have a divisor for each pair, a tensor
---   variants     rows to use instead where is_variant(reader)
---   like         other model types that are written as this one
---   settle       function(c): puts what a file says into a complete configuration before it is
---                written
--- The rows are used in both directions: to read files, and to write them.
local convert = require "redco.models.gguf.convert"
local fail = require "redco.fail"
local fields = require "redco.models.gguf.fields"

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
  convert = {}, transposed = {}, fields = {},
}

local attention_bias = fields.presence("attention_bias", "blk.0.attn_q.bias")
local mlp_bias = fields.presence("mlp_bias", "blk.0.ffn_up.bias")

local rows = {}

local mixtral = merged(decoder, {
  model_type = "mixtral", convert = convert.neighbours_of_heads, divides = true,
  of_layer = merged(attention, { ffn_norm = "post_attention_layernorm",
    ffn_gate_inp = "block_sparse_moe.gate", ffn_gate_exps = "block_sparse_moe.experts.%d.w1",
    ffn_up_exps = "block_sparse_moe.experts.%d.w3",
    ffn_down_exps = "block_sparse_moe.experts.%d.w2" }),
  n_experts = "num_local_experts", fields = { fields.experts "num_local_experts" },
  is_variant = function(r) return r.number("expert_count", 0) > 1 end,
})

rows.llama = merged(decoder, {
  model_type = "llama", like = { mistral = true }, convert = convert.neighbours_of_heads,
  divides = true, fields = { attention_bias, mlp_bias }, variants = { mixtral },
})

rows.qwen2 = merged(decoder, { model_type = "qwen2" })

rows.qwen3 = merged(decoder, {
  model_type = "qwen3", of_layer = merged(attention, head_norms, mlp),
  fields = { attention_bias },
})

rows.qwen3moe = merged(decoder, {
  model_type = "qwen3_moe", of_layer = merged(attention, head_norms, experts),
  n_experts = "num_experts",
  fields = {
    attention_bias, fields.experts "num_experts",
    fields.count("expert_feed_forward_length", "moe_intermediate_size", function(c)
      return math.floor(c.intermediate_size / c.num_experts_per_tok)
    end),
    fields.constants { norm_topk_prob = true, decoder_sparse_step = 1 },
  },
})

rows.olmoe = merged(decoder, {
  model_type = "olmoe", of_layer = merged(attention, head_norms, experts),
  n_experts = "num_experts",
  fields = { attention_bias, fields.experts "num_experts",
    fields.constants { norm_topk_prob = false } },
})

rows.gemma2 = merged(decoder, {
  model_type = "gemma2", of_layer = merged(attention, mlp, four_norms),
  convert = convert.norms_from_one,
  fields = {
    attention_bias, fields.query_scale(46), fields.cap("attn_logit_softcapping", 50),
    fields.cap("final_logit_softcapping", 30), fields.windows(4096, 2),
    { read = function(r, c)
      local near = r.fraction("rope.freq_base_swa", c.rope_theta)
      if near ~= c.rope_theta then
        fail("%s: %s is %s, which is not supported, only %s", r.path,
          r.name "rope.freq_base_swa", near, c.rope_theta)
      end
    end },
  },
})

rows.gemma3 = merged(decoder, {
  model_type = "gemma3_text", of_layer = merged(attention, head_norms, mlp, four_norms),
  convert = convert.norms_from_one,
  fields = {
    attention_bias, fields.query_scale(62), fields.cap("final_logit_softcapping", 0),
    fields.windows(0, 6), fields.fraction("rope.freq_base_swa", "rope_local_base_freq", 10000),
  },
})

rows.phi3 = merged(decoder, {
  model_type = "phi3", rotary = "part", has_head_dim = false,
  of_layer = { attn_norm = "input_layernorm", attn_qkv = "self_attn.qkv_proj",
    attn_output = "self_attn.o_proj", ffn_norm = "post_attention_layernorm",
    ffn_up = "mlp.gate_up_proj", ffn_down = "mlp.down_proj" },
  fields = {
    fields.count("rope.scaling.original_context_length", "original_max_position_embeddings",
      function(c) return c.max_position_embeddings end),
    fields.window,
  },
})

rows.smollm3 = merged(decoder, {
  model_type = "smollm3", convert = convert.neighbours_of_heads, divides = true,
  fields = { attention_bias, mlp_bias, fields.constants { no_rope_layer_interval = 4 } },
})

rows.granite = merged(decoder, {
  model_type = "granite", has_head_dim = false, convert = convert.neighbours_of_heads,
  divides = true,
  fields = {
    attention_bias, mlp_bias, fields.fraction("logit_scale", "logits_scaling"),
    fields.scale("residual_scale", "residual_multiplier", 1),
    fields.scale("embedding_scale", "embedding_multiplier", 1),
    fields.scale("attention.scale", "attention_multiplier", function(c)
      return 1 / math.sqrt(c.hidden_size / c.num_attention_heads)
    end),
    { read = function(r)
      if not r.flag("rope.scaling.finetuned", true) then
        fail("%s: %s is false, which is not supported: layers without positions", r.path,
          r.name "rope.scaling.finetuned")
      end
    end },
  },
})

rows.olmo2 = merged(decoder, {
  model_type = "olmo2", fields = { attention_bias },
  of_layer = merged(attention, head_norms, mlp,
    { post_attention_norm = "post_attention_layernorm",
      post_ffw_norm = "post_feedforward_layernorm" }),
})

-- OLMo 2 has no norms before attention and the feed-forward layer.
rows.olmo2.of_layer.attn_norm, rows.olmo2.of_layer.ffn_norm = nil, nil

rows.starcoder2 = merged(decoder, {
  model_type = "starcoder2", eps = { "attention.layer_norm_epsilon", "norm_epsilon" },
  of_layer = merged(attention, { ffn_norm = "post_attention_layernorm", ffn_up = "mlp.c_fc",
    ffn_down = "mlp.c_proj" }),
  fields = { fields.constants { hidden_act = "gelu_pytorch_tanh" },
    fields.presence("use_bias", "blk.0.ffn_up.bias") },
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
  fields = { fields.constants { activation_function = "gelu_new" } },
})
rows.gpt2.kv_heads, rows.gpt2.rotary = nil, nil

-- The shared row of BLOOM and its followers. Falcon's `attn_norm_2` is the norm of attention.
local after_bloom = merged(decoder, {
  layers = "transformer.h.",
  of_layer = { attn_norm = "input_layernorm", attn_qkv = "self_attention.query_key_value",
    attn_output = "self_attention.dense", ffn_norm = "post_attention_layernorm",
    ffn_up = "mlp.dense_h_to_4h", ffn_down = "mlp.dense_4h_to_h" },
  others = { token_embd = "transformer.word_embeddings", output_norm = "transformer.ln_f",
    token_embd_norm = "transformer.word_embeddings_layernorm", output = "lm_head" },
  eps = { "attention.layer_norm_epsilon", "layer_norm_epsilon" }, has_head_dim = false,
})

local parallel = { read = function(r, c)
  c.alibi, c.parallel_attn, c.multi_query, c.activation = false, true, true, "gelu"
  c.bias = r.has "blk.0.attn_qkv.bias"
  local n_norms = r.has "blk.0.attn_norm_2.weight" and 2 or 1
  c.new_decoder_architecture = c.num_kv_heads > 1 or n_norms == 2
  c.num_ln_in_parallel_attn = n_norms
end }

local falcon = merged(after_bloom, {
  model_type = "falcon", inner = "ffn_hidden_size", kv_heads = "num_kv_heads",
  convert = { attn_qkv = convert.groups_together }, fields = { parallel },
  settle = function(c)
    if c.multi_query and not c.new_decoder_architecture then c.num_kv_heads = 1 end
  end,
})
local falcon_with_two_norms = merged(falcon, {
  of_layer = merged(after_bloom.of_layer, { attn_norm = "ln_mlp", attn_norm_2 = "ln_attn" }),
  is_variant = function(r) return r.has "blk.0.attn_norm_2.weight" end,
})

rows.falcon = merged(falcon, { variants = { falcon_with_two_norms } })

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
  fields = {
    fields.constants { hidden_act = "gelu" },
    fields.presence("attention_bias", "blk.0.attn_qkv.bias"),
    fields.flag("use_parallel_residual", "use_parallel_residual", true),
    { read = function(_, c)
      c.rotary_pct, c.partial_rotary_factor = c.partial_rotary_factor, nil
      c.rotary_emb_base, c.rope_theta = c.rope_theta, nil
    end },
  },
})
rows.gptneox.kv_heads = nil

return rows
