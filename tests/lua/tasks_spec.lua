-- Other heads on models: classification, regression, tokens, answers; tests/peers compares their
-- numbers with transformers. And the text models of folders that also read images.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local tiny = { model_type = "llama", vocab_size = 11, hidden_size = 8, intermediate_size = 12,
  num_hidden_layers = 1, num_attention_heads = 2, pad_token_id = 0 }

local function new(task, changes)
  local config = {}
  for _, source in ipairs { tiny, changes or {} } do
    for key, value in pairs(source) do config[key] = value end
  end
  return redco.models.from_config(config, { task = task, generator = torch.Generator(1) })
end

local input_ids = torch.tensor { { 3, 4, 5, 0 }, { 6, 7, 8, 9 } }

test("a task has the head and the architecture that transformers has for it", function()
  local model = new "sequence_classification"
  expect_equal(model.config.architectures[1], "LlamaForSequenceClassification")
  expect_equal(model.params["lm_head.weight"], nil)
  expect_equal(table.concat(model.params["score.weight"].shape, " "), "2 8")
  model = new("token_classification", { num_labels = 5 })
  expect_equal(table.concat(model.params["score.weight"].shape, " "), "5 8")
  expect_equal(table.concat(model.params["score.bias"].shape, " "), "5")
  model = new "question_answering"
  assert(model.params["transformer.embed_tokens.weight"] and model.params["qa_outputs.bias"])
end)

test("a sequence is read at its last token that is no padding", function()
  local model = new "sequence_classification"
  local logits = model(model.params, { input_ids = input_ids })
  local alone = model(model.params, { input_ids = input_ids:narrow(1, 0, 3):narrow(0, 0, 1) })
  testing.expect_close(logits:narrow(0, 0, 1), alone, 1e-5, 1e-6)
  local left = torch.tensor { { 0, 3, 4, 5 } }
  logits = model(model.params, { input_ids = left, attention_mask = left:ne(0):to "int64" })
  testing.expect_close(logits, alone, 1e-5, 1e-6)
  model = new("sequence_classification", { pad_token_id = false })
  expect_error(function() model(model.params, { input_ids = input_ids }) end, "tasks_spec.lua:",
    "llama", "pad_token_id")
end)

test("encoder-decoders read the last end token of their inputs", function()
  local config = { model_type = "bart", vocab_size = 11, d_model = 8, encoder_layers = 1,
    decoder_layers = 1, encoder_attention_heads = 2, decoder_attention_heads = 2,
    encoder_ffn_dim = 12, decoder_ffn_dim = 12, decoder_start_token_id = 2 }
  local options = { task = "sequence_classification", generator = torch.Generator(1) }
  local model = redco.models.from_config(config, options)
  expect_equal(model.config.architectures[1], "BartForSequenceClassification")
  expect_equal(model.params.final_logits_bias, nil)
  local ids = torch.tensor { { 0, 2, 4, 2, 5 }, { 0, 7, 8, 9, 3 } }
  local logits = model(model.params, { input_ids = ids })
  local hidden = model.hidden_states(model.params, { input_ids = ids })
  expect_equal(table.concat(hidden.shape, " "), "2 5 8")
  expect_close(model.logits(model.params, hidden, { input_ids = ids })[0], logits[0], 0, 0)
  expect_equal(logits[1]:isnan():all():item(), true)  -- which has no end token
  -- The decoder sees no token after the one that is read.
  local other = torch.tensor { { 0, 2, 4, 2, 9 } }
  local mask = torch.tensor { { 1, 1, 1, 1, 0 } }
  testing.expect_close(model(model.params, { input_ids = other, attention_mask = mask }),
    model(model.params, { input_ids = ids:narrow(0, 0, 1), attention_mask = mask }), 1e-5, 1e-6)
  expect_error(function() model.generate(model.params, { input_ids = ids }) end,
    "BartForSequenceClassification writes no text")
  expect_error(function()
    model(model.params, { input_ids = ids, decoder_input_ids = ids:narrow(1, 0, 2) })
  end, "2 decoder_input_ids")
  expect_error(function() redco.models.from_config(config, { task = "token_classification" }) end,
    "unknown task 'token_classification'", "question_answering, sequence_classification")
end)

test("T5 classifies tokens by its encoder alone", function()
  local config = { model_type = "t5", vocab_size = 11, d_model = 8, d_kv = 4, d_ff = 12,
    num_layers = 1, num_heads = 2 }
  local whole = redco.models.from_config(config, { generator = torch.Generator(1) })
  whole.save_pretrained(testing.folder())
  local model = redco.models.from_pretrained(testing.folder(), { task = "token_classification" })
  assert(not model.is_encoder_decoder and not model.encode)
  assert(not model.params["transformer.decoder.final_layer_norm.weight"])
  testing.expect_close(model.params["transformer.shared.weight"], whole.params["shared.weight"],
    0, 0)
  local logits = model(model.params, { input_ids = input_ids })
  expect_equal(table.concat(logits.shape, " "), "2 4 2")
end)

test("the kind of loss is that of the labels, or of problem_type", function()
  local function loss(changes, labels)
    local model = new("sequence_classification", changes)
    local logits = model(model.params, { input_ids = input_ids })
    local actual, count = model.loss(model.params, { input_ids = input_ids, labels = labels })
    return actual, logits, count:item()
  end
  local labels = torch.tensor { 1, 0 }
  local actual, logits, count = loss({}, labels)
  testing.expect_close(actual, (redco.nn.cross_entropy(logits, labels)), 1e-6)
  expect_equal(count, 2)
  labels = torch.tensor { 0.5, -1 }
  actual, logits = loss({ num_labels = 1 }, labels)
  testing.expect_close(actual, (logits:squeeze(1) - labels):pow(2):mean(), 1e-6)
  labels = torch.tensor { { 1, 0, 1 }, { 0, 0, 1 } }:float()
  actual, logits, count = loss({ num_labels = 3 }, labels)
  testing.expect_close(actual, torch.binary_cross_entropy_with_logits(logits, labels), 1e-6)
  expect_equal(count, 6)
  actual, logits = loss({ num_labels = 3, problem_type = "regression" }, labels)
  testing.expect_close(actual, (logits - labels):pow(2):mean(), 1e-6)
end)

test("an answer beyond the text does not count", function()
  local model = new "question_answering"
  local function loss(first, last)
    return (model.loss(model.params, { input_ids = input_ids, start_positions = torch.tensor(first),
      end_positions = torch.tensor(last) })):item()
  end
  local logits = model(model.params, { input_ids = input_ids })
  local expected = redco.nn.cross_entropy(logits:select(-1, 0), torch.tensor { 1, 2 })
    + redco.nn.cross_entropy(logits[1]:select(-1, 1):unsqueeze(0), torch.tensor { 3 })
  testing.expect_close(torch.tensor(loss({ 1, 2 }, { 9, 3 })), expected / 2, 1e-5)
end)

test("a folder opens with its head, or gets a new one", function()
  local folder = testing.folder()
  new().save_pretrained(folder .. "/whole")
  local function open(task, config)
    return redco.models.from_pretrained(folder .. "/whole",
      { task = task, config = config, generator = torch.Generator(2) })
  end
  expect_equal(open().family.task, nil)
  expect_equal(open("causal_lm").family.task, nil)
  local model = open("sequence_classification", { num_labels = 3 })
  expect_equal(model.params["score.weight"]:size(0), 3)
  testing.expect_close(model.params["model.norm.weight"], open().params["model.norm.weight"], 0, 0)
  model.save_pretrained(folder .. "/classes")
  local again = redco.models.from_pretrained(folder .. "/classes")
  expect_equal(again.family.task, "sequence_classification")
  testing.expect_close(again.params["score.weight"], model.params["score.weight"], 0, 0)
  local answers = open "question_answering"
  testing.expect_close(answers.params["transformer.norm.weight"],
    open().params["model.norm.weight"], 0, 0)
end)

test("a decoder that was saved without its head opens without one", function()
  for _, is_tied in ipairs { false, true } do
    local folder = testing.folder() .. (is_tied and "/tied" or "/untied")
    local whole = new(nil, { tie_word_embeddings = is_tied })
    whole.save_pretrained(folder .. "_whole")
    local model = redco.models.from_pretrained(folder .. "_whole", { task = "features" })
    expect_equal(model.config.architectures[1], "LlamaModel")
    local inputs = { input_ids = input_ids, attention_mask = input_ids:ne(0):long() }
    expect_close(model(model.params, inputs), whole.hidden_states(whole.params, inputs), 0, 0)
    model.save_pretrained(folder)
    local again = redco.models.from_pretrained(folder)
    expect_equal(again.family.task, "features")
    for name, tensor in pairs(again.params) do
      assert(torch.equal(tensor, whole.params["model." .. name]), name)
    end
    local left = redco.tree.map(function(tensor) return tensor:flip { 1 } end, inputs)
    for _, given in ipairs { inputs, left } do
      local states, seen = again(again.params, given), given.attention_mask
      local last = (seen * torch.arange(4)):argmax(1):tolist()
      local pooled = again(again.params, given, { pooling = "last" })
      for row = 0, 1 do expect_close(pooled[row], states[{ row, last[row + 1] }], 0, 0) end
    end
    expect_error(function() again.generate(again.params, inputs) end, "LlamaModel writes no text")
    expect_error(function() again(again.params, inputs, { pooling = "pooler" }) end,
      "expected none, cls, last, max, mean")
  end
end)

test("a mixture of experts without a head returns the routers' logits, too", function()
  local model = redco.models.from_config({ model_type = "mixtral", vocab_size = 11,
    hidden_size = 8, intermediate_size = 12, num_hidden_layers = 2, num_attention_heads = 2,
    num_key_value_heads = 1, num_local_experts = 2 }, { task = "features" })
  local _, routers = model(model.params, { input_ids = input_ids })
  expect_equal(#routers, 2)
end)

test("without inputs of the decoder the hidden states are the encoder's", function()
  local config = { model_type = "t5", vocab_size = 11, d_model = 8, d_kv = 4, d_ff = 12,
    num_layers = 1, num_heads = 2, decoder_start_token_id = 0 }
  local model = redco.models.from_config(config, { generator = torch.Generator(1) })
  local inputs = { input_ids = input_ids }
  local states = model.encode(model.params, inputs)
  expect_close(model.hidden_states(model.params, inputs), states, 0, 0)
  model.save_pretrained(testing.folder() .. "/t5")
  local encoder = redco.models.from_pretrained(testing.folder() .. "/t5", { task = "features" })
  expect_equal(encoder.config.architectures[1], "T5EncoderModel")
  expect_close(encoder(encoder.params, inputs), states, 0, 0)
  expect_close(encoder(encoder.params, inputs, { pooling = "mean" }), states:mean { 1 }, 1e-6, 1e-7)
  -- A folder of T5Model.
  config.tie_word_embeddings = false
  local untied = redco.models.from_config(config, { generator = torch.Generator(1) })
  untied.save_pretrained(testing.folder() .. "/t5_untied")
  untied.params["lm_head.weight"] = nil
  torch.save(untied.params, testing.folder() .. "/t5_untied/model.safetensors")
  expect_error(function() redco.models.from_pretrained(testing.folder() .. "/t5_untied") end,
    "lm_head.weight", "T5EncoderModel", 'task = "features"')
  inputs.labels = input_ids
  local decoded = model.hidden_states(model.params, inputs)
  assert(not torch.allclose(decoded, states))
  expect_close(model.logits(model.params, decoded), model(model.params, inputs), 0, 0)
end)

test("generation refuses what it does not read", function()
  local model = new()
  for _, name in ipairs { "position_ids", "segment_ids", "atention_mask" } do
    expect_error(function()
      model.generate(model.params, { input_ids = input_ids, [name] = input_ids })
    end, "tasks_spec.lua:", "inputs." .. name)
  end
  local t5 = redco.models.from_config { model_type = "t5", vocab_size = 11, d_model = 8, d_kv = 4,
    d_ff = 12, num_layers = 1, num_heads = 2, decoder_start_token_id = 0 }
  expect_error(function()
    t5.loss(t5.params, { input_ids = input_ids, labels = input_ids,
      decoder_atention_mask = input_ids })
  end, "did you mean 'decoder_attention_mask'")
end)

test("a mask over the cache has the tokens seen before", function()
  local model, cache = new(), redco.models.new_cache()
  model(model.params, { input_ids = input_ids }, { cache = cache })
  expect_error(function()
    model(model.params, { input_ids = input_ids:narrow(1, 0, 1),
      attention_mask = torch.ones { 2, 1 } }, { cache = cache })
  end, "attention_mask is [2, 1], expected [2, 5]", "after 4 tokens in the cache")
end)

test("what a task does not do is an error", function()
  expect_error(function() new "fill_mask" end, "tasks_spec.lua:", "llama: unknown task 'fill_mask'",
    "question_answering, sequence_classification, token_classification, causal_lm")
  expect_error(function() new("sequence_classification", { problem_type = "ranking" }) end,
    "llama", "problem_type 'ranking'")
  local model = new "sequence_classification"
  expect_error(function() model.generate(model.params, { input_ids = input_ids }) end,
    "LlamaForSequenceClassification", "no text")
  expect_error(function() model.loss(model.params, { input_ids = input_ids }) end, "labels")
end)

test("the text model of a folder that also reads images is read alone", function()
  local source = assert(os.getenv "REDCO_SOURCE") .. "/tests/cases/gemma3"
  local text = redco.models.from_pretrained(source)
  for _, names in ipairs { { "model.", "model.language_model." },
    { "model.", "language_model.model." } } do
    local folder = testing.folder()
    local weights = { ["vision_tower.weight"] = torch.ones { 2 } }
    for name, tensor in pairs(text.params) do
      weights[(name:gsub("^" .. names[1]:gsub("%.", "%%."), names[2]))] = tensor
    end
    torch.save(weights, folder .. "/model.safetensors")
    local config = redco.data.json(source .. "/config.json")
    testing.write(folder .. "/config.json", require("redco.native").json_encode("config.json",
      { model_type = "aya_vision", text_config = config, vision_config = {} }, 2))
    local model = redco.models.from_pretrained(folder)
    expect_equal(model.config.model_type, "gemma3_text")
    testing.expect_close(model(model.params, { input_ids = input_ids }),
      text(text.params, { input_ids = input_ids }), 0, 0)
  end
end)

test("the bias of an untied masked language model has both names in a file", function()
  for model_type, names in pairs {
    bert = { "cls.predictions.bias", "cls.predictions.decoder.bias" },
    ["deberta-v2"] = { "cls.predictions.bias", "cls.predictions.decoder.bias" },
    roberta = { "lm_head.bias", "lm_head.decoder.bias" },
  } do
    local dir = testing.folder() .. "/untied_" .. model_type
    local model = redco.models.from_config { model_type = model_type, vocab_size = 11,
      hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1, num_attention_heads = 2,
      max_position_embeddings = 12, tie_word_embeddings = false }
    torch.no_grad(function() model.params[names[1]]:fill_(1) end)
    model.save_pretrained(dir)
    local path = dir .. "/model.safetensors"
    local weights = torch.load(path)
    expect_equal(weights[names[2]]:sum():item(), 11)
    -- transformers 5 writes two values and uses the second.
    weights[names[2]] = torch.full({ 11 }, 2)
    local function read_bias()
      os.remove(path)
      torch.save(weights, path)
      return redco.models.from_pretrained(dir).params[names[1]]:sum():item()
    end
    expect_equal(read_bias(), 22)
    weights[names[2]] = nil
    expect_equal(read_bias(), 11)
  end
end)

test("T5Gemma classifies by its decoder, or by its encoder alone", function()
  local part = { vocab_size = 20, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1,
    num_attention_heads = 2, num_key_value_heads = 2, head_dim = 4, pad_token_id = 0,
    bos_token_id = 1, eos_token_id = 2 }
  local ids = torch.tensor { { 5, 6, 7, 0 }, { 8, 9, 10, 11 } }
  for _, has_decoder in ipairs { true, false } do
    for _, task in ipairs { "sequence_classification", "token_classification" } do
      local model = redco.models.from_config({ model_type = "t5gemma", encoder = part,
        decoder = part, num_labels = 3, is_encoder_decoder = has_decoder },
        { task = task, generator = torch.Generator(1) })
      expect_equal(model.params["model.decoder.norm.weight"] ~= nil, has_decoder)
      local function run(tokens)
        return model(model.params, { input_ids = tokens, attention_mask = tokens:ne(0):long() })
      end
      local logits = run(ids)
      local is_of_rows = task == "sequence_classification"
      expect_equal(table.concat(logits.shape, ","), is_of_rows and "2,3" or "2,4,3")
      if is_of_rows then  -- padding changes nothing
        local alone = run(ids:narrow(0, 0, 1):narrow(1, 0, 3))
        testing.expect_close(run(torch.tensor { { 5, 6, 7, 0, 0 } }), logits:narrow(0, 0, 1), 1e-5,
          1e-6)
        -- The decoder reads the token one place further, which is not there without padding.
        if not has_decoder then
          testing.expect_close(alone, logits:narrow(0, 0, 1), 1e-5, 1e-6)
        end
      end
    end
  end
end)

testing.finish()
