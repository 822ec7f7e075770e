-- GGUF files of each architecture, written from small models: they open as those models.
local gguf_files = require "gguf_files"
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_close, expect_equal, expect_error =
  testing.test, testing.expect_close, testing.expect_equal, testing.expect_error

local path = os.tmpname() .. ".gguf"
local generator = torch.Generator(5)

-- How the converter stores tensors: functions of a tensor and the configuration.

local function neighbours(count_of)
  return function(t, c)
    local n = c[count_of]
    return t:view { n, 2, t:size(0) / n / 2, -1 }:transpose(1, 2):reshape(t.shape)
  end
end
local in_pairs = { attn_q = neighbours "num_attention_heads",
  attn_k = neighbours "num_key_value_heads" }

local function from_zero(t) return t + 1 end
local gemmas = {}
for _, part in ipairs { "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm",
  "attn_q_norm", "attn_k_norm", "output_norm" } do
  gemmas[part] = from_zero
end

local function transposed(t) return t:dim() == 2 and t:t():contiguous() or t end

-- q, k and v of each head, to all q, all k and all v.
local function heads_apart(t, c)
  local n = c.num_attention_heads or c.n_head
  return t:view { n, 3, t:size(0) / n / 3, -1 }:transpose(0, 1):reshape(t.shape)
end

-- The same of groups of q with one k and v.
local function groups_apart(t, c)
  local n, size = c.num_kv_heads, c.hidden_size / c.num_attention_heads
  local all = t:view { n, c.num_attention_heads / n + 2, size, t:size(1) }
  local parts, n_q = {}, all:size(1) - 2
  for i, range in ipairs { { 0, n_q }, { n_q, 1 }, { n_q + 1, 1 } } do
    parts[i] = all:narrow(1, unpack(range)):reshape { -1, t:size(1) }
  end
  return torch.cat(parts, 0)
end

-- Hugging Face's names of parts, and those of files.
local attention = { input_layernorm = "attn_norm", ["self_attn.q_proj"] = "attn_q",
  ["self_attn.k_proj"] = "attn_k", ["self_attn.v_proj"] = "attn_v",
  ["self_attn.o_proj"] = "attn_output", ["self_attn.q_norm"] = "attn_q_norm",
  ["self_attn.k_norm"] = "attn_k_norm" }
local mlp = { post_attention_layernorm = "ffn_norm", ["mlp.gate_proj"] = "ffn_gate",
  ["mlp.up_proj"] = "ffn_up", ["mlp.down_proj"] = "ffn_down" }
local four_norms = { post_attention_layernorm = "post_attention_norm",
  pre_feedforward_layernorm = "ffn_norm", post_feedforward_layernorm = "post_ffw_norm" }
local after_bloom = { input_layernorm = "attn_norm", post_attention_layernorm = "ffn_norm",
  ["self_attention.query_key_value"] = "attn_qkv", ["self_attention.dense"] = "attn_output",
  ["mlp.dense_h_to_4h"] = "ffn_up", ["mlp.dense_4h_to_h"] = "ffn_down" }
local model_names = { ["model.embed_tokens"] = "token_embd", ["model.norm"] = "output_norm",
  lm_head = "output" }
local transformer_names = { ["transformer.word_embeddings"] = "token_embd",
  ["transformer.word_embeddings_layernorm"] = "token_embd_norm", ["transformer.wte"] = "token_embd",
  ["transformer.wpe"] = "position_embd", ["transformer.ln_f"] = "output_norm", lm_head = "output" }

local function merged(...)
  local result = {}
  for _, entries in ipairs { ... } do
    for key, value in pairs(entries) do result[key] = value end
  end
  return result
end

local function experts(name, gate, up, down)
  return { [name .. ".gate"] = "ffn_gate_inp", [name .. ".experts." .. gate] = "ffn_gate_exps",
    [name .. ".experts." .. up] = "ffn_up_exps", [name .. ".experts." .. down] = "ffn_down_exps" }
end

local sizes = { vocab_size = 30, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 16,
  tie_word_embeddings = false }
local rms, ln = { "attention.layer_norm_rms_epsilon", "f32", 1e-5 },
  { "attention.layer_norm_epsilon", "f32", 1e-5 }
local gemma = merged(sizes, { head_dim = 8, rms_norm_eps = 1e-5, query_pre_attn_scalar = 8,
  sliding_window = 3, tie_word_embeddings = true })

local function u32(key, value) return { key, "u32", value } end
local function f32(key, value) return { key, "f32", value } end

-- Rows: architecture, configuration, other keys, names of a layer, conversions.
local cases = {
  { "qwen2", merged(sizes, { model_type = "qwen2", rms_norm_eps = 1e-5 }), { rms },
    merged(attention, mlp), {} },
  { "qwen3", merged(sizes, { model_type = "qwen3", rms_norm_eps = 1e-5, head_dim = 16 }),
    { rms, u32("attention.key_length", 16), u32("attention.value_length", 16) },
    merged(attention, mlp), {} },
  { "gemma2", merged(gemma, { model_type = "gemma2", attn_logit_softcapping = 2 }),
    { rms, f32("attn_logit_softcapping", 2), u32("attention.sliding_window", 3) },
    merged(attention, mlp, four_norms), gemmas },
  { "gemma3", merged(gemma, { model_type = "gemma3_text", num_hidden_layers = 7 }),
    { rms, u32("attention.sliding_window", 3), f32("rope.freq_base", 1e6) },
    merged(attention, mlp, four_norms), gemmas },
  { "phi3", merged(sizes, { model_type = "phi3", rms_norm_eps = 1e-5, sliding_window = 5,
      pad_token_id = false, partial_rotary_factor = 0.5, original_max_position_embeddings = 4,
      rope_scaling = { type = "longrope", short_factor = { 1, 2 }, long_factor = { 3, 4 } } }),
    { rms, u32("attention.sliding_window", 5), u32("rope.dimension_count", 4),
      u32("rope.scaling.original_context_length", 4), f32("rope.scaling.attn_factor", 2 ^ 0.5) },
    { input_layernorm = "attn_norm", ["self_attn.qkv_proj"] = "attn_qkv",
      ["self_attn.o_proj"] = "attn_output", post_attention_layernorm = "ffn_norm",
      ["mlp.gate_up_proj"] = "ffn_up", ["mlp.down_proj"] = "ffn_down" }, {},
    { { "rope_factors_short.weight", "F32", torch.tensor { 1, 2 } },
      { "rope_factors_long.weight", "F32", torch.tensor { 3, 4 } } } },
  { "smollm3", merged(sizes, { model_type = "smollm3", rms_norm_eps = 1e-5, pad_token_id = false,
      num_hidden_layers = 5, rope_theta = 10000 }), { rms }, merged(attention, mlp), in_pairs },
  { "granite", merged(sizes, { model_type = "granite", rms_norm_eps = 1e-5, logits_scaling = 3,
      embedding_multiplier = 2, attention_multiplier = 0.25, residual_multiplier = 0.5 }),
    { rms, f32("logit_scale", 3), f32("embedding_scale", 2), f32("attention.scale", 0.25),
      f32("residual_scale", 0.5) }, merged(attention, mlp), in_pairs },
  { "olmo2", merged(sizes, { model_type = "olmo2", rms_norm_eps = 1e-5 }), { rms },
    merged(attention, mlp, { post_attention_layernorm = "post_attention_norm",
      post_feedforward_layernorm = "post_ffw_norm" }), {} },
  { "starcoder2", merged(sizes, { model_type = "starcoder2" }), { ln },
    merged(attention, { post_attention_layernorm = "ffn_norm", ["mlp.c_fc"] = "ffn_up",
      ["mlp.c_proj"] = "ffn_down" }), {} },
  { "gpt2", { model_type = "gpt2", vocab_size = 30, n_embd = 32, n_layer = 2, n_head = 4,
      n_inner = 64, n_positions = 16 }, { ln }, { ln_1 = "attn_norm", ["attn.c_attn"] = "attn_qkv",
      ["attn.c_proj"] = "attn_output", ln_2 = "ffn_norm", ["mlp.c_fc"] = "ffn_up",
      ["mlp.c_proj"] = "ffn_down" },
    { attn_qkv = transposed, attn_output = transposed, ffn_up = transposed,
      ffn_down = transposed } },
  { "falcon", { model_type = "falcon", vocab_size = 30, hidden_size = 32, num_hidden_layers = 2,
      num_attention_heads = 4, num_kv_heads = 2, new_decoder_architecture = true,
      ffn_hidden_size = 64, max_position_embeddings = 16 }, { ln },
    merged(after_bloom, { ln_mlp = "attn_norm", ln_attn = "attn_norm_2" }),
    { attn_qkv = groups_apart } },
  { "gptneox", { model_type = "gpt_neox", vocab_size = 30, hidden_size = 32, num_hidden_layers = 2,
      num_attention_heads = 4, intermediate_size = 64, max_position_embeddings = 16,
      rotary_pct = 0.5, use_parallel_residual = false }, { ln, u32("rope.dimension_count", 4),
      { "use_parallel_residual", "bool", false } },
    merged(after_bloom, { ["attention.query_key_value"] = "attn_qkv",
      ["attention.dense"] = "attn_output" }), { attn_qkv = heads_apart } },
  { "bloom", { model_type = "bloom", vocab_size = 30, hidden_size = 32, n_layer = 2, n_head = 4 },
    { ln }, after_bloom, { attn_qkv = heads_apart } },
  { "llama", merged(sizes, { model_type = "mixtral", num_local_experts = 3, rope_theta = 10000 }),
    { rms, u32("expert_count", 3), u32("expert_used_count", 2) },
    merged(attention, { post_attention_layernorm = "ffn_norm" },
      experts("block_sparse_moe", "w1", "w3", "w2")), in_pairs },
  { "qwen3moe", merged(sizes, { model_type = "qwen3_moe", num_experts = 3, num_experts_per_tok = 2,
      rms_norm_eps = 1e-5, moe_intermediate_size = 32, norm_topk_prob = true }),
    { rms, u32("expert_count", 3), u32("expert_used_count", 2),
      u32("expert_feed_forward_length", 32) },
    merged(attention, { post_attention_layernorm = "ffn_norm" },
      experts("mlp", "gate_proj", "up_proj", "down_proj")), {} },
  { "olmoe", merged(sizes, { model_type = "olmoe", num_experts = 3, num_experts_per_tok = 2 }),
    { rms, u32("expert_count", 3), u32("expert_used_count", 2) },
    merged(attention, { post_attention_layernorm = "ffn_norm" },
      experts("mlp", "gate_proj", "up_proj", "down_proj")), {} },
}

local function metadata_of(architecture, c, keys)
  local list = { { "general.architecture", "string", architecture } }
  local function add(key, kind, value)
    if value ~= nil then list[#list + 1] = { architecture .. "." .. key, kind, value } end
  end
  add("block_count", "u32", c.num_hidden_layers or c.n_layer)
  add("context_length", "u32", 16)
  add("embedding_length", "u32", 32)
  add("feed_forward_length", "u32", 64)
  add("attention.head_count", "u32", 4)
  add("attention.head_count_kv", "u32", c.num_key_value_heads or c.num_kv_heads)
  for _, entry in ipairs(keys) do add(unpack(entry)) end
  return list
end

-- Returns the tensors of a file. `kind` is that of matrices.
local function tensors_of(case, params, config, kind)
  local _, _, _, names, converts, more = unpack(case)
  local tensors, stacks = { unpack(more or {}) }, {}
  local others = merged(model_names, transformer_names, { ["gpt_neox.embed_in"] = "token_embd",
    ["gpt_neox.final_layer_norm"] = "output_norm", embed_out = "output" })
  for name, t in pairs(params) do
    local layer, part, what = name:match "^%w+[%._]%w*%.?%w*%.(%d+)%.(.+)%.(%a+)$"
    if not layer then part, what = name:match "^(.+)%.(%a+)$" end
    local expert = part:match "experts%.(%d+)%."
    part = part:gsub("experts%.%d+", "experts")
    local to = layer and names[part] or others[part]
    assert(to, name)
    local full = (layer and "blk." .. layer .. "." or "") .. to .. "." .. what
    if converts[to] then t = converts[to](t, config) end
    if expert then
      stacks[full] = stacks[full] or {}
      stacks[full][expert + 1] = t
    else
      local is_matrix = t:dim() == 2 and t:size(1) % 32 == 0
      tensors[#tensors + 1] = { full, is_matrix and kind or "F32", t }
    end
  end
  for full, list in pairs(stacks) do tensors[#tensors + 1] = { full, kind, torch.stack(list) } end
  return tensors
end

-- Returns a model with random weights, norms included.
local function new_model(config)
  local model = redco.models.from_config(config, { generator = generator })
  for _, t in pairs(model.params) do
    local values = torch.randn(t.shape, { generator = generator }) * 0.3 + 0.1
    torch.no_grad(function() t:copy_(values) end)
  end
  return model
end

local ids = torch.tensor { { 3, 1, 29, 7, 7, 12, 0 }, { 1, 2, 3, 4, 5, 6, 28 } }

for _, case in ipairs(cases) do
  local architecture, config, keys = unpack(case)
  local model = new_model(config)
  test(config.model_type .. ": weights, configuration and logits", function()
    gguf_files.write(path, metadata_of(architecture, config, keys),
      tensors_of(case, model.params, config, "F32"))
    local opened = redco.models.from_pretrained(path)
    expect_equal(opened.config.model_type, config.model_type)
    for name, t in pairs(model.params) do expect_close(opened.params[name], t, 0, 1e-6) end
    expect_close(opened(opened.params, { input_ids = ids }),
      model(model.params, { input_ids = ids }), 1e-5, 1e-4)
  end)

  test(config.model_type .. ": is written as it is read", function()
    gguf_files.write(path, metadata_of(architecture, config, keys),
      tensors_of(case, model.params, config, "F32"))
    local written = path:gsub("%.gguf$", ".own.gguf")
    model.save_gguf(written, { tokenizer = false })
    local expected, own = native.open_gguf(path), native.open_gguf(written)
    expect_equal(table.concat(own:keys(), " "), table.concat(expected:keys(), " "))
    for _, name in ipairs(own:keys()) do
      expect_close(own:tensor(name), expected:tensor(name), 0, 1e-6)
    end
    for key, value in pairs(expected.metadata) do
      if key ~= "bloom.context_length" and key ~= "bloom.feed_forward_length" then
        expect_equal(own.metadata[key], value)
      end
    end
    local opened = redco.models.from_pretrained(written)
    expect_close(opened(opened.params, { input_ids = ids }),
      model(model.params, { input_ids = ids }), 1e-5, 1e-4)
    for _, type in ipairs { "q8_0", "q4_k_m" } do
      model.save_gguf(written, { type = type, tokenizer = false })
      local first = redco.models.from_pretrained(written)
      first.save_gguf(path, { type = type, tokenizer = false })
      local again = redco.models.from_pretrained(path)
      for name, t in pairs(first.params) do
        if torch.is_tensor(t) then expect_equal(again.params[name]:equal(t), true) end
      end
    end
    os.remove(written)
  end)

  test(config.model_type .. ": quantized weights", function()
    gguf_files.write(path, metadata_of(architecture, config, keys),
      tensors_of(case, model.params, config, "Q8_0"))
    local packed = redco.models.from_pretrained(path)
    local floats = redco.models.from_pretrained(path, { quantize = false })
    local n_packed = 0
    for name, leaf in pairs(packed.params) do
      if name:find "%.weight_type$" then n_packed = n_packed + 1 end
      if name:find "%.experts%..*weight$" then expect_equal(leaf.dtype, "uint8") end
    end
    assert(n_packed > 0)
    expect_close(packed(packed.params, { input_ids = ids }),
      floats(floats.params, { input_ids = ids }), 1e-5, 1e-4)
  end)
end

test("experts that are not as many as the file says", function()
  local case = cases[14]
  local model = new_model(case[2])
  gguf_files.write(path, metadata_of(case[1], case[2],
    { rms, u32("expert_count", 4), u32("expert_used_count", 2) }),
    tensors_of(case, model.params, case[2], "F32"))
  expect_error(function() redco.models.from_pretrained(path) end, path, "_exps.weight is [3, ",
    "each of 4 experts")
end)

test("the layers with windows", function()
  local case = cases[4]
  local model = new_model(case[2])
  local function types_with(...)
    gguf_files.write(path, metadata_of(case[1], case[2], { rms, ... }),
      tensors_of(case, model.params, case[2], "F32"))
    local types = redco.models.from_pretrained(path).config.layer_types
    for i, name in ipairs(types) do types[i] = name:sub(1, 1) end
    return table.concat(types)
  end
  local window, key = u32("attention.sliding_window", 3), "attention.sliding_window_pattern"
  expect_equal(types_with(), "fffffff")
  expect_equal(types_with(window), "sssssfs")
  expect_equal(types_with(window, u32(key, 2)), "sfsfsfs")
  expect_equal(types_with(u32(key, 2)), "fffffff")
  local flags = { false, true, true, false, false, true, false }
  expect_equal(types_with(window, { key, "bool[]", flags }), "fssffsf")
  expect_error(function() types_with(window, { key, "bool[]", { true } }) end, path, key,
    "each of 7 layers")
end)

test("a window that changes results and is not supported", function()
  local case = cases[8]
  local model = new_model(case[2])
  gguf_files.write(path, metadata_of(case[1], case[2], { rms, u32("attention.sliding_window", 4) }),
    tensors_of(case, model.params, case[2], "F32"))
  expect_error(function() redco.models.from_pretrained(path) end, path,
    "olmo2.attention.sliding_window is 4")
end)

os.remove(path)
testing.finish()
