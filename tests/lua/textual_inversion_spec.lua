-- Textual inversion: tokens added to a pipeline, their vectors trained alone, and their files.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local expect_close = testing.expect_close

local folder = "../cases/stable_diffusion"
local added_name = "text_model.embeddings.added_tokens.weight"

local function open(name) return redco.diffusion.from_pretrained(name or folder) end

local function ids_of(pipeline, prompt) return pipeline.tokenize(prompt).input_ids[0]:tolist() end

test("a prompt has the vectors of an added token where it has the token", function()
  local pipeline = open()
  local tokenizer, first = pipeline.tokenizer, pipeline.text_encoder.config.vocab_size
  local plain = ids_of(pipeline, "a ! !")
  local params = redco.diffusion.add_token(pipeline, "<x>", { initializer = "!", n_vectors = 2 })
  params = redco.diffusion.add_token(pipeline, "<x>y", { initializer = "!", params = params })
  expect_equal(table.concat(params.text_encoder[added_name].shape, " "), "3 16")
  expect_equal(table.concat(ids_of(pipeline, "a ! !"), " "), table.concat(plain, " "))
  local expected = { tokenizer.bos_token_id, first, first + 1,
    tokenizer:encode("!", { add_special_tokens = false })[1], first + 2, tokenizer.eos_token_id }
  expect_equal(table.concat(ids_of(pipeline, "<x> !<x>y"), " ", 1, 6), table.concat(expected, " "))
  -- The vectors begin as the word's.
  local function encode(given, prompt)
    return (torch.no_grad(pipeline.encode_text, given, pipeline.tokenize(prompt)))
  end
  expect_close(encode(params, "<x>"), encode(pipeline.params, "! !"), 1e-6, 1e-6)
  local length, warned = tokenizer.model_max_length, nil
  pipeline.warn = function(text) warned = text end
  local cut = ids_of(pipeline, ("<x>"):rep(length))
  expect_equal(#cut, length)
  expect_equal(cut[length], tokenizer.eos_token_id)
  assert(warned:find(("has %d tokens"):format(2 * length + 2)), warned)
  expect_error(function() encode(pipeline.params, "<x>") end,
    "the parameters of the text_encoder have no vectors of the added token <x>")
end)

test("only the vectors of added tokens are trained", function()
  local pipeline = open()
  local params = redco.diffusion.add_token(pipeline, "<x>", { initializer = "!", n_vectors = 2 })
  local before = redco.tree.map(function(t) return t:clone() end, params)
  local side = pipeline.unet.config.sample_size * 2 ^ (#pipeline.vae.config.block_out_channels - 1)
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
    collate_fn = function(rows) return rows[1] end,
    optimizer = redco.optim.freeze(redco.optim.adamw { learning_rate = 0.1, weight_decay = 0.1 },
      function(name) return not name:find "added_tokens" end),
    loss_fn = function(rng, _, given, batch) return pipeline.loss(given, batch, { rng = rng }) end,
  }
  local batch = pipeline.tokenize { "a <x>", "<x>" }
  batch.pixel_values = torch.rand { 2, 3, side, side }
  trainer:train { examples = { batch }, per_device_batch_size = 1 }
  for part, tensors in pairs(before) do
    for name, tensor in pairs(tensors) do
      local moved = not trainer.params[part][name]:equal(tensor)
      expect_equal(moved, name == added_name)
    end
  end
  local trained = trainer.params.text_encoder[added_name]
  expect_equal(trained:narrow(0, 0, 1):equal(trained:narrow(0, 1, 1)), false)
end)

test("files of one text encoder", function()
  local pipeline, dir = open(), testing.folder() .. "/one"
  local params = redco.diffusion.add_token(pipeline, "<w>", { initializer = "!" })
  params = redco.diffusion.add_token(pipeline, "<x>", { initializer = "!", n_vectors = 2,
    params = params })
  local rows = torch.no_grad(function() return params.text_encoder[added_name]:normal_() end)
  redco.diffusion.save_textual_inversion(pipeline, dir, params, { token = "<x>" })
  local file = torch.load(dir .. "/learned_embeds.safetensors")
  expect_close(file["<x>"], rows:narrow(0, 1, 2), 0, 0)
  expect_equal(next(file, next(file)), nil)
  local again = open()
  local loaded = redco.diffusion.load_textual_inversion(again, dir)
  expect_close(loaded.text_encoder[added_name], file["<x>"], 0, 0)
  expect_equal(again.added_tokens[1].token, "<x>")
  -- The web UI's, without a name; one vector without its dimension.
  torch.save({ emb_params = file["<x>"] }, dir .. "/web.safetensors")
  expect_error(function()
    redco.diffusion.load_textual_inversion(open(), dir .. "/web.safetensors")
  end, "web.safetensors does not name its token: set the option token")
  redco.diffusion.load_textual_inversion(again, dir .. "/web.safetensors",
    { token = "<y>", params = loaded })
  expect_equal(again.added_tokens[2].first_row, 2)
  torch.save({ ["<z>"] = rows[0] }, dir .. "/flat.safetensors")
  redco.diffusion.load_textual_inversion(open(), dir .. "/flat.safetensors")
  expect_error(function() pipeline.save_pretrained(dir, { params = params }) end,
    "vectors of added tokens", "save_textual_inversion")
end)

test("files of two text encoders", function()
  local pipeline, dir = open "../cases/stable_diffusion_xl", testing.folder() .. "/two"
  local params = redco.diffusion.add_token(pipeline, "<x>", { initializer = "!", n_vectors = 3 })
  redco.diffusion.save_textual_inversion(pipeline, dir, params)
  local again = open "../cases/stable_diffusion_xl"
  expect_error(function() redco.diffusion.load_textual_inversion(again, dir) end,
    "does not name its token")
  local loaded = redco.diffusion.load_textual_inversion(again, dir, { token = "<x>" })
  for _, part in ipairs { "text_encoder", "text_encoder_2" } do
    expect_close(loaded[part][added_name], params[part][added_name], 0, 0)
  end
  local file = torch.load(dir .. "/learned_embeds.safetensors")
  local function load(tensors, ...)
    torch.save(tensors, dir .. "/other.safetensors")
    expect_error(function()
      redco.diffusion.load_textual_inversion(again, dir .. "/other.safetensors", { token = "<y>" })
    end, ...)
  end
  load({ clip_g = file.clip_g }, "there are no vectors for the text_encoder (clip_l)")
  load({ ["<x>"] = file.clip_l }, "there are no vectors for the text_encoder_2 (clip_g)")
  load({ clip_l = file.clip_l, clip_g = file.clip_g:narrow(0, 0, 2) },
    "there are 3 vectors for the text_encoder and 2 for the text_encoder_2")
  load({ clip_l = file.clip_g, clip_g = file.clip_g },
    "the vectors for the text_encoder are [3, 24]", "expected [16] or [vectors, 16]")
  load({ one = file.clip_l, two = file.clip_l }, "expected one token with its vectors")
end)

test("what is wrong is named", function()
  local pipeline = open()
  local function add(token, options, ...)
    expect_error(function() redco.diffusion.add_token(pipeline, token, options) end, ...)
  end
  add("<x>", {}, "initializer: expected a word whose vector the token begins with")
  add("<x>", { initializer = "nothing like a word" }, "is 15 tokens of the tokenizer, expected one")
  add("!", { initializer = "!" }, "the tokenizer has the token ! already")
  add("", { initializer = "!" }, "token: expected a text")
  add("<x>", { initializer = "!", n_vectors = 0 }, "n_vectors: expected an integer of at least 1")
  redco.diffusion.add_token(pipeline, "<x>", { initializer = "!" })
  add("<x>", { initializer = "!" }, "the pipeline has the token <x> already")
  expect_error(function()
    redco.diffusion.save_textual_inversion(pipeline, "unused", pipeline.params, { token = "<y>" })
  end, "token: expected one of the added tokens (<x>), got")
  expect_error(function()
    redco.diffusion.add_token(open "../cases/dit", "<x>", { initializer = "!" })
  end, "a DiTPipeline has no text encoder of CLIP")
end)

testing.finish()
