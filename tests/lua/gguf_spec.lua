-- redco.models and redco.Tokenizer from GGUF files: what the folders give that they were made of.
local gguf_files = require "gguf_files"
local redco = require "redco"
local rotary = require "redco.models.layers.rotary"
local testing = require "testing"

local torch = redco.torch
local test, expect_close, expect_equal, expect_error =
  testing.test, testing.expect_close, testing.expect_equal, testing.expect_error

local cases = assert(os.getenv "REDCO_SOURCE") .. "/tests/cases/"
local path = os.tmpname() .. ".gguf"

local function metadata_of(name)
  local add = name == "llama" and gguf_files.add_sentencepiece or gguf_files.add_byte_level
  return add(gguf_files.metadata(cases .. name), cases .. name)
end

-- The frequencies of LLaMA 3 as the converter writes them.
local function divisors_of_llama3()
  local c = redco.data.json(cases .. "llama3/config.json")
  local long = rotary.frequencies(rotary.settings("llama", c, c.head_dim), 1)
  c.rope_scaling = nil
  local plain = rotary.frequencies(rotary.settings("llama", c, c.head_dim), 1)
  for i, frequency in ipairs(plain) do plain[i] = frequency / long[i] end
  return { "rope_freqs.weight", "F32", torch.tensor(plain) }
end

local function tensors_of(name, kind)
  local tensors = gguf_files.tensors(cases .. name, kind or "F32")
  if name == "llama3" then tensors[#tensors + 1] = divisors_of_llama3() end
  return tensors
end

local function expect_logits(model, name)
  local arrays = torch.load(cases .. name .. "/expected.safetensors")
  local expected, inputs = arrays["fwd.logits"], {}
  for _, key in ipairs { "input_ids", "attention_mask" } do inputs[key] = arrays["fwd." .. key] end
  local logits = model(model.params, inputs)
  local n = expected:size(0)
  local kept = inputs.attention_mask:narrow(0, logits:size(0) - n, n):ne(0)
  expect_close(logits:narrow(0, logits:size(0) - n, n)[kept], expected[kept], 0, 2e-4)
end

for _, name in ipairs { "llama", "llama3" } do
  test(name .. ": weights, configuration and logits", function()
    gguf_files.write(path, metadata_of(name), tensors_of(name))
    local model = redco.models.from_pretrained(path)
    local folder = redco.models.from_pretrained(cases .. name)
    for key, tensor in pairs(folder.params) do expect_close(model.params[key], tensor, 0, 0) end
    for _, key in ipairs { "rms_norm_eps", "rope_theta", "tie_word_embeddings", "head_dim",
      "num_key_value_heads", "max_position_embeddings", "bos_token_id" } do
      expect_equal(model.config[key], folder.config[key])
    end
    local ends = name == "llama" and { model.config.eos_token_id } or model.config.eos_token_id
    expect_equal(table.concat(ends, " "), name == "llama" and "2" or "701 705")
    expect_logits(model, name)
  end)

  test(name .. ": a saved folder gives the same", function()
    local dir = os.tmpname()
    os.remove(dir)
    redco.models.from_pretrained(path).save_pretrained(dir)
    expect_logits(redco.models.from_pretrained(dir), name)
    os.execute("rm -r " .. dir)
  end)

  test(name .. ": the tokenizer", function()
    local tokenizer = redco.Tokenizer.from_pretrained(path)
    local folder = redco.Tokenizer.from_pretrained(cases .. name)
    for _, key in ipairs { "bos_token", "eos_token", "bos_token_id", "eos_token_id" } do
      expect_equal(tokenizer[key], folder[key])
    end
    for _, case in ipairs(redco.data.json(cases .. name .. "/tokenizer_cases.json").cases) do
      expect_equal(table.concat(tokenizer:encode(case.text), " "), table.concat(case.ids, " "))
      expect_equal(tokenizer:decode(case.ids, { clean_up_tokenization_spaces = false }),
        case.decoded)
    end
  end)
end

test("quantised weights, and those in float16", function()
  local original = torch.load(cases .. "llama/model.safetensors")
  for _, entry in ipairs { { "Q8_0", gguf_files.rounded },
    { "F16", function(t) return t:to "float16":float() end } } do
    local kind, rounded = unpack(entry)
    gguf_files.write(path, metadata_of "llama", tensors_of("llama", kind))
    local n_rounded = 0
    for name, t in pairs(redco.models.from_pretrained(path, { quantize = false }).params) do
      local can_be = t:dim() == 2 and t:size(1) % 32 == 0
      expect_close(t, can_be and rounded(original[name]) or original[name], 0, 0)
      n_rounded = n_rounded + (torch.equal(t, original[name]) and 0 or 1)
    end
    assert(n_rounded > 15, n_rounded)
  end
  local half = redco.models.from_pretrained(path, { dtype = "auto", low_memory = true })
  expect_equal(half.params["model.embed_tokens.weight"].dtype, "float16")
  expect_equal(half.params["model.norm.weight"].dtype, "float32")
end)

test("quantised weights stay as they are in the file", function()
  gguf_files.write(path, metadata_of "llama", tensors_of("llama", "Q8_0"))
  local inputs = { input_ids = torch.tensor { { 5, 6, 7, 8 } } }
  local floats = redco.models.from_pretrained(path, { quantize = false })
  for _, low_memory in ipairs { false, true } do
    local model = redco.models.from_pretrained(path, { low_memory = low_memory })
    expect_equal(model.params["model.layers.0.self_attn.q_proj.weight_type"], "q8_0")
    expect_equal(model.params["model.embed_tokens.weight"].dtype, "uint8")
    expect_close(model(model.params, inputs), floats(floats.params, inputs), 1e-5, 1e-5)
  end
end)

-- Writes the file of llama after `change(metadata, tensors)`, with keys that have a table's value
-- {kind, value} set and those that have `false` left out.
local function write_with(keys, change)
  local metadata, tensors = {}, tensors_of "llama"
  for _, entry in ipairs(metadata_of "llama") do
    local given = keys[entry[1]]
    if given == nil then metadata[#metadata + 1] = entry end
  end
  for key, given in pairs(keys) do
    if given then metadata[#metadata + 1] = { key, given[1], given[2] } end
  end
  if change then change(tensors) end
  gguf_files.write(path, metadata, tensors)
end

local function expect_refused(keys, change, ...)
  write_with(keys, change)
  expect_error(function() redco.models.from_pretrained(path) end, path, ...)
end

test("what is refused", function()
  expect_refused({ ["general.architecture"] = { "string", "mamba" } }, nil, "'mamba'",
    "supported are bloom, falcon, gemma2", "llama")
  expect_refused({ ["general.architecture"] = false }, nil, "general.architecture is missing")
  expect_refused({ ["llama.block_count"] = false }, nil, "llama.block_count is missing")
  expect_refused({ ["llama.block_count"] = { "u32", 2 ^ 30 } }, nil, "1073741824", "30 tensors")
  expect_refused({ ["llama.attention.head_count"] = { "u32", 0 } }, nil, "head_count is 0")
  expect_refused({ ["llama.embedding_length"] = { "string", "wide" } }, nil, "a string")
  expect_refused({ ["llama.rope.dimension_count"] = { "u32", 8 } }, nil,
    "llama.rope.dimension_count is 8, expected the size of a head, 16")
  expect_refused({ ["llama.rope.scaling.type"] = { "string", "longrope" } }, nil, "'longrope'")
  expect_refused({ ["llama.vocab_size"] = { "u32", 700 } }, nil, "embed_tokens", "[704, 64]",
    "[700, 64]")
  expect_refused({ ["tokenizer.ggml.tokens"] = { "u32", 1 } }, nil, "tokens is a number")
  local function without(name)
    return function(tensors)
      for i, entry in ipairs(tensors) do
        if entry[1] == name then return table.remove(tensors, i) end
      end
      error(name)
    end
  end
  expect_refused({}, without "blk.1.ffn_up.weight", "missing", "model.layers.1.mlp.up_proj.weight")
  expect_refused({}, function(tensors)
    tensors[#tensors + 1] = { "blk.0.ffn_gate_inp.weight", "F32", torch.ones { 2, 64 } }
  end, "no place", "blk.0.ffn_gate_inp.weight")
end)

-- The frequencies of a model's positions, and the factor of cos and sin.
local function frequencies(c)
  return rotary.frequencies(rotary.settings("llama", c, c.head_dim), 1)
end

local function scaled_by(keys, given)
  write_with(keys, given and function(tensors)
    tensors[#tensors + 1] = { "rope_freqs.weight", "F32", torch.tensor(given) }
  end)
  local config = redco.models.from_pretrained(path).config
  local list, factor = frequencies(config)
  return list, factor, config
end

-- Keys, divisors, and what llama.cpp makes of them: the divisor of all pairs and the factor.
local divisors = { 1, 1, 2, 2.5, 3, 4, 6, 8 }
local kind, factor = "llama.rope.scaling.type", "llama.rope.scaling.factor"
local old, attention = "llama.rope.scale_linear", "llama.rope.scaling.attn_factor"
local scalings = {
  { {}, 1 },
  { { [kind] = { "string", "linear" }, [factor] = { "f32", 2.5 } }, 2.5 },
  { { [kind] = { "string", "linear" } }, 1 },
  { { [factor] = { "f32", 4 } }, 4 },
  { { [old] = { "f32", 4 } }, 4 },
  { { [old] = { "f32", 4 }, [factor] = { "f32", 2 } }, 2 },
  { { [factor] = { "f32", 0 } }, 1 },
  { { [kind] = { "string", "none" }, [factor] = { "f32", 4 } }, 1 },
  { { [kind] = { "string", "none" }, [old] = { "f32", 4 }, [attention] = { "f32", 1.5 } }, 1, 1.5 },
  { { [factor] = { "f32", 4 }, [attention] = { "f32", 0.5 } }, 4, 0.5 },
  { { [kind] = { "string", "yarn" } }, 1 },
}

test("scaled positions", function()
  local plain = frequencies(redco.models.from_pretrained(cases .. "llama").config)
  for _, case in ipairs(scalings) do
    for _, has_tensor in ipairs { false, true } do
      local list, scale = scaled_by(case[1], has_tensor and divisors)
      local expected = {}
      for i, frequency in ipairs(plain) do
        expected[i] = frequency / case[2] / (has_tensor and divisors[i] or 1)
      end
      expect_close(torch.tensor(list), torch.tensor(expected), 1e-6, 0)
      expect_equal(scale, case[3] or 1)
    end
  end
end)

test("positions scaled by YaRN", function()
  local keys = { [kind] = { "string", "yarn" }, [factor] = { "f32", 4 } }
  local length = "llama.rope.scaling.original_context_length"
  for _, context in ipairs { 32, false } do
    keys[length] = context and { "u32", context } or nil
    local c = redco.models.from_pretrained(cases .. "llama").config
    c.rope_scaling = { rope_type = "yarn", factor = 4,
      original_max_position_embeddings = context or c.max_position_embeddings }
    local expected, scale = frequencies(c)
    local list, own, config = scaled_by(keys)
    expect_equal(config.rope_scaling.rope_type, "yarn")
    expect_close(torch.tensor(list), torch.tensor(expected), 1e-6, 0)
    expect_equal(own, scale)
    keys[attention] = { "f32", 0.5 }
    list, own = scaled_by(keys, divisors)
    for i, divisor in ipairs(divisors) do expected[i] = expected[i] / divisor end
    expect_close(torch.tensor(list), torch.tensor(expected), 1e-6, 0)
    expect_close(torch.tensor(own), torch.tensor(scale / 2), 1e-6, 0)
    keys[attention] = nil
  end
end)

test("what changes results and is not supported", function()
  for key, value in pairs { nextn_predict_layers = { "u32", 1 }, logit_scale = { "f32", 0.5 },
    ["attention.causal"] = { "bool", false }, ["attention.clamp_kqv"] = { "f32", 8 },
    ["rope.scaling.yarn_attn_factor"] = { "f32", 2 } } do
    expect_refused({ ["llama." .. key] = value }, nil, "llama." .. key, "not supported")
  end
  expect_refused({ ["llama.feed_forward_length"] = { "i32[]", { 96, 128 } } }, nil,
    "feed_forward_length has 96 and 128")
  expect_refused({}, function(tensors)
    tensors[#tensors + 1] = { "rope_freqs.weight", "F32", torch.ones(3) }
  end, "rope_freqs.weight has 3 numbers, expected 8")
  local n_heads = redco.data.json(cases .. "llama/config.json").num_attention_heads
  write_with { ["llama.attention.head_count"] = { "i32[]", { n_heads, n_heads } },
    ["llama.logit_scale"] = { "f32", 0 }, ["llama.expert_count"] = { "u32", 0 } }
  expect_logits(redco.models.from_pretrained(path), "llama")
end)

test("keys of a tokenizer that are missing", function()
  local ggml = "tokenizer.ggml."
  write_with { [ggml .. "bos_token_id"] = false, [ggml .. "eos_token_id"] = false,
    [ggml .. "unknown_token_id"] = false, [ggml .. "add_bos_token"] = false,
    [ggml .. "add_space_prefix"] = false }
  local folder = redco.Tokenizer.from_pretrained(cases .. "llama")
  local tokenizer = redco.Tokenizer.from_pretrained(path)
  for _, role in ipairs { "bos", "eos", "unk" } do
    expect_equal(tokenizer[role .. "_token"], folder[role .. "_token"])
  end
  expect_equal(table.concat(tokenizer:encode "a b", " "), table.concat(folder:encode "a b", " "))
  local config = redco.models.from_pretrained(path).config
  expect_equal(config.bos_token_id, 1)
  expect_equal(config.eos_token_id, 2)

  local function write_byte_level(keys)
    local metadata = {}
    for _, entry in ipairs(metadata_of "llama3") do
      if keys[entry[1]] == nil then metadata[#metadata + 1] = entry end
    end
    for key, given in pairs(keys) do
      if given then metadata[#metadata + 1] = { key, given[1], given[2] } end
    end
    gguf_files.write(path, metadata, tensors_of "llama3")
  end
  -- LLaMA 3's texts begin with a token; other byte-level ones do not.
  write_byte_level { [ggml .. "add_bos_token"] = false, [ggml .. "eot_token_id"] = false }
  expect_equal(redco.Tokenizer.from_pretrained(path):encode("a")[1], 700)
  expect_equal(table.concat(redco.models.from_pretrained(path).config.eos_token_id, " "), "701 705")
  write_byte_level { [ggml .. "add_bos_token"] = false, [ggml .. "pre"] = { "string", "qwen2" } }
  expect_equal(#redco.Tokenizer.from_pretrained(path):encode "a", 1)
  -- A file that does not say how texts are split into words: punctuation stands alone.
  for pre, expected in pairs { ["gpt-2"] = 'a|Ġ"', [false] = 'a|Ġ|"' } do
    write_byte_level { [ggml .. "pre"] = pre and { "string", pre } }
    local tokens = redco.Tokenizer.from_pretrained(path):tokenize 'a "'
    expect_equal(table.concat(tokens, "|"), expected)
  end
  write_byte_level { [ggml .. "bos_token_id"] = false }
  expect_error(function() redco.Tokenizer.from_pretrained(path) end, path,
    "tokenizer.ggml.bos_token_id, which is missing")
end)

local byte_level_names = { "a.x-4.0", "bailingmoe", "bloom", "chameleon", "chatglm-bpe",
  "command-r", "dbrx", "deepseek-coder", "deepseek-llm", "deepseek-v3", "default", "exaone-moe",
  "falcon", "glm4", "gpt-2", "gpt-4o", "granite-embed-multi-97m", "jais-2", "laguna",
  "llama-bpe", "minicpm5", "mpt", "poro-chat", "qwen2", "qwen35", "refact", "seed-coder",
  "smollm", "spark2_5", "starcoder", "tekken", "tiny_aya", "ufakzeka", "viking", "youtu" }

test("the names of pre-tokenizers", function()
  local text = "HelloWorld 12345 it's\n\n  中文`a` été."
  local function write(name)
    local metadata = { { "tokenizer.ggml.pre", "string", name } }
    for _, entry in ipairs(metadata_of "llama3") do
      if entry[1] ~= "tokenizer.ggml.pre" then metadata[#metadata + 1] = entry end
    end
    gguf_files.write(path, metadata, {})
  end
  for _, name in ipairs(byte_level_names) do
    write(name)
    local tokenizer = redco.Tokenizer.from_pretrained(path)
    local ids = tokenizer:encode(text, { add_special_tokens = false })
    expect_equal(tokenizer:decode(ids, { clean_up_tokenization_spaces = false }), text)
  end
  write "kimi-k2"
  expect_error(function() redco.Tokenizer.from_pretrained(path) end, path, "'kimi-k2'", "a.x-4.0")
end)

local function tokenizer_of(model, tokens, types, more)
  local metadata, scores = { { "tokenizer.ggml.model", "string", model },
    { "tokenizer.ggml.tokens", "string[]", tokens },
    { "tokenizer.ggml.token_type", "i32[]", types } }, {}
  for i = 1, #tokens do scores[i] = -i / 10 end
  metadata[#metadata + 1] = { "tokenizer.ggml.scores", "f32[]", scores }
  for _, entry in ipairs(more or {}) do metadata[#metadata + 1] = entry end
  gguf_files.write(path, metadata, {})
  return redco.Tokenizer.from_pretrained(path)
end

test("a Unigram vocabulary, as T5's", function()
  local t = tokenizer_of("t5", { "<pad>", "</s>", "<unk>", "▁a", "▁b", "b", "▁" },
    { 3, 3, 2, 1, 1, 1, 1 })
  expect_equal(table.concat(t:encode "a  bb z", " "), "3 4 5 6 2 1")
  expect_equal(t.pad_token, "<pad>")
end)

test("Phi-3's special tokens and those that fill its vocabulary", function()
  local tokens = { "<unk>", "<s>", "</s>", "▁", "a", "▁a", "<|user|>", "[PAD7]", "[PAD8]" }
  local types = { 3, 3, 4, 1, 1, 1, 3, 2, 2 }
  local plain = tokenizer_of("llama", tokens, types)
  local phi3 = tokenizer_of("llama", tokens, types, { { "general.name", "string", "Phi-3 mini" } })
  local options = { add_special_tokens = false }
  expect_equal(table.concat(phi3:encode("<|user|> \na", options), " "),
    table.concat(plain:encode("<|user|>a", options), " "))
  assert(#plain:encode("<|user|>  a", options) > #phi3:encode("<|user|>  a", options))
end)

test("tokenizers that are refused, and one that cannot be saved", function()
  local function expect_tokenizer(keys, ...)
    write_with(keys)
    expect_error(function() redco.Tokenizer.from_pretrained(path) end, path, ...)
  end
  expect_tokenizer({ ["tokenizer.ggml.model"] = { "string", "bert" } }, "tokenizer.ggml.model",
    "bert")
  expect_tokenizer({ ["tokenizer.ggml.model"] = false }, "tokenizer.ggml.model is missing")
  expect_tokenizer({ ["tokenizer.ggml.tokens"] = { "u32", 1 } }, "tokenizer.ggml.tokens",
    "expected a list")
  expect_tokenizer({ ["tokenizer.ggml.tokens"] = { "u32[]", { 1 } } }, "expected a string")
  expect_tokenizer({ ["tokenizer.ggml.token_type"] = { "i32[]", { 9 } } }, "has 9")
  expect_tokenizer({ ["tokenizer.ggml.bos_token_id"] = { "string", "1" } }, "bos_token_id",
    "expected an integer")
  write_with {}
  local tokenizer = redco.Tokenizer.from_pretrained(path)
  expect_error(function() tokenizer:save_pretrained(os.tmpname()) end, "cannot save")
end)

os.remove(path)
testing.finish()
