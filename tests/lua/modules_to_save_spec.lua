-- Modules that are trained and saved whole beside adapters: new heads, modules_to_save.
local redco = require "redco"
local testing = require "testing"
local tiny_models = require "tiny_models"

local lora, torch, tree = redco.lora, redco.torch, redco.tree
local test, expect_close, expect_error = testing.test, testing.expect_close, testing.expect_error

local scratch = testing.folder()

local tiny_llama = { model_type = "llama", num_hidden_layers = 1, num_attention_heads = 2,
  hidden_size = 8, vocab_size = 16, intermediate_size = 12, pad_token_id = 0,
  initializer_range = 0.3 }

local function tiny(changes)
  local config = {}
  for key, value in pairs(tiny_llama) do config[key] = value end
  for key, value in pairs(changes or {}) do config[key] = value end
  return redco.models.from_config(config, { generator = redco.Rng(1) })
end

local sample = torch.tensor({ { 3, 5, 7, 2 }, { 4, 1, 1, 9 } }, { dtype = "int64" })

-- An adapter is nothing at first: gives it values.
local function shaken(params)
  for _, path in ipairs(tree.paths(params)) do
    assert(not path:find "lora_B" or path:find "lora_B%.weight$", path)
  end
  local index = 0
  return tree.map(function(leaf)
    index = index + 1
    local name = tree.paths(params)[index]
    return name:find "lora_B%.weight$" and torch.randn_like(leaf) or leaf
  end, params)
end

-- Trains two steps of the mean square of what `forward` returns.
local function train(params, forward, optimizer)
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
    optimizer = optimizer or lora.freeze_base(redco.optim.adamw { learning_rate = 0.05 }),
    collate_fn = function() return { input_ids = sample } end,
    loss_fn = function(_, _, p, batch) return forward(p, batch):square():mean() end,
  }
  for _ = 1, 2 do trainer:train { examples = { 1, 2 }, per_device_batch_size = 2 } end
  return trainer.params
end

for _, case in ipairs {
  { "sequence_classification", "score.weight" }, { "token_classification", "score.bias" },
  { "question_answering", "qa_outputs.weight" },
} do
  test("a new head is trained, saved and read: " .. case[1], function()
    local dir = scratch .. "/" .. case[1]
    tiny().save_pretrained(dir .. "/base")
    local function open()
      return redco.models.from_pretrained(dir .. "/base", { task = case[1] })
    end
    local model = open()
    local params = lora.add(model.params, { target_modules = { "q_proj" }, r = 2 })
    local head = params[case[2]]:clone()
    params = train(params, model)
    assert(not torch.equal(params[case[2]], head), "the head has not been trained")
    for name, leaf in pairs(model.params) do
      assert(name:find(case[2]:match "^[^.]*") or torch.equal(params[name], leaf),
        name .. " has been trained")
    end
    lora.save_pretrained(dir .. "/adapter", params)
    for _ = 1, 2 do
      local again = open()
      local read = lora.from_pretrained(dir .. "/adapter", again.params)
      local inputs = { input_ids = sample }
      expect_close(again(read, inputs), model(params, inputs), 1e-5, 1e-5)
      assert(not lora.is_frozen(case[2], read[case[2]]))
    end
    local config = redco.data.json(dir .. "/adapter/adapter_config.json")
    testing.expect_equal(table.concat(config.modules_to_save, " "), case[2]:match "^[^.]*")
  end)
end

test("modules_to_save and task_type", function()
  local model = tiny()
  local function trained_names(options)
    options.target_modules, options.r = { "q_proj" }, 2
    local before, names = lora.add(model.params, options), {}
    local after = train(before, model)
    for name, leaf in pairs(after) do
      if torch.is_tensor(leaf) and not name:find "lora_"
        and not (before[name] and torch.equal(leaf, before[name])) then
        names[#names + 1] = name
      end
    end
    table.sort(names)
    return table.concat(names, " ")
  end
  testing.expect_equal(trained_names {}, "")
  testing.expect_equal(trained_names { modules_to_save = { "lm_head", "input_layernorm" } },
    "lm_head.weight model.layers.0.input_layernorm.weight")
  testing.expect_equal(trained_names {
    modules_to_save = { "embed_tokens" }, task_type = "CAUSAL_LM",
  }, "model.embed_tokens.weight")
  local function add(options)
    return function()
      options.target_modules = { "q_proj" }
      lora.add(model.params, options)
    end
  end
  expect_error(add { modules_to_save = { "score" } }, "no module whose name ends in 'score'")
  expect_error(add { modules_to_save = "score" }, "modules_to_save: expected", "got string")
  expect_error(add { task_type = "SEQ_CLASS" }, "task_type = SEQ_CLASS is not one of CAUSAL_LM",
    "SEQ_CLS")
  expect_error(function()
    local params = lora.add(model.params, { target_modules = { "q_proj" } })
    lora.save_pretrained(scratch .. "/wrong", params, { task_type = "seq_cls" })
  end, "task_type = seq_cls")
end)

local function expect_untied(model, name, head)
  local inputs = { input_ids = sample }
  local function trained(module)
    return train(lora.add(model.params, { target_modules = { "q_proj" }, r = 2,
      modules_to_save = { module } }), model)
  end
  local function expect_read(params)
    lora.save_pretrained(scratch .. "/tied", params)
    local read = lora.from_pretrained(scratch .. "/tied", model.params)
    expect_close(model(read, inputs), model(params, inputs), 1e-5, 1e-5)
    model.save_pretrained(scratch .. "/untied", { params = lora.merge(params) })
    local whole = redco.models.from_pretrained(scratch .. "/untied")
    expect_close(whole(whole.params, inputs), model(params, inputs), 1e-5, 1e-5)
  end
  local params = trained "lm_head"
  assert(torch.equal(params[name], model.params[name]))
  assert(not torch.equal(params[head], params[name]))
  expect_read(params)
  params = trained "embed_tokens"
  assert(not torch.equal(params[name], model.params[name]) and not params[head])
  expect_read(params)
end

test("a tied head that is trained gets a separate weight, and the embedding stays", function()
  expect_untied(tiny { tie_word_embeddings = true }, "model.embed_tokens.weight", "lm_head.weight")
  for name, names in pairs {
    llama4 = { "language_model.model.embed_tokens.weight", "language_model.lm_head.weight" },
    llava = { "model.language_model.embed_tokens.weight", "lm_head.weight" },
  } do
    local config = tiny_models.config(name)
    config.text_config = tiny_models.merged(config.text_config, { tie_word_embeddings = true })
    expect_untied(redco.models.from_config(config, { generator = redco.Rng(1) }), unpack(names))
  end
end)

test("an adapter on the head, with its dropout and loss", function()
  local model = tiny()
  local params = shaken(lora.add(model.params, { target_modules = { "lm_head" }, r = 2,
    lora_dropout = 0.5 }))
  local batch = { input_ids = sample, labels = sample }
  local merged = lora.merge(params)
  expect_close(model(params, batch), model(merged, batch), 1e-5, 1e-5)
  expect_close(model.loss(params, batch), (model.loss(merged, batch)), 1e-5, 1e-5)
  local function dropped(seed)
    return (model.loss(params, batch, { train = true, rng = redco.Rng(seed) })):item()
  end
  assert(dropped(1) == dropped(1) and dropped(1) ~= dropped(2))
end)

test("new layers between two models are trained and saved", function()
  local function folder(name, config)
    redco.models.from_config(config, { generator = redco.Rng(2) })
      .save_pretrained(scratch .. name)
    return scratch .. name
  end
  local vit = folder("/vit", { model_type = "vit", hidden_size = 8, num_hidden_layers = 1,
    num_attention_heads = 2, intermediate_size = 12, image_size = 8, patch_size = 4 })
  local gpt2 = folder("/gpt2", { model_type = "gpt2", n_embd = 8, n_layer = 1, n_head = 2,
    vocab_size = 16, n_positions = 16, bos_token_id = 1, eos_token_id = 2 })
  local function open() return redco.models.from_encoder_decoder_pretrained(vit, gpt2) end
  local model = open()
  local params = lora.add(model.params, { target_modules = { "query" }, r = 2 })
  local name = "decoder.transformer.h.0.crossattention.c_attn.weight"
  local before = params[name]:clone()
  local batch = { pixel_values = torch.rand { 2, 3, 8, 8 }, decoder_input_ids = sample }
  params = train(params, function(p) return model(p, batch) end)
  assert(not torch.equal(params[name], before))
  lora.save_pretrained(scratch .. "/captioner", params)
  local again = open()
  expect_close(again(lora.from_pretrained(scratch .. "/captioner", again.params), batch),
    model(params, batch), 1e-5, 1e-5)
end)

test("whatever was trained is saved, and heads in two trees", function()
  local function net()
    return { body = redco.nn.Linear(4, 4), top = redco.nn.Linear(4, 2) }
  end
  local function forward(p)
    return redco.nn.linear(p.top, redco.nn.linear(p.body, torch.ones { 3, 4 }))
  end
  local base = net()
  local params = train(lora.add(base, { target_modules = { "body" }, r = 2 }), forward,
    redco.optim.freeze(redco.optim.adamw { learning_rate = 0.05 }, function(name)
      return name:find "^body%.weight" ~= nil or name:find "^body%.bias" ~= nil
    end))
  lora.save_pretrained(scratch .. "/top", params)
  expect_close(forward(lora.from_pretrained(scratch .. "/top", base)), forward(params), 1e-5, 1e-5)
  -- A tensor without a module has no place in the folder.
  local loose = { scale = torch.ones { 2 }, body = base.body }
  loose = train(lora.add(loose, { target_modules = { "body" }, r = 2 }), function(p)
    return redco.nn.linear(p.body, torch.ones { 3, 4 }):sum() * p.scale
  end, redco.optim.adamw { learning_rate = 0.05 })
  expect_error(function() lora.save_pretrained(scratch .. "/loose", loose) end,
    "the parameter scale was trained and is in no module")
  -- Saved modules stay saved with further adapters, also in a part of another tree.
  local three = { body = base.body, top = base.top, last = redco.nn.Linear(2, 2) }
  local twice = lora.add(three, { target_modules = { "body" }, modules_to_save = { "top" } })
  twice = lora.add(twice, { target_modules = { "last" }, r = 1 })
  twice = train({ part = twice }, function(p)
    return redco.nn.linear(p.part.last, forward(p.part))
  end).part
  assert(not torch.equal(twice.top.weight, base.top.weight))
  assert(torch.equal(twice.body.weight, base.body.weight))
  -- Two trees that differ: each tensor is as its own tree says.
  local one = lora.add(base, { target_modules = { "body" }, modules_to_save = { "top" } })
  local other = lora.add(net(), { target_modules = { "body" } })
  assert(not lora.is_frozen("top.weight", one.top.weight))
  assert(lora.is_frozen("top.weight", other.top.weight))
  expect_error(function() lora.is_frozen "top.weight" end,
    "redco.lora.freeze_base(optimizer, params)")
  local copy = tree.map(function(leaf)
    return torch.is_tensor(leaf) and leaf:clone() or leaf
  end, one)
  local before = copy.top.weight:clone()
  local after = train(copy, forward,
    lora.freeze_base(redco.optim.adamw { learning_rate = 0.05 }, copy))
  assert(not torch.equal(after.top.weight, before))
end)

testing.finish()
