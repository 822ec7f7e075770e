-- Whisper's generation against transformers: prompts, times, sound of more than one window.
local cases = require "model_cases"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

local case = cases.open(cases.folders[1], "whisper")
local model = redco.models.from_pretrained(case.dir)
local arrays = case.arrays

local parts = {}
for i = 0, 4 do parts[i + 1] = arrays[("batch%d.input_features"):format(i)] end
local long = torch.cat(parts, 2):narrow(2, 0, 430)
local mask = torch.ones({ 2, 430 }, { dtype = "int64" })
mask[1]:narrow(0, 260, 170):fill_(0)
local inputs = {
  short = { input_features = parts[1] },
  few = { input_features = parts[2]:narrow(2, 0, 64) },
  long = { input_features = long:narrow(0, 0, 1) },
  two_long = { input_features = long, attention_mask = mask },
}

local function shown(rows)
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = table.concat(row, " ") end
  return table.concat(lines, "\n")
end

local function shown_segments(rows)
  local lines = {}
  for _, row in ipairs(rows) do
    for _, segment in ipairs(row) do
      lines[#lines + 1] = ("%.3f %.3f: %s"):format(segment.start, segment["end"],
        table.concat(segment.tokens, " "))
    end
    lines[#lines + 1] = ""
  end
  return table.concat(lines, "\n")
end

local stored = redco.data.json "whisper_cases.json"
for _, expected in ipairs(stored) do
  test("transformers: " .. expected.name, function()
    model.generation_config = expected.generation_config
    local sequences, segments = model.generate(model.params, inputs[expected.features],
      expected.options)
    expect_equal(shown(sequences:tolist()), shown(expected.sequences))
    expect_equal(shown_segments(segments), shown_segments(expected.segments))
  end)
end

model.generation_config = {
  decoder_start_token_id = 561, eos_token_id = 560, pad_token_id = 560, max_length = 20,
  no_timestamps_token_id = 569, is_multilingual = true,
  lang_to_id = { ["<|en|>"] = 562, ["<|es|>"] = 563 },
  task_to_id = { transcribe = 565, translate = 564 },
}

local function generate(options, given)
  return model.generate(model.params, given or inputs.short, options)
end

test("what is not supported, or does not fit, is an error that names it", function()
  for name, value in pairs { compression_ratio_threshold = 1.35, logprob_threshold = -1,
    no_speech_threshold = 0.6, condition_on_prev_tokens = true, prompt_ids = { 567 },
    return_token_timestamps = true, temperature = { 0, 0.2 } } do
    expect_error(function() generate { [name] = value } end, name)
    local kept = model.generation_config
    model.generation_config = redco.tree.map(function(v) return v end, kept)
    model.generation_config[name] = value
    if name ~= "temperature" then expect_error(function() generate() end, name) end
    model.generation_config = kept
  end
  expect_error(function() generate { language = "klingon" } end, "klingon", "en, es")
  expect_error(function() generate { language = 3 } end, "language is 3")
  expect_error(function() generate { language = { "en" } } end, "1 languages for 2 rows")
  expect_error(function() generate { task = "sing" } end, "sing", "translate")
  expect_error(function() generate { return_timestamp = true } end, "return_timestamp")
  expect_error(function() generate { max_new_tokens = 48 } end, "max_target_positions, 48")
  expect_error(function() generate({ return_timestamps = false }, inputs.long) end, "times")
  expect_error(function() generate({}, { input_features = long }) end, "attention_mask")
  expect_error(function() model(model.params, { input_features = long, labels = mask }) end,
    "[2, 80, 430]", "[batch, 80, 100]")
  expect_error(function() redco.models.from_config { model_type = "whisper",
    apply_spec_augment = true } end, "apply_spec_augment")
  local other = redco.models.from_pretrained(case.dir)
  other.generation_config = { decoder_start_token_id = 561, eos_token_id = 560 }
  expect_error(function()
    other.generate(other.params, inputs.short, { return_timestamps = true })
  end, "no_timestamps_token_id")
  expect_error(function() other.generate(other.params, inputs.short, { task = "translate" }) end,
    "task_to_id")
  other.generation_config.no_timestamps_token_id = 623
  expect_error(function()
    other.generate(other.params, inputs.short, { return_timestamps = true })
  end, "623", "no times")
end)

test("a window without progress does not repeat for ever", function()
  local timestamps = require "redco.generation.whisper_timestamps"
  local segments, n_frames = timestamps.segments({ 570, 570, 5 }, 570, 0, 100)
  expect_equal(n_frames, 100)
  expect_equal(#segments, 1)
end)

test("sampling: a temperature samples, 0 does not, a seed repeats", function()
  local greedy = shown(generate():tolist())
  expect_equal(shown(generate { temperature = 0 }:tolist()), greedy)
  local sampled = shown(generate { temperature = 3, seed = 1 }:tolist())
  assert(sampled ~= greedy)
  expect_equal(shown(generate { temperature = 3, seed = 1 }:tolist()), sampled)
  assert(sampled ~= shown(generate { temperature = 3, seed = 2 }:tolist()))
end)

test("a Predictor gives the same texts, long and short", function()
  for _, name in ipairs { "short", "long" } do
    local examples = {}
    local features = inputs[name].input_features
    for i = 0, features:size(0) - 1 do examples[i + 1] = features[i] end
    local predictor = redco.Predictor {
      deployer = redco.Deployer { seed = 1, verbose = false },
      collate_fn = function(rows) return { input_features = torch.stack(rows) } end,
      pred_fn = function(_, params, batch) return (model.generate(params, batch)) end,
    }
    local expected = generate(nil, inputs[name])
    local preds = predictor:predict { examples = examples, params = model.params,
      per_device_batch_size = #examples }
    for i, pred in ipairs(preds) do testing.expect_close(pred, expected[i - 1], 0, 0) end
  end
end)

test("bfloat16, adapters and mapped weights", function()
  local batch = { input_features = parts[1], labels = arrays["batch0.labels"] }
  local loss = model.loss(model.params, batch):item()
  local narrow = redco.models.from_pretrained(case.dir, { dtype = "bfloat16" })
  local off = math.abs(narrow.loss(narrow.params, batch):item() - loss)
  assert(off < 0.02 * loss, off)
  expect_equal(narrow.generate(narrow.params, inputs.short, { max_new_tokens = 3 }):size(0), 2)
  local mapped = redco.models.from_pretrained(case.dir, { low_memory = true })
  expect_equal(mapped.loss(mapped.params, batch):item(), loss)
  local params = redco.lora.add(model.params, { target_modules = { "q_proj", "v_proj", "fc1" },
    generator = torch.Generator(1) })
  for name, leaf in pairs(params) do
    if name:find "lora_B" then
      params[name] = torch.randn(leaf.shape, { generator = torch.Generator(2) }) * 0.1
    end
  end
  local adapted = model.loss(params, batch):item()
  assert(math.abs(adapted - loss) > 1e-3)
  local merged = redco.lora.merge(params)
  assert(math.abs(model.loss(merged, batch):item() - adapted) < 1e-4 * loss)
end)

test("a saved folder has the same prompts and texts", function()
  local given = redco.data.json "whisper_cases.json"[1].generation_config
  local folder = testing.folder() .. "/saved"
  model.generation_config.forced_decoder_ids = given.forced_decoder_ids
  model.save_pretrained(folder)
  local read = redco.models.from_pretrained(folder)
  expect_equal(shown(read.generate(read.params, inputs.short):tolist()),
    shown(generate():tolist()))
end)

test("a new model has sinusoids as positions, which training leaves", function()
  local name = "model.encoder.embed_positions.weight"
  local new = redco.models.from_config { model_type = "whisper", d_model = 8, encoder_layers = 1,
    decoder_layers = 1, encoder_attention_heads = 2, decoder_attention_heads = 2,
    encoder_ffn_dim = 8, decoder_ffn_dim = 8, vocab_size = 9, max_source_positions = 5,
    max_target_positions = 6, num_mel_bins = 3, pad_token_id = 0, bos_token_id = 0,
    eos_token_id = 0, decoder_start_token_id = 1 }
  local positions = new.params[name]
  testing.expect_close(positions[2], torch.tensor { math.sin(2), math.sin(2 * 10000 ^ (-1 / 3)),
    math.sin(2 * 10000 ^ (-2 / 3)), math.sin(2e-4), math.cos(2), math.cos(2 * 10000 ^ (-1 / 3)),
    math.cos(2 * 10000 ^ (-2 / 3)), math.cos(2e-4) }, 1e-6, 1e-6)
end)

local tokenizer = redco.Tokenizer.from_pretrained(case.dir)

test("the tokenizer leaves out times, or shows them over the windows", function()
  local text = tokenizer:encode("a red", { add_special_tokens = false })
  local function ids(...)
    local all = {}
    for _, part in ipairs { ... } do
      for _, id in ipairs(type(part) == "table" and part or { part }) do all[#all + 1] = id end
    end
    return all
  end
  local function decoded(given, times)
    return tokenizer:decode(given, { skip_special_tokens = true, decode_with_timestamps = times })
  end
  local first = ids(561, 562, 565, 570, text, 590, 590, text, 600)
  expect_equal(decoded(first), "a reda red")
  expect_equal(decoded(first, true), "<|0.00|>a red<|0.40|><|0.40|>a red<|0.60|>")
  -- After one time the next window begins at 30 seconds; after a pair, at its first.
  expect_equal(decoded(ids(first, 570, text, 575), true),
    "<|0.00|>a red<|0.40|><|0.40|>a red<|0.60|><|30.00|>a red<|30.10|>")
  expect_equal(decoded(ids(570, text, 590, 590, 570, text, 575), true),
    "<|0.00|>a red<|0.40|><|0.40|>a red<|0.50|>")
  expect_equal(decoded(ids(567, text, 561, 562, text)), "a red")
  expect_equal(decoded(ids(567, text)), "")
  expect_equal(tokenizer:batch_decode({ first })[1],
    "<|startoftranscript|><|en|><|transcribe|>a reda red")
  expect_equal(decoded({}), "")
end)

testing.finish()
