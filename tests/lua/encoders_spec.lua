-- Encoders: what tests/peers does not compare with transformers. Names of old files, settings that
-- are refused, padding, adapters, precisions.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local tiny = { vocab_size = 11, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1,
  num_attention_heads = 2, max_position_embeddings = 12, pad_token_id = 1 }
local names = { distilbert = { hidden_size = "dim", intermediate_size = "hidden_dim",
  num_hidden_layers = "n_layers", num_attention_heads = "n_heads" } }
local adapted = { distilbert = "q_lin", ["deberta-v2"] = "query_proj", modernbert = "Wqkv" }
local model_types = { "bert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta",
  "xlm-roberta" }

local function new(model_type, task, changes)
  local config = { model_type = model_type }
  for key, value in pairs(tiny) do config[(names[model_type] or {})[key] or key] = value end
  for key, value in pairs(changes or {}) do config[key] = value end
  return redco.models.from_config(config, { task = task, generator = torch.Generator(1) })
end

local ids = torch.tensor { { 3, 4, 5, 1, 1 }, { 6, 7, 8, 9, 10 } }
local mask = ids:ne(1):to "int64"

test("padding on the right changes nothing", function()
  for _, model_type in ipairs(model_types) do
    local model = new(model_type)
    local logits = model(model.params, { input_ids = ids, attention_mask = mask })
    local alone = model(model.params, { input_ids = ids:narrow(0, 0, 1):narrow(1, 0, 3) })
    expect_close(logits:narrow(0, 0, 1):narrow(1, 0, 3), alone, 1e-5, 1e-6)
    assert(logits:isfinite():all():item(), model_type)
  end
end)

test("the padding row gets no gradient but that of the head", function()
  local model = new("bert", "token_classification")
  local _, gradients = redco.value_and_grad(function(params)
    return (model.loss(params, { input_ids = ids, labels = ids:clamp(0, 1) }))
  end)(model.params)
  local rows = gradients["bert.embeddings.word_embeddings.weight"]:abs():sum { 1 }
  expect_equal(rows[1]:item(), 0)
  assert(rows[3]:item() > 0)
end)

test("a new model trains, low in memory, in bfloat16, with adapters", function()
  for _, model_type in ipairs(model_types) do
    local folder = testing.folder() .. "/" .. model_type
    new(model_type).save_pretrained(folder)
    local batch = { input_ids = ids, attention_mask = mask, labels = ids }
    local model = redco.models.from_pretrained(folder)
    local loss = model.loss(model.params, batch):item()
    local mapped = redco.models.from_pretrained(folder, { low_memory = true })
    expect_equal(mapped.loss(mapped.params, batch):item(), loss)
    local narrow = redco.models.from_pretrained(folder, { dtype = "bfloat16" })
    expect_close(torch.tensor(narrow.loss(narrow.params, batch):item()), torch.tensor(loss), 0.02)
    local _, gradients = redco.value_and_grad(function(params)
      return (model.loss(params, batch))
    end)(redco.lora.add(model.params, { r = 2, target_modules = { adapted[model_type] or "query" },
      generator = torch.Generator(1) }))
    local n_adapters = 0
    for name, gradient in pairs(gradients) do
      if name:find "lora_B" then
        n_adapters = n_adapters + 1
        assert(gradient:abs():sum():item() > 0, name)
      end
    end
    expect_equal(n_adapters, 1)
  end
end)

test("old names of norms, and further heads", function()
  local source, folder = new "bert", testing.folder()
  local weights = { ["cls.seq_relationship.weight"] = torch.ones { 2, 8 },
    ["bert.pooler.dense.weight"] = torch.ones { 8, 8 },
    ["bert.embeddings.position_ids"] = torch.zeros { 1, 12 } }
  for name, tensor in pairs(source.params) do
    weights[(name:gsub("LayerNorm%.weight", "LayerNorm.gamma")
      :gsub("LayerNorm%.bias", "LayerNorm.beta"))] = tensor
  end
  source.save_pretrained(folder)
  torch.save(weights, folder .. "/model.safetensors")
  local model = redco.models.from_pretrained(folder)
  expect_close(model(model.params, { input_ids = ids }), source(source.params, { input_ids = ids }),
    0, 0)
end)

test("a head that is not tied to the embedding, and the one of DeBERTa's authors", function()
  for model_type, name in pairs { bert = "cls.predictions.decoder.weight",
    ["deberta-v2"] = "cls.predictions.decoder.weight", distilbert = "vocab_projector.weight",
    electra = "generator_lm_head.weight", modernbert = "decoder.weight",
    roberta = "lm_head.decoder.weight" } do
    local tied, model = new(model_type), new(model_type, nil, { tie_word_embeddings = false })
    expect_equal(tied.params[name], nil)
    expect_equal(model.params[name]:size(0), model.config.vocab_size)
    local before = model(model.params, { input_ids = ids })
    redco.torch.no_grad(function() model.params[name]:mul_(2) end)
    assert(not torch.equal(model(model.params, { input_ids = ids }), before), model_type)
  end
  local model = new("deberta-v2", nil, { legacy = false })
  assert(model.params["lm_predictions.lm_head.dense.weight"])
  expect_equal(model.params["cls.predictions.transform.dense.weight"], nil)
end)

test("DeBERTa's convolution does not see padding", function()
  local model = new("deberta-v2", "token_classification", { conv_kernel_size = 3 })
  local padding = torch.tensor { { 1, 1, 1, 0, 0 }, { 1, 1, 1, 1, 1 } }
  local padded = model(model.params, { input_ids = ids, attention_mask = padding })
  local alone = model(model.params, { input_ids = ids:narrow(0, 0, 1):narrow(1, 0, 3) })
  expect_close(padded:narrow(0, 0, 1):narrow(1, 0, 3), alone, 1e-4, 1e-5)
end)

test("what is not supported is refused by name", function()
  for key, value in pairs { is_decoder = true, add_cross_attention = true,
    position_embedding_type = "relative_key" } do
    expect_error(function() new("bert", nil, { [key] = value }) end, "encoders_spec.lua:",
      "bert: " .. key, tostring(value))
  end
  expect_error(function() new("distilbert", nil, { sinusoidal_pos_embds = true }) end,
    "sinusoidal_pos_embds")
  for key, value in pairs { conv_kernel_size = 2, conv_groups = 3, conv_act = 1 } do
    local changes = { conv_kernel_size = 3, [key] = value }
    expect_error(function() new("deberta-v2", nil, changes) end, "deberta-v2", key)
  end
  expect_error(function() new("deberta-v2", nil, { legacy = false, embedding_size = 4 }) end,
    "embedding_size (4)", "legacy")
  expect_error(function() new("roberta", nil, { pad_token_id = false }) end, "pad_token_id")
  expect_error(function() new("bert", nil, { hidden_sizes = 8 }) end, "hidden_sizes",
    "did you mean 'hidden_size'")
  expect_error(function() new("bert", "causal_lm") end, "unknown task 'causal_lm'", "masked_lm")
  local model = new "distilbert"
  expect_error(function() model(model.params, { input_ids = ids, token_type_ids = ids }) end,
    "distilbert", "token_type_ids")
  model = new("roberta", nil, { max_position_embeddings = 6 })
  expect_error(function() model(model.params, { input_ids = ids }) end, "5 tokens", "4 positions")
  expect_error(function() model.generate(model.params, { input_ids = ids }) end, "no text")
end)

test("a choice for each row", function()
  for _, model_type in ipairs { "bert", "electra", "modernbert" } do
    local model = new(model_type, "multiple_choice")
    local choices = torch.stack({ ids, ids:flip { 1 } }, 1)
    local logits = model(model.params, { input_ids = choices })
    expect_equal(table.concat(logits.shape, " "), "2 2")
    local first = model(model.params, { input_ids = ids:unsqueeze(1) })
    expect_close(logits:narrow(1, 0, 1), first, 1e-5, 1e-6)
    expect_error(function() model(model.params, { input_ids = ids }) end, "choices")
  end
end)

test("ModernBERT's choices read the first token that is no padding", function()
  local model = new("modernbert", "multiple_choice")
  local padded = torch.cat({ torch.zeros_like(ids:narrow(1, 0, 2)), ids }, 1)
  local seen = torch.cat({ torch.zeros { ids:size(0), 2 }, torch.ones(ids.shape) }, 1):long()
  -- Positions count padding.
  local places = torch.arange(2, 2 + ids:size(1)):unsqueeze(0)
  expect_close(model(model.params, { input_ids = padded:unsqueeze(1),
    attention_mask = seen:unsqueeze(1) }), model(model.params, { input_ids = ids:unsqueeze(1),
    position_ids = places }), 1e-4, 1e-5)
end)

test("ModernBERT reads the keys of transformers 5", function()
  local model = new("modernbert", nil, { num_hidden_layers = 3, layer_types = { "full_attention",
    "sliding_attention", "full_attention" }, rope_parameters = {
    full_attention = { rope_type = "default", rope_theta = 777 },
    sliding_attention = { rope_type = "default", rope_theta = 55 } } })
  expect_equal(model.config.global_attn_every_n_layers, 2)
  expect_equal(model.config.global_rope_theta, 777)
  expect_equal(model.config.local_rope_theta, 55)
end)

testing.finish()
