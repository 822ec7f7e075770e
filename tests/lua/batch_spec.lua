-- Continuous batching: a row's tokens are those of the row alone, whatever its neighbours, and
-- those of model.generate.
local redco = require "redco"
local testing = require "testing"
local turns = require "turns"

local torch = redco.torch
local test = testing.test
local source = assert(os.getenv "REDCO_SOURCE")

local function open(name)
  local model = redco.models.from_pretrained(source .. "/tests/cases/" .. name)
  model.generation_config = {}
  return model
end

local generator = torch.Generator(3)
local prompts = {}
for i = 1, 9 do
  prompts[i] = torch.randint(3, 200, { 3 + i * 7 % 11 }, { generator = generator }):tolist()
end
prompts[7] = prompts[2]  -- read once where both begin together

local function shown(row) return table.concat(row.tokens, " ") .. " " .. row.finish_reason end

--- The rows of all prompts, of different lengths. With `is_late` they come one by one.
local function run(model, max_rows, options, is_late, cache_implementation)
  local batch = redco.models.new_batch(model, model.params,
    { max_rows = max_rows, max_length = 40, cache_implementation = cache_implementation })
  local rows = {}
  for i, prompt in ipairs(prompts) do
    if is_late and i > 4 then batch:step() end
    local own = { max_new_tokens = 3 + i * 5 % 17, seed = i, logprobs = "sampled" }
    for key, value in pairs(options) do own[key] = value end
    rows[i] = batch:add(prompt, own)
  end
  batch:run()
  return rows
end

local function expect_near(actual, expected)
  assert(math.abs(actual - expected) <= 1e-4, ("%.8g is not %.8g"):format(actual, expected))
end

local function expect_same(actual, expected)
  for i, row in ipairs(expected) do
    testing.expect_equal(shown(actual[i]), shown(row))
    for at, logprob in ipairs(row.logprobs) do
      expect_near(actual[i].logprobs[at], logprob)
    end
  end
end

-- Windows of gemma2, qwen2 and phi3 are shorter than the rows.
for _, name in ipairs { "llama", "gpt2", "gemma2", "gemma3", "qwen2", "qwen3_moe", "phi3", "opt",
  "gptj", "deepseek_v3" } do
  test(name .. ": rows alone, together, refilled and late are the same", function()
    local model = open(name)
    local greedy = run(model, 1, { temperature = 0 })
    for i, prompt in ipairs(prompts) do
      local ids = model.generate(model.params, { input_ids = torch.tensor { prompt } },
        { max_new_tokens = 3 + i * 5 % 17, pad_token_id = 0 })[0]
      testing.expect_equal(table.concat(greedy[i].tokens, " "),
        table.concat(ids:narrow(0, #prompt, #ids - #prompt):tolist(), " "))
    end
    local sampled = { temperature = 0.8, top_k = 20 }
    local drawn = run(model, 1, sampled)
    assert(shown(drawn[1]) ~= shown(greedy[1]))
    for _, max_rows in ipairs { 1, 3, 16 } do
      expect_same(run(model, max_rows, { temperature = 0 }, true, "static"), greedy)
    end
    for _, max_rows in ipairs { 4, 16 } do
      expect_same(run(model, max_rows, { temperature = 0 }), greedy)
      expect_same(run(model, max_rows, sampled), drawn)
    end
    expect_same(run(model, 3, sampled, true), drawn)
  end)
end

local llama = open "llama"
local function new_batch(options) return redco.models.new_batch(llama, llama.params, options) end

test("a static cache grows, and rows that end leave it", function()
  local model = redco.models.from_config({ model_type = "llama", vocab_size = 128, hidden_size = 64,
    intermediate_size = 96, num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 2 }, { generator = torch.Generator(1) })
  local function texts(cache_implementation, max_rows)
    local batch = redco.models.new_batch(model, model.params,
      { max_rows = max_rows, max_length = 400, cache_implementation = cache_implementation })
    local list = {}
    for i = 1, 7 do
      local prompt = torch.randint(3, 100, { 5 + i * 31 % 60 }, { generator = torch.Generator(i) })
      list[i] = batch:add(prompt, { max_new_tokens = 40 + i * 37 % 200, temperature = 0 })
      for _ = 1, i > 3 and 13 or 0 do batch:step() end
    end
    batch:run()
    for i, row in ipairs(list) do list[i] = shown(row) end
    return table.concat(list, "\n")
  end
  local expected = texts("dynamic", 1)
  for _, max_rows in ipairs { 1, 3, 8 } do
    testing.expect_equal(texts("static", max_rows), expected)
  end
  testing.expect_error(function() texts("hybrid", 1) end, "cache_implementation: expected",
    "hybrid")
end)

test("rows with options of their own", function()
  local batch = new_batch { max_rows = 4, max_length = 60 }
  local greedy = batch:add(prompts[1], { temperature = 0, max_new_tokens = 12 })
  local penalized = batch:add(prompts[1],
    { temperature = 0, repetition_penalty = 1.4, max_new_tokens = 12 })
  batch:add(prompts[3], { max_new_tokens = 7 })
  local few = batch:add(prompts[1], { top_p = 1e-9, max_new_tokens = 12 })
  batch:run()
  testing.expect_equal(shown(few), shown(greedy))
  local expected = llama.generate(llama.params, { input_ids = torch.tensor { prompts[1] } },
    { repetition_penalty = 1.4, max_new_tokens = 12, pad_token_id = 0 })[0]
  testing.expect_equal(table.concat(penalized.tokens, " "),
    table.concat(expected:narrow(0, #prompts[1], 12):tolist(), " "))
end)

test("an end token ends a row; log-probabilities are those of the model's forward call", function()
  local batch = new_batch { max_length = 60 }
  local events = {}
  local row = batch:add(prompts[4], { seed = 5, max_new_tokens = 10, n_logprobs = 3,
    temperature = 0.5, on_token = function(...) events[#events + 1] = { ... } end })
  local sampled = batch:add(prompts[4], { seed = 5, max_new_tokens = 10, temperature = 0.5,
    logprobs = "sampled" })
  batch:run()
  testing.expect_equal(row.finish_reason, "length")
  testing.expect_equal(shown(sampled), shown(row))
  local all = {}
  for _, token in ipairs(prompts[4]) do all[#all + 1] = token end
  for _, token in ipairs(row.tokens) do all[#all + 1] = token end
  local logits = torch.no_grad(function()
    return llama(llama.params, { input_ids = torch.tensor { all } })[0]
  end)
  for i, token in ipairs(row.tokens) do
    local scores = logits[#prompts[4] + i - 2]
    expect_near(row.logprobs[i], scores:log_softmax(-1)[token]:item())
    expect_near(sampled.logprobs[i], (scores / 0.5):log_softmax(-1)[token]:item())
    local _, own, logprob, top = unpack(events[i])
    testing.expect_equal(own, token)
    testing.expect_equal(logprob, row.logprobs[i])
    testing.expect_equal(#top, 3)
    testing.expect_equal(top[1][1], scores:argmax(-1):item())
    assert(top[1][2] >= top[2][2])
  end
  local stopped = batch:add(prompts[4],
    { seed = 5, temperature = 0.5, eos_token_id = { row.tokens[4], 9999 } })
  batch:run()
  testing.expect_equal(stopped.finish_reason, "stop")
  testing.expect_equal(table.concat(stopped.tokens, " "),
    table.concat(row.tokens, " ", 1, #stopped.tokens))
  assert(#stopped.tokens <= 4)
end)

test("rows are cancelled while they wait, when they are open, and by on_token", function()
  local batch = new_batch { max_rows = 2, max_length = 60 }
  local options = { temperature = 0, max_new_tokens = 9 }
  local kept = batch:add(prompts[1], options)
  local by_itself
  by_itself = batch:add(prompts[2], { max_new_tokens = 9, on_token = function(row)
    if #row.tokens == 3 then batch:cancel(by_itself) end
  end })
  local waiting, next_row = batch:add(prompts[3], options), batch:add(prompts[5], options)
  batch:cancel(waiting)
  batch:run()
  testing.expect_equal(#by_itself.tokens, 3)
  testing.expect_equal(by_itself.finish_reason, "cancelled")
  testing.expect_equal(#waiting.tokens, 0)
  local alone = new_batch { max_length = 60 }
  for i, row in pairs { kept, [5] = next_row } do
    local same = alone:add(prompts[i], options)
    alone:run()
    testing.expect_equal(shown(row), shown(same))
  end
  assert(batch:is_idle() and #batch:step() == 0)
  batch:cancel(kept)
  testing.expect_equal(kept.finish_reason, "length")
end)

for _, name in ipairs { "llama", "gpt2", "gemma2", "opt", "deepseek_v3" } do
  test(name .. ": turns of conversations read only what is new, with the same tokens", function()
    local model = open(name)
    model.params = redco.tree.map(function(p) return p:double() end, model.params)
    local expected, n_all = turns.run(model, model.params, prompts, { max_rows = 4 })
    for _, kept_rows in ipairs { 1, 4, 16 } do
      local texts, n = turns.run(model, model.params, prompts,
        { max_rows = 4, kept_rows = kept_rows })
      testing.expect_equal(texts, expected)
      if kept_rows == 16 then assert(n < 0.8 * n_all, ("%d of %d"):format(n, n_all)) end
    end
  end)
end

test("rows as long as the model's positions, one after another", function()
  local gpt2 = open "gpt2"
  local most = gpt2.config.n_positions
  local batch = redco.models.new_batch(gpt2, gpt2.params, { max_rows = 2 })
  local rows = {}
  for i = 1, 4 do rows[i] = batch:add(prompts[i], { eos_token_id = {} }) end
  batch:run()
  for i, row in ipairs(rows) do testing.expect_equal(#row.tokens, most - #prompts[i]) end
end)

test("what cannot be added is an error that says why", function()
  local batch = new_batch { max_length = 20 }
  local function expect(text, prompt, options)
    testing.expect_error(function() batch:add(prompt, options) end, text)
  end
  local long = {}
  for i = 1, 20 do long[i] = 5 end
  expect("the prompt has 20 tokens, and max_length is 20", long)
  expect("max_new_tokens is 18, but after a prompt of 3", { 5, 6, 7 }, { max_new_tokens = 18 })
  expect("expected a list or a tensor [n] of tokens, got none", {})
  expect("of tokens, got \"text\"", "text")
  expect("token 2 is 1.5", { 5, 1.5 })
  expect("token 1 is 100000", { 100000 })
  expect("temperature: expected a number from 0 on, got -1", { 5 }, { temperature = -1 })
  expect("did you mean 'temperature'", { 5 }, { temprature = 1 })
  expect("expected \"raw\" or \"sampled\"", { 5 }, { logprobs = "all" })
  assert(batch:is_idle())
  local t5 = open "t5_gated_untied"
  testing.expect_error(function() redco.models.new_batch(t5, t5.params) end, "has an encoder")
  testing.expect_error(function() new_batch { max_length = 1e9 } end, "max_length")
  testing.expect_error(function() new_batch { max_rows = 0 } end, "max_rows")
  testing.expect_error(function() new_batch { kept_rows = -1 } end, "kept_rows")
end)

testing.finish()
