-- redco.models and redco.Tokenizer from GGUF files: what the folders give that they were made of.
local gguf_files = require "gguf_files"
local redco = require "redco"
local rotary = require "redco.models.rotary"
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
local function divisors()
  local c = redco.data.json(cases .. "llama3/config.json")
  local long = rotary.frequencies(rotary.settings("llama", c, c.head_dim), 1)
  c.rope_scaling = nil
  local plain = rotary.frequencies(rotary.settings("llama", c, c.head_dim), 1)
  for i, frequency in ipairs(plain) do plain[i] = frequency / long[i] end
  return { "rope_freqs.weight", "F32", torch.tensor(plain) }
end

local function tensors_of(name, kind)
  local tensors = gguf_files.tensors(cases .. name, kind or "F32")
  if name == "llama3" then tensors[#tensors + 1] = divisors() end
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
    for name, t in pairs(redco.models.from_pretrained(path).params) do
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
  expect_refused({ ["general.architecture"] = { "string", "falcon" } }, nil, "'falcon'", "llama")
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

test("scaled positions", function()
  local scaling = { ["llama.rope.scaling.type"] = { "string", "yarn" },
    ["llama.rope.scaling.factor"] = { "f32", 4 } }
  expect_refused(scaling, nil, "llama.rope.scaling.original_context_length is missing")
  scaling["llama.rope.scaling.original_context_length"] = { "u32", 32 }
  write_with(scaling)
  local config = redco.models.from_pretrained(path).config
  expect_equal(config.rope_scaling.rope_type, "yarn")
  expect_equal(config.rope_scaling.factor, 4)
  expect_equal(config.rope_scaling.original_max_position_embeddings, 32)
  write_with { ["llama.rope.scaling.type"] = { "string", "linear" },
    ["llama.rope.scaling.factor"] = { "f32", 2 } }
  expect_equal(redco.models.from_pretrained(path).config.rope_scaling.rope_type, "linear")
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
