-- model.save_gguf: tokenizers, types, adapters, importance, and what is refused.
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local lora, quant, torch = redco.lora, redco.quant, redco.torch
local test, expect_close, expect_equal, expect_error =
  testing.test, testing.expect_close, testing.expect_equal, testing.expect_error

local cases = assert(os.getenv "REDCO_SOURCE") .. "/tests/cases/"
local path = os.tmpname() .. ".gguf"
local generator = torch.Generator(3)

local sizes = { model_type = "llama", vocab_size = 40, hidden_size = 256, intermediate_size = 256,
  num_hidden_layers = 8, num_attention_heads = 4, num_key_value_heads = 2,
  max_position_embeddings = 32 }

local function new_model(changes)
  local config = {}
  for _, part in ipairs { sizes, changes or {} } do
    for key, value in pairs(part) do config[key] = value end
  end
  return redco.models.from_config(config, { generator = generator })
end

local ids = torch.tensor { { 3, 1, 29, 7, 7, 12, 0 } }

for _, name in ipairs { "llama", "llama3", "gpt2" } do
  test(name .. ": the tokenizer and its template", function()
    local model = redco.models.from_pretrained(cases .. name)
    model.save_gguf(path, { type = "f16" })
    local own = redco.Tokenizer.from_pretrained(path)
    local folder = redco.Tokenizer.from_pretrained(cases .. name)
    for _, key in ipairs { "bos_token", "eos_token", "bos_token_id", "eos_token_id",
      "chat_template" } do
      expect_equal(own[key], folder[key])
    end
    for _, case in ipairs(redco.data.json(cases .. name .. "/tokenizer_cases.json").cases) do
      expect_equal(table.concat(own:encode(case.text), " "), table.concat(case.ids, " "))
    end
    -- From a file to a file.
    redco.models.from_pretrained(path).save_gguf(path .. ".gguf", {})
    local first, again = native.open_gguf(path).metadata, native.open_gguf(path .. ".gguf").metadata
    for key, value in pairs(first) do
      if key:find "^tokenizer" then
        expect_equal(type(value) == "table" and table.concat(value, "\n") or value,
          type(value) == "table" and table.concat(again[key], "\n") or again[key])
      end
    end
    os.remove(path .. ".gguf")
  end)
end

test("mixed types have more bits where llama-quantize has them", function()
  local model = new_model()
  local function types_of(type)
    model.save_gguf(path, { type = type, tokenizer = false })
    local file, result = native.open_gguf(path), {}
    for _, name in ipairs(file:keys()) do
      result[name:gsub("%.weight$", "")] = select(2, native.gguf_blocks(file, name)) or "floats"
    end
    expect_equal(result.output_norm, "floats")
    expect_equal(result.output, type:find "^q8" and "q8_0" or "q6_k")
    return result
  end
  local types = types_of "q4_k_m"
  expect_equal(types["blk.1.attn_q"], "q4_k")
  for i, expected in ipairs { "q6_k", "q4_k", "q4_k", "q6_k", "q4_k", "q4_k", "q6_k", "q6_k" } do
    expect_equal(types[("blk.%d.attn_v"):format(i - 1)], expected)
    expect_equal(types[("blk.%d.ffn_down"):format(i - 1)], expected)
  end
  expect_equal(types_of "q5_k_m" ["blk.1.attn_q"], "q5_k")
  expect_equal(types_of "q6_k" ["blk.1.attn_q"], "q6_k")
  expect_equal(types_of "q8_0" ["blk.1.attn_q"], "q8_0")
  model = new_model { intermediate_size = 96, tie_word_embeddings = true }
  model.save_gguf(path, { type = "q4_k_m", tokenizer = false })
  local file = native.open_gguf(path)
  expect_equal(select(2, native.gguf_blocks(file, "blk.1.ffn_down.weight")), "q5_0")
  expect_equal(select(2, native.gguf_blocks(file, "blk.0.ffn_down.weight")), "q8_0")
  expect_equal(select(2, native.gguf_blocks(file, "token_embd.weight")), "q6_k")
  -- By default the types are those of the parameters.
  local packed = redco.models.from_pretrained(path)
  packed.save_gguf(path .. ".gguf", { tokenizer = false })
  local again = native.open_gguf(path .. ".gguf")
  for _, name in ipairs(file:keys()) do
    expect_equal(select(2, native.gguf_blocks(again, name)),
      (select(2, native.gguf_blocks(file, name))))
    expect_equal(again:tensor(name):equal(file:tensor(name)), true)
  end
  os.remove(path .. ".gguf")
end)

test("positions that are scaled", function()
  local given = {
    { rope_type = "linear", factor = 4 },
    { rope_type = "yarn", factor = 4, original_max_position_embeddings = 8, beta_fast = 16 },
    { rope_type = "yarn", factor = 4, attention_factor = 0.5 },
    { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4,
      original_max_position_embeddings = 8 },
  }
  for _, scaling in ipairs(given) do
    local model = new_model { rope_scaling = scaling, num_hidden_layers = 1 }
    model.save_gguf(path, { type = "f32", tokenizer = false })
    local opened = redco.models.from_pretrained(path)
    expect_close(opened(opened.params, { input_ids = ids }),
      model(model.params, { input_ids = ids }), 1e-5, 1e-5)
  end
end)

test("what is refused, and that an earlier file stays", function()
  local model = new_model { num_hidden_layers = 1 }
  model.save_gguf(path, { type = "q8_0", tokenizer = false })
  local bytes = assert(io.open(path, "rb")):read "*a"
  local function refused(options, ...)
    expect_error(function() model.save_gguf(path, options) end, ...)
    expect_equal(assert(io.open(path, "rb")):read "*a" == bytes, true)
  end
  refused({ type = "q3_k_m", tokenizer = false }, "type is q3_k_m, expected one of bf16, f16, f32")
  refused({ type = "q8_0" }, "the model is from no folder", "tokenizer = ")
  refused({ tokenizer = redco.Tokenizer.from_pretrained(cases .. "llama") }, "tokens, but the",
    "40 rows")
  refused({ tokenizer = false, params = lora.add(model.params, { target_modules = { "q_proj" } }) },
    "has no place for the weights", "redco.lora.merge")
  torch.no_grad(function() model.params["model.layers.0.mlp.up_proj.weight"][{ 0, 0 }] = 1e9 end)
  refused({ type = "f16", tokenizer = false }, "mlp.up_proj.weight has numbers that float16")
  refused({ type = "q4_k_m", tokenizer = false }, "magnitude is above 65504")
  expect_error(function()
    model.save_gguf(cases .. "llama/config.json/a.gguf", { type = "f32", tokenizer = false })
  end, "cannot make the folder")
  expect_error(function() model.save_gguf("model.bin", { tokenizer = false }) end, "NAME.gguf")
  for _, case in ipairs {
    { { hidden_act = "gelu" }, "llama in GGUF has no hidden_act = gelu, only silu" },
    { { model_type = "qwen2", use_sliding_window = true, sliding_window = 4,
        max_window_layers = 0 }, "sliding_window" },
    { { model_type = "qwen3_moe", num_experts = 2, num_experts_per_tok = 1, norm_topk_prob = false,
        moe_intermediate_size = 32 }, "norm_topk_prob" },
    { { model_type = "gpt_neo" }, "files of gpt_neo are not written, only those of bloom" },
  } do
    local changes, message = unpack(case)
    if changes.model_type == "gpt_neo" then
      local other = redco.models.from_config { model_type = "gpt_neo", hidden_size = 32,
        num_layers = 2, attention_types = { { { "global", "local" }, 1 } }, num_heads = 4,
        vocab_size = 40, max_position_embeddings = 32 }
      expect_error(function() other.save_gguf(path, { tokenizer = false }) end, message)
    else
      changes.num_hidden_layers = 1
      local other = new_model(changes)
      expect_error(function() other.save_gguf(path, { tokenizer = false }) end, message)
    end
  end
  expect_equal(assert(io.open(path, "rb")):read "*a" == bytes, true)
end)

test("adapters: written, and read again", function()
  for _, config in ipairs { sizes, { model_type = "gpt2", vocab_size = 40, n_embd = 32, n_layer = 2,
    n_head = 4, n_positions = 32 } } do
    local model = redco.models.from_config(config, { generator = generator })
    local targets = config.n_embd and { "c_attn", "c_fc" }
      or { "q_proj", "k_proj", "down_proj", "embed_tokens", "lm_head" }
    local params = lora.add(model.params, { target_modules = targets, r = 4, lora_alpha = 6,
      generator = generator, modules_to_save = {} })
    for name, t in pairs(params) do
      if name:find "lora_B" or name:find "lora_embedding_A" then
        torch.no_grad(function() t:copy_(torch.randn(t.shape, { generator = generator })) end)
      end
    end
    lora.save_gguf(path, model, params)
    local again = lora.from_gguf(path, model)
    expect_close(model(again, { input_ids = ids }), model(params, { input_ids = ids }), 1e-5, 1e-5)
    local metadata = native.open_gguf(path).metadata
    expect_equal(metadata["general.type"], "adapter")
    expect_equal(metadata["adapter.lora.alpha"], 6)
    expect_error(function() lora.save_gguf(path, model, model.params) end, "there is no adapter")
  end
  local model = new_model { num_hidden_layers = 1 }
  expect_error(function() lora.from_gguf(path, model) end, "general.architecture is gpt2",
    "expected llama")
end)

test("the importance of inputs, and its files", function()
  local model = new_model { num_hidden_layers = 2 }
  local found = quant.importance(model, { { input_ids = ids }, { input_ids = ids + 1 } })
  local x = model.params["model.embed_tokens.weight"]:index_select(0,
    torch.cat({ ids, ids + 1 }, 1):flatten())
  local normed = x * x:pow(2):mean({ -1 }, true):add(1e-6):rsqrt()
  local first = "model.layers.0.self_attn.q_proj"
  expect_close(found[first], normed:pow(2):mean { 0 }, 1e-5, 1e-6)
  expect_equal(found["model.layers.1.mlp.down_proj"]:numel(), 256)
  expect_equal(found.lm_head:numel(), 256)
  quant.save_importance(path, model, found)
  local read = quant.load_importance(path, model)
  for name, t in pairs(found) do expect_close(read[name], t, 0, 0) end
  for name in pairs(read) do assert(found[name], name) end
  -- Errors in columns that count more are smaller.
  local weight = model.params[first .. ".weight"]
  local is_large = torch.arange(256):remainder(4):eq(0):float()
  local skewed = { [first] = is_large * 99 + 1 }
  local function error_of(importance)
    local packed = quant.quantize(model.params, { type = "q4_k", target_modules = { "q_proj" },
      importance = importance })
    local back = native.dequantize(packed[first .. ".weight"], "q4_k")
    return ((back - weight):pow(2) * is_large):sum():item()
  end
  assert(error_of(skewed) < 0.9 * error_of(nil))
  model.save_gguf(path, { type = "q4_k_m", tokenizer = false, importance = skewed })
  expect_error(function() quant.importance(model, {}) end, "there are no texts")
  expect_error(function() quant.importance(model, { "a" }) end, "or a text with tokenizer")
  expect_error(function() quant.load_importance(path, model) end, "general.type is model")
end)

test("texts of a tokenizer", function()
  local folder = cases .. "llama3"
  local model, tokenizer = redco.models.from_pretrained(folder),
    redco.Tokenizer.from_pretrained(folder)
  local text = "one two three four five six seven"
  local found = quant.importance(model, { text }, { tokenizer = tokenizer, max_length = 4 })
  assert(found["model.layers.0.mlp.up_proj"])
end)

os.remove(path)
testing.finish()
