-- Models that read sound with texts: what tests/peers does not compare with transformers.
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close
local generator = torch.Generator(2)

local function integers(list) return torch.tensor(list, { dtype = "int64" }) end

local model = tiny.new "qwen2_audio"

local function logits(inputs, options) return model(model.params, inputs, options) end

-- Two texts, of two sounds and of one, with 3, 2 and 1 features of 13, 8 and 3 frames.
local ids = integers {
  { 3, 31, 31, 31, 4, 31, 31, 5 },
  { 6, 7, 31, 8, 9, 10, 11, 12 },
}
local frames = integers { { 13 }, { 8 }, { 3 } }
local mask = torch.arange(16):unsqueeze(0):lt(frames):to "int64"
local features = torch.randn({ 3, 4, 16 }, { generator = generator })
local inputs = { input_ids = ids, input_features = features, feature_attention_mask = mask }
local expected = logits(inputs)

-- Adds a sound of zeros and splits by rows.
local function in_rows(t)
  return torch.cat({ t, torch.zeros_like(t:narrow(0, 0, 1)) }, 0):unflatten(0, { 2, 2 })
end

test("sounds by rows, and a row alone with padding", function()
  expect_close(logits { input_ids = ids, input_features = in_rows(features),
    feature_attention_mask = in_rows(mask) }, expected, 1e-5, 1e-5)
  local row = torch.cat({ integers { { 0, 0 } }, ids:narrow(0, 1, 1) }, 1)
  local seen = torch.ones_like(row)
  seen:narrow(1, 0, 2):fill_(0)
  local alone = logits { input_ids = row, attention_mask = seen,
    input_features = features:narrow(0, 2, 1), feature_attention_mask = mask:narrow(0, 2, 1) }
  expect_close(alone:narrow(1, 2, 8), expected:narrow(0, 1, 1), 1e-4, 1e-5)
end)

test("a row without sounds", function()
  local text = integers { { 6, 7, 30, 8, 9, 10, 11, 12 } }
  local both = logits { input_ids = torch.cat({ ids:narrow(0, 0, 1), text }, 0),
    input_features = torch.stack({ features:narrow(0, 0, 2), torch.zeros { 2, 4, 16 } }),
    feature_attention_mask = torch.stack({ mask:narrow(0, 0, 2),
      torch.zeros({ 2, 16 }, { dtype = "int64" }) }) }
  expect_close(both:narrow(0, 0, 1), expected:narrow(0, 0, 1), 1e-5, 1e-5)
  expect_close(both:narrow(0, 1, 1), logits { input_ids = text }, 1e-5, 1e-5)
end)

test("only frames at the edge of padding count", function()
  -- The convolutions see two frames behind a sound of an odd number of frames.
  local function moved(first)
    local other = features:clone()
    other:select(0, 0):narrow(1, first, 16 - first):fill_(3)
    return (logits(tiny.merged(inputs, { input_features = other })) - expected):abs():max():item()
  end
  expect_equal(moved(15) < 1e-6, true)
  expect_equal(moved(14) > 1e-4, true)
end)

test("steps with a cache", function()
  local row, cache = ids:narrow(0, 0, 1), redco.models.new_cache()
  for _, step in ipairs { { 0, 4, 0 }, { 4, 1 }, { 5, 2, 1 }, { 7, 1 } } do
    local first, n, sound = unpack(step)
    local found = logits({ input_ids = row:narrow(1, first, n),
      input_features = sound and features:narrow(0, sound, 1),
      feature_attention_mask = sound and mask:narrow(0, sound, 1) }, { cache = cache })
    expect_close(found, expected:narrow(0, 0, 1):narrow(1, first, n), 1e-4, 1e-5)
  end
end)

test("a folder keeps names and values, and its text model opens alone", function()
  local dir = testing.folder() .. "/model"
  model.save_pretrained(dir)
  local opened = redco.models.from_pretrained(dir)
  expect_close(opened(opened.params, inputs), expected, 0, 0)
  local text = redco.models.from_pretrained(dir, { task = "causal_lm" })
  local words = integers { { 3, 4, 5 } }
  expect_close(text(text.params, { input_ids = words }), logits { input_ids = words }, 1e-6, 1e-6)
end)

test("weights of bfloat16, also beside positions of float32", function()
  local narrow = {}
  for name, leaf in pairs(model.params) do
    narrow[name] = name:find "embed_positions" and leaf or leaf:to "bfloat16"
  end
  local found = model(narrow, inputs)
  expect_equal(found.dtype, "bfloat16")
  expect_close(found:float(), expected, 0.1, 0.3)
end)

test("adapters train, and positions do not", function()
  local params = redco.lora.add(model.params, { target_modules = { "q_proj", "linear" }, r = 2,
    generator = generator })
  local function loss(given)
    return (model.loss(tiny.merged(params, given), tiny.merged(inputs, { labels = ids }),
      { shift = true }))
  end
  local name
  for key in pairs(params) do
    if key:find "audio_tower%.layers%.0%.self_attn%.q_proj.*lora_B" then name = key end
  end
  local _, gradients = redco.value_and_grad(loss)({ [name] = params[name] })
  expect_equal(gradients[name]:abs():max():item() > 0, true)
  local positions = "model.audio_tower.embed_positions.weight"
  _, gradients = redco.value_and_grad(function(given)
    return (model.loss(tiny.merged(model.params, given), tiny.merged(inputs, { labels = ids }),
      { shift = true }))
  end)({ [positions] = model.params[positions] })
  expect_equal(gradients[positions]:abs():max():item(), 0)
end)

test("what does not fit is named", function()
  local function refused(changes, ...)
    local given = tiny.merged(inputs, changes)
    expect_error(function() logits(given) end, ...)
  end
  refused({ input_features = features:narrow(0, 0, 2), feature_attention_mask = mask:narrow(0, 0,
    2) }, "input_ids have 6 sound tokens, expected 5 for 2 sounds")
  refused({ input_features = in_rows(features), feature_attention_mask = in_rows(mask),
    input_ids = ids:masked_fill(ids:eq(6), 31) },
    "row 2 of input_ids has 2 sound tokens, expected 1 for its sounds")
  expect_error(function() logits { input_ids = ids, input_features = features } end,
    "inputs.feature_attention_mask is missing")
  refused({ feature_attention_mask = mask:narrow(1, 0, 12) },
    "feature_attention_mask is [3, 12], expected [sounds, frames]")
  refused({ input_features = features:narrow(2, 0, 12), feature_attention_mask = mask:narrow(1, 0,
    12) }, "inputs.input_features are [3, 4, 12], expected [batch, 4, 16]")
  expect_error(function()
    redco.models.from_config(tiny.merged(tiny.config "qwen2_audio",
      { audio_config = { d_model = 10, encoder_attention_heads = 4 } }))
  end, "d_model (10) is not a multiple of encoder_attention_heads (4)")
end)

local case = "../cases/qwen2_audio"
local word = "<|audio_bos|><|AUDIO|><|audio_eos|>"

test("the processor, the logits and the tokens of a reference case", function()
  local known = torch.load(case .. "/expected.safetensors")
  local process, opened = redco.models.processor(case), redco.models.from_pretrained(case)
  local batch = process({ word .. "a red heart", "bone" }, { known.sound }, { padding = true })
  for _, name in ipairs { "input_ids", "attention_mask" } do
    expect_equal(batch[name]:equal(known[name]), true)
  end
  expect_equal(batch.feature_attention_mask:narrow(0, 0, 1):select(1, 0)
    :equal(known.feature_attention_mask), true)
  expect_close(batch.input_features[0], known.input_features, 0, 1e-5)
  expect_close(opened(opened.params, batch):narrow(0, 0, 1):select(1, -1), known.logits, 1e-4, 1e-4)
  local tokens = opened.generate(opened.params, batch, { max_new_tokens = 6 })
  expect_equal(tokens:equal(known.tokens), true)
end)

test("the processor counts sounds, of any number in each text", function()
  local process = redco.models.processor(case)
  local short, long = torch.randn { 800 }, torch.randn { 1, 20000 }  -- 5 frames, and 125 of 100
  local batch = process({ word .. "a" .. word, "b", "c" .. word }, { { short, long }, {},
    { short } }, { padding = true })
  expect_equal(table.concat(batch.input_features.shape, " "), "3 2 8 100")
  expect_equal(table.concat(batch.feature_attention_mask.shape, " "), "3 2 100")
  expect_equal(batch.input_features[1]:abs():max():item(), 0)
  local counts = batch.input_ids:eq(redco.models.from_pretrained(case).config.audio_token_index)
    :sum { 1 }
  expect_equal(table.concat(counts:tolist(), " "), "26 0 1")
  local one = process(word, short)
  expect_equal(table.concat(one.input_features.shape, " "), "1 8 100")
  expect_equal(process("b").input_features, nil)
  expect_error(function() process({ word, "b" }, { short, short }) end,
    "'<|AUDIO|>' 1 times for 2 sounds")
  expect_error(function() process(word, { torch.zeros { 2, 800 } }) end, "2 sounds")
  expect_error(function() process(word, { torch.zeros({ 800 }, { dtype = "int64" }) }) end,
    "expected floating-point sound")
  expect_error(function() process(word, short, { sampling_rate = 8000 }) end,
    "a sampling rate of 8000 Hz, the model 16000")
end)

test("chat templates with sounds", function()
  local text = redco.Tokenizer.from_pretrained(case):apply_chat_template({
    { role = "user", content = { { type = "audio" }, { type = "text", text = "bone" } } },
  }, { tokenize = false })
  expect_equal(text, "user: " .. word .. "bone")
end)

test("windows of Voxtral, in the order of their tokens or by rows", function()
  local voxtral, window = tiny.new "voxtral", { 31, 31, 31, 31 }
  local windows = torch.randn({ 3, 4, 16 }, { generator = generator })
  local rows = integers { { 3, 31, 31, 31, 31, 4, 31, 31, 31, 31, 5 },
    { 6, 31, 31, 31, 31, 7, 8, 9, 10, 11, 12 } }
  local function of(tokens, sounds)
    return voxtral(voxtral.params, { input_ids = tokens, input_features = sounds })
  end
  local both = of(rows, windows)
  expect_close(of(rows, in_rows(windows)), both, 1e-5, 1e-5)
  expect_close(of(rows:narrow(0, 1, 1), windows:narrow(0, 2, 1)), both:narrow(0, 1, 1), 1e-5, 1e-5)
  expect_error(function() of(rows, windows:narrow(0, 0, 2)) end,
    "voxtral: input_ids have 12 sound tokens, expected 8 for 2 sounds")
  expect_error(function() of(integers { window }, torch.zeros { 1, 4, 12 }) end,
    "voxtral_encoder: inputs.input_features are [1, 4, 12], expected [batch, 4, 16]")
  local config = tiny.config "voxtral"
  config.audio_config = tiny.merged(config.audio_config, { intermediate_size = 24 })
  expect_error(function() redco.models.from_config(config) end,
    "intermediate_size is 24, which does not divide max_source_positions * hidden_size, 128")
end)

test("a long sound has several windows of Voxtral, and its text the tokens of all", function()
  local dir = testing.folder() .. "/voxtral"
  local word_of = redco.Tokenizer.from_pretrained(case)
  local config = tiny.config "voxtral"
  config.audio_token_id = word_of:convert_tokens_to_ids "<|AUDIO|>"
  config.text_config = tiny.merged(config.text_config, { vocab_size = 772 })
  config.audio_config = tiny.merged(config.audio_config, { num_mel_bins = 8,
    max_source_positions = 50 })
  redco.models.from_config(config).save_pretrained(dir)
  for _, name in ipairs { "tokenizer.json", "tokenizer_config.json",
    "preprocessor_config.json" } do
    local file = assert(io.open(case .. "/" .. name))
    testing.write(dir .. "/" .. name, file:read "*a")
    file:close()
  end
  local process, long = redco.models.processor(dir), torch.randn { 20000 }
  local batch = process({ "<|AUDIO|>a", "b" }, { long }, { padding = true })
  expect_equal(table.concat(batch.input_features.shape, " "), "2 2 8 100")
  expect_equal(batch.input_ids:eq(config.audio_token_id):sum():item(), 50)
  -- Spectra are relative to the loudest part of the whole.
  local whole = redco.data.feature_extractor(dir)(long, { padding = "longest",
    truncation = false, pad_to_multiple_of = 16000 })
  expect_equal(whole:size(2), 200)
  expect_close(batch.input_features[0][1], whole[0]:narrow(1, 100, 100), 0, 0)
end)

testing.finish()
