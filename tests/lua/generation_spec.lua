-- model.generate against transformers: the same tokens, for every family and way of searching.
local cases = require "model_cases"
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"
local turns = require "turns"

local torch = redco.torch
local test = testing.test

local function shown(rows)
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = table.concat(row, " ") end
  return table.concat(lines, "\n")
end

-- A static cache gives the same tokens, or says that it does not fit the model.
local function expect_same_with_static_cache(model, inputs, options, sequences)
  local all = { cache_implementation = "static" }
  for key, value in pairs(options) do all[key] = value end
  if cases.needs_length[model.config.model_type] then
    return testing.expect_error(function() model.generate(model.params, inputs, all) end,
      "the layers of this model depend on the length of the text")
  end
  testing.expect_equal(shown(model.generate(model.params, inputs, all):tolist()), shown(sequences))
end

for _, folder in ipairs(cases.folders) do
  for _, name in ipairs(cases.found(folder, cases.names)) do
    local case = cases.open(folder, name)
    local generation = case.expected.generation  -- encoders have none
    local model = generation and redco.models.from_pretrained(case.dir)
    if model then model.generation_config = {} end  -- what a case gives is all that holds
    local inputs = generation and cases.prompts(case)
    for _, expected in ipairs(generation and generation.cases or {}) do
      test(("%s/%s: %s"):format(folder, name, expected.name), function()
        local sequences, scores = model.generate(model.params, inputs, expected.kwargs)
        testing.expect_equal(shown(sequences:tolist()), shown(expected.sequences))
        expect_same_with_static_cache(model, inputs, expected.kwargs, expected.sequences)
        if expected.sequences_scores_fp64 then
          testing.expect_close(scores, torch.tensor(expected.sequences_scores_fp64), 1e-4)
        end
      end)
    end
  end
end

-- Options that the reference cases leave out, on one of them.
local case = cases.open(cases.folders[1], "gpt2")
local model = redco.models.from_pretrained(case.dir)
model.generation_config = {}
local prompts = cases.prompts(case)

local function generate(options, inputs)
  local all = { max_new_tokens = 12, pad_token_id = 767 }
  for key, value in pairs(options or {}) do all[key] = value end
  return model.generate(model.params, inputs or prompts, all)
end

test("prompts padded on the right are turned: padding comes first", function()
  local right = {}
  for key, tensor in pairs(prompts) do right[key] = tensor:clone() end
  -- The last row of the case is padded on the left by two.
  for key in pairs(right) do
    local row = prompts[key][2]
    right[key][2]:copy_(torch.cat { row:narrow(0, 2, 5), row:narrow(0, 0, 2) })
  end
  testing.expect_equal(shown(generate({}, right):tolist()), shown(generate():tolist()))
end)

test("no mask: all are tokens; one row alone gives what it gives among others", function()
  local first = { input_ids = prompts.input_ids:narrow(0, 0, 1) }
  testing.expect_equal(shown(generate({}, first):tolist()),
    shown(generate():narrow(0, 0, 1):tolist()))
end)

test("sampling: a seed says what is drawn; few choices are greedy search", function()
  local function drawn(options)
    options.do_sample = true
    return shown(generate(options):tolist())
  end
  local a = drawn { seed = 1 }
  testing.expect_equal(drawn { seed = 1 }, a)
  testing.expect_equal(drawn { rng = torch.Generator(1) }, a)
  assert(drawn { seed = 2 } ~= a)
  local greedy = shown(generate():tolist())
  testing.expect_equal(drawn { seed = 1, top_k = 1 }, greedy)
  testing.expect_equal(drawn { seed = 1, top_k = 0, top_p = 1e-6 }, greedy)
  testing.expect_equal(drawn { seed = 1, top_k = 0, temperature = 1e-4 }, greedy)
  testing.expect_equal(#generate({ do_sample = true, num_return_sequences = 3, seed = 1 }), 9)
end)

-- How often each token is drawn for the first place is what the processed probabilities say.
test("sampling: temperature, top_k and top_p change the probabilities as they should", function()
  local one = { input_ids = prompts.input_ids:narrow(0, 0, 1) }
  local n, logits = 4000, torch.no_grad(function()
    return model(model.params, one)[{ 0, -1 }]
  end)
  local function expected(options)
    local scores = logits / (options.temperature or 1)
    local sorted, places = scores:sort(0, true)
    local probs = sorted:softmax(0)
    if options.top_k > 0 then probs = probs:narrow(0, 0, options.top_k) end
    probs = probs / probs:sum()
    if options.top_p then
      -- A token stays while those before it have not made up top_p.
      probs = probs * (probs:cumsum(0) - probs):lt(options.top_p)
    end
    return torch.zeros(768):index_copy(0, places:narrow(0, 0, probs:size(0)), probs / probs:sum())
  end
  for _, options in ipairs { { top_k = 0 }, { top_k = 5 }, { top_k = 0, top_p = 0.6 },
    { top_k = 20, top_p = 0.8, temperature = 0.7 } } do
    local probs = expected(options)
    options.do_sample, options.max_new_tokens, options.seed = true, 1, 3
    options.num_return_sequences = n
    local counts = torch.bincount(generate(options, one):select(1, -1), { minlength = 768 })
    testing.expect_equal(counts[probs:eq(0)]:sum():item(), 0)
    local off = (counts / n - probs):abs():sum():item()
    -- The sum of the absolute errors of shares is near sum(sqrt(2 p (1 - p) / (pi n))).
    local usual = (probs * (1 - probs) * 2 / (math.pi * n)):sqrt():sum():item()
    assert(off < 1.5 * usual, ("shares are off by %g, usual is %g"):format(off, usual))
  end
end)

test("several end tokens; min_length; max_length", function()
  local plain = generate({ eos_token_id = false })
  local row = plain[0]:tolist()
  local stop = row[10]  -- the third new token of the first row
  local ended = generate({ eos_token_id = { 5, stop } })
  for i = 11, ended:size(1) do
    testing.expect_equal(ended[{ 0, i - 1 }]:item(), 767)
  end
  testing.expect_equal(ended[{ 0, 9 }]:item(), stop)
  local longer = generate({ eos_token_id = { 5, stop }, min_new_tokens = 6 })
  for i = 7, 12 do assert(longer[{ 0, i }]:item() ~= stop) end
  testing.expect_equal(generate({ max_new_tokens = false, max_length = 9 }):size(1), 9)
end)

test("stop strings end a row when its new text has one", function()
  local tokenizer = redco.Tokenizer.from_pretrained(case.dir)
  local whole = tokenizer:decode(generate({ eos_token_id = false })[0]:narrow(0, 7, 12))
  local stop = whole:sub(5, 7)
  local rows = generate({ eos_token_id = false, stop_strings = { "never there", stop },
    tokenizer = tokenizer })
  local text = tokenizer:decode(rows[0]:narrow(0, 7, rows:size(1) - 7),
    { skip_special_tokens = true })
  assert(text:find(stop, 1, true) and #text < #whole, text)
  -- One may begin in the prompt; one that the prompt has already does not end a row.
  local row = generate({ eos_token_id = false })[0]
  local prompt = tokenizer:decode(row:narrow(0, 0, 7))
  local first = tokenizer:decode(row:narrow(0, 0, 8)):sub(#prompt + 1)
  for _, across in ipairs { prompt:sub(-2) .. first:sub(1, 1), prompt:sub(-1) .. first } do
    local ended = generate({ eos_token_id = false, stop_strings = across, tokenizer = tokenizer })
    testing.expect_equal(ended[{ 0, 8 }]:item(), ended[{ 0, ended:size(1) - 1 }]:item())
    testing.expect_equal(ended[{ 0, 7 }]:item(), row[7]:item())
    assert(ended[{ 0, 8 }]:item() ~= row[8]:item())
  end
  local never = generate({ eos_token_id = false, stop_strings = prompt, tokenizer = tokenizer })
  testing.expect_equal(tokenizer:decode(never[0]), tokenizer:decode(row))
  testing.expect_error(function() generate { stop_strings = "x" } end, "tokenizer")
end)

test("a streamer sees every step's tokens", function()
  local steps = {}
  local rows = generate { streamer = function(tokens) steps[#steps + 1] = tokens end }
  testing.expect_equal(shown(torch.stack(steps, 1):tolist()),
    shown(rows:narrow(1, 7, #steps):tolist()))
end)

test("what is wrong is said by name and line", function()
  for _, wrong in ipairs {
    { { max_tokens = 3 }, "unknown argument 'max_tokens'", "max_" },
    { { max_new_tokens = false, max_length = 5 }, "max_length is 5", "7 tokens" },
    { { temperature = 0, do_sample = true }, "temperature is 0", "greater than 0" },
    { { top_p = 1.5 }, "top_p is 1.5" },
    { { num_beams = 0 }, "num_beams is 0" },
    { { num_return_sequences = 2 }, "num_return_sequences is 2", "num_beams, 1" },
    { { num_beams = 2, do_sample = true }, "do_sample with num_beams" },
    { { num_beams = 2, streamer = print }, "streamer needs num_beams = 1" },
    { { num_beams = 2, early_stopping = "sometimes" }, "early_stopping is sometimes" },
    { { min_p = 2 }, "min_p is 2", "from 0 to 1" },
    { { top_k = 1.5 }, "top_k is 1.5", "whole number" },
    { { suppress_tokens = 3 }, "suppress_tokens is 3", "list of tokens" },
    { { bad_words_ids = { 3 } }, "bad_words_ids is table", "list of lists" },
    { { bad_words_ids = { { 768 } } }, "bad_words_ids has the token 768", "768" },
    { { sequence_bias = { { { 3, 4 } } } }, "sequence_bias", "list of {tokens, bias}" },
    { { forced_eos_token_id = 999 }, "forced_eos_token_id has the token 999" },
    { { encoder_repetition_penalty = 2, num_beams = 2 }, "encoder_repetition_penalty" },
    { { exponential_decay_length_penalty = { 1, 2 }, eos_token_id = false }, "eos_token_id" },
  } do
    testing.expect_error(function() generate(wrong[1]) end, "generation_spec.lua:", wrong[2],
      wrong[3] or "")
  end
  testing.expect_error(function() model.generate(model.params, {}) end, "generation_spec.lua:",
    "input_ids")
end)

test("options that are not supported are refused, neutral values are not", function()
  local function expect_refused(name, value)
    testing.expect_error(function() generate { [name] = value } end, "generation_spec.lua:",
      name .. " = ", "not supported")
    model.generation_config = { [name] = value }
    testing.expect_error(function() generate {} end, "generation_spec.lua:", name .. " = ",
      "not supported")
    model.generation_config = {}
  end
  for name, value in pairs { guidance_scale = 1.5, penalty_alpha = 0.6, num_beam_groups = 2,
    diversity_penalty = 0.5, token_healing = true, max_time = 3, prompt_lookup_num_tokens = 2,
    dola_layers = "high", force_words_ids = { { 1 } }, watermarking_config = { bias = 1 },
    constraints = {}, assistant_early_exit = 1 } do
    expect_refused(name, value)
  end
  local plain = shown(generate():tolist())
  model.generation_config = { guidance_scale = 1, penalty_alpha = 0, num_beam_groups = 1,
    diversity_penalty = 0, token_healing = false, use_cache = true, output_scores = true,
    transformers_version = "4.57.6" }
  testing.expect_equal(shown(generate():tolist()), plain)
  model.generation_config = { suppress_tokens = { generate()[{ 0, 7 }]:item() } }
  assert(shown(generate():tolist()) ~= plain)
  model.generation_config = {}
end)

test("a cache keeps the first tokens over calls, which read only new ones", function()
  for _, name in ipairs { "llama", "gpt2", "mamba" } do
    local own = tiny.new(name)
    own.params = redco.tree.map(function(p) return p:double() end, own.params)
    own.generation_config = {}
    local cache, counts, text = redco.models.new_cache(), {}, { 5, 9, 30, 1 }
    local with_counts = turns.counted(own, counts)
    for turn = 1, 3 do
      local ids, n_read = torch.tensor({ text }, { dtype = "int64" }), #text - cache.length
      local options = { max_new_tokens = 6, eos_token_id = false }
      local expected = own.generate(own.params, { input_ids = ids }, options)
      options.cache, counts.n = cache, 0
      text = redco.models.generate(with_counts, own.params, { input_ids = ids }, options)[0]
        :tolist()
      testing.expect_equal(table.concat(text, " "), table.concat(expected[0]:tolist(), " "))
      testing.expect_equal(counts.n, n_read + 5)
      testing.expect_equal(cache.length, #text - 1)
      text[#text + 1] = 10 + turn
      if cache:shorten(#text - 4) then text[#text - 2] = 20 end
    end
    local function refuse(inputs, options, ...)
      options.cache = cache
      testing.expect_error(function() own.generate(own.params, inputs, options) end, ...)
    end
    local ids = torch.tensor { { 1, 2 } }
    refuse({ input_ids = ids }, {}, "the cache has", "input_ids only 2")
    refuse({ input_ids = ids:expand { 2, 2 } }, {}, "cache: expected a decoder and one row")
  end
end)

test("without lengths there are 20 new tokens, at most as many as positions", function()
  local function new_tokens(options) return generate(options):size(1) - 7 end
  testing.expect_equal(new_tokens { max_new_tokens = false, eos_token_id = false }, 20)
  model.generation_config = { max_length = 20 }  -- what transformers writes for no value
  testing.expect_equal(new_tokens { max_new_tokens = false, eos_token_id = false }, 20)
  testing.expect_equal(new_tokens { max_new_tokens = false, max_length = 20, eos_token_id = false },
    13)
  model.generation_config = { max_length = 20, transformers_version = "5.24.0" }
  testing.expect_equal(new_tokens { max_new_tokens = false, eos_token_id = false }, 13)
  model.generation_config = {}
end)

test("padding tokens mark padding where there is no mask, unless they end a text", function()
  local ids = prompts.input_ids:clone()
  ids:narrow(1, 0, 2):fill_(700)
  local function tokens(inputs, eos)
    return shown(generate({ pad_token_id = 700, eos_token_id = eos }, inputs):tolist())
  end
  local masked = { input_ids = ids, attention_mask = ids:ne(700):to "int64" }
  local whole = { input_ids = ids, attention_mask = torch.ones_like(ids) }
  testing.expect_equal(tokens({ input_ids = ids }, 767), tokens(masked, 767))
  testing.expect_equal(tokens({ input_ids = ids }, 700), tokens(whole, 700))
  assert(tokens(masked, 767) ~= tokens(whole, 767))
end)

testing.finish()
