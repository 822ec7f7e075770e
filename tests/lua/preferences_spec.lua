-- redco.data.preferences: pairs of answers, and judged ones, as tokens; and batches of them.
local redco = require "redco"
local testing = require "testing"

local data, preference = redco.data, redco.preference
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

local tokenizer = redco.Tokenizer.from_pretrained "../cases/gpt2"
tokenizer.chat_template = "{% if tools %}{{ tools }}{% endif %}"
  .. "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
  .. "<|endoftext|>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

local function make(records, options)
  options = options or {}
  options.tokenizer = options.tokenizer or tokenizer
  return data.preferences(records, options)
end

local function texts_of(example, ...)
  local texts = {}
  for i, name in ipairs { ... } do
    expect_equal(example[name].dtype, "int64")
    texts[i] = tokenizer:decode(example[name])
  end
  return table.concat(texts, "|")
end

local function says(role, content) return { role = role, content = content } end

local pair = { prompt = "a taxi?", chosen = "blue", rejected = "a red heart" }
local written = "<user>a taxi?<|endoftext|>\n<assistant>|blue<|endoftext|>\n|a red heart"
  .. "<|endoftext|>\n"

test("texts, messages and whole conversations are the same pair", function()
  local question = says("user", "a taxi?")
  for _, record in ipairs { pair,
    { prompt = { question }, chosen = { says("assistant", "blue") }, rejected = "a red heart" },
    { chosen = { question, says("assistant", "blue") },
      rejected = { question, says("assistant", "a red heart") } },
    { chosen = { question, says("gpt", "blue") },
      rejected = { { from = "human", value = "a taxi?" }, says("assistant", "a red heart") } },
  } do
    local set = make { record }
    expect_equal(texts_of(set[1], "prompt", "chosen", "rejected"), written)
    expect_equal(set[1].desirable, nil)
  end
end)

test("prompts have earlier turns; tools are variables of the template", function()
  local set = make { { prompt = { says("system", "be"), says("user", "hello"),
    says("assistant", "the sea"), says("user", "and") }, chosen = "a", rejected = "b",
    tools = '["sun"]' } }
  expect_equal(texts_of(set[1], "prompt", "chosen"), "['sun']<system>be<|endoftext|>\n<user>hello"
    .. "<|endoftext|>\n<assistant>the sea<|endoftext|>\n<user>and<|endoftext|>\n<assistant>|a"
    .. "<|endoftext|>\n")
end)

test("marks of the template begin and end an answer", function()
  local marked = redco.Tokenizer.from_pretrained "../cases/gpt2"
  marked.chat_template = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    .. "{% generation %}{{ m.content }}<|endoftext|>{% endgeneration %}\n{% else %}{{ m.content }}"
    .. "<|endoftext|>\n{% endif %}{% endfor %}"
  expect_equal(texts_of(make({ pair }, { tokenizer = marked })[1], "prompt", "chosen", "rejected"),
    (written:gsub("(<|endoftext|>)\n|", "%1|"):gsub("(heart<|endoftext|>)\n", "%1")))
end)

test("batches of pairs, and of judged completions with those of the example before", function()
  local set = make { pair, { prompt = "hello", chosen = "a", rejected = "b" } }
  local batch = preference.collate { set[1], set[2] }
  expect_equal(batch.input_ids:size(0), 2)
  for i = 0, 1 do
    for k, name in ipairs { "chosen", "rejected" } do
      local labels = batch.labels[i][k - 1]
      expect_equal(tokenizer:decode(labels[labels:ne(-100)]), texts_of(set[i + 1], name))
    end
  end
  set = make { { prompt = "a", completion = "blue", label = true },
    { prompt = "b", completion = "red", label = false },
    { prompt = "c", completion = "green", label = false } }
  expect_equal(texts_of(set[1], "completion", "kl_completion"),
    "blue<|endoftext|>\n|green<|endoftext|>\n")
  expect_equal(texts_of(set[2], "completion", "kl_completion"),
    "red<|endoftext|>\n|blue<|endoftext|>\n")
  local desirable = preference.collate({ set[1], set[2], set[3] }).desirable
  expect_equal(tostring(desirable), "tensor([ True, False, False])")
end)

-- Words of a prompt or an answer: each has a few tokens.
local function words(n) return ("heart "):rep(n) end

local function counts(s)
  return table.concat({ s.too_long, s.same, s.truncated, s.invalid }, " ")
end

test("what is too long is counted and left out, or cut", function()
  local records = { pair, { prompt = words(40), chosen = "a", rejected = "b" },
    { prompt = "hello", chosen = words(40), rejected = "b" },
    { prompt = "hello", chosen = words(40), rejected = words(41) },
    { prompt = "hello", chosen = "a", rejected = "a" } }
  local set = make(records, { max_length = 48 })
  expect_equal(#set, 1)
  local s = set.statistics
  expect_equal(counts(s), "3 1 0 0")
  expect_equal(set:place(1), "example 1")
  set = make(records, { max_length = 48, truncation = "tokens" })
  s = set.statistics
  -- The fourth pair has one answer once it is cut.
  expect_equal(counts(s), "1 2 1 0")
  expect_equal(s.longest, 48)
  expect_equal(set:place(2), "example 3")
  expect_equal(set[2].prompt:size(0) + set[2].chosen:size(0), 48)
  expect_equal(texts_of(set[2], "rejected"), "b<|endoftext|>\n")
  local lengths = make({ records[1], records[3] }).statistics
  local one = make({ pair })[1]
  expect_equal(lengths.shortest, one.prompt:size(0) + one.rejected:size(0))
  assert(lengths.longest > 48)
end)

test("the counts are in the log", function()
  local workdir = testing.folder() .. "/run"
  local deployer = redco.Deployer { seed = 1, workdir = workdir, verbose = false }
  make({ pair, pair, { prompt = words(40), chosen = "a", rejected = "b" },
    { prompt = "hello", chosen = "a", rejected = "a" }, {} },
    { max_length = 48, skip_invalid = true, deployer = deployer })
  local file = assert(io.open(workdir .. "/log.txt"))
  local log = file:read "*a"
  file:close()
  assert(log:find("2 pairs of", 1, true) and log:find("; 1 too long and left out; 1 with two equal "
    .. "answers and left out; 1 invalid and left out", 1, true), log)
end)

test("wrong records are errors that name them", function()
  local question = says("user", "a taxi?")
  for _, case in ipairs {
    { { prompt = "a", chosen = "b" }, "example 2: has neither chosen and rejected nor",
      "completion; it has chosen, prompt" },
    { 3, "example 2: is number 3, expected a record" },
    { { prompt = "a", completion = "b", label = true }, "expected chosen and rejected, as" },
    { { prompt = 7, chosen = "a", rejected = "b" }, "chosen: prompt is number 7, expected a text" },
    { { prompt = "a", chosen = "b", rejected = {} }, "rejected: rejected is", "expected a text" },
    { { prompt = "a", chosen = { question }, rejected = "b" }, "chosen: message 2 is the user's" },
    { { chosen = "a", rejected = "b" }, "chosen: message 1 is the assistant's" },
    { { chosen = { question, says("assistant", "b") }, rejected = { says("user", "c"),
      says("assistant", "b") } }, "chosen and rejected differ before the last answer" },
    { { prompt = { says("user", { { type = "image" } }) }, chosen = "a", rejected = "b" },
      "part of type 'image'" },
  } do
    expect_error(function() make { pair, case[1] } end, unpack(case, 2))
    expect_equal(#make({ pair, case[1] }, { skip_invalid = true }), 1)
  end
  expect_error(function() make { { prompt = "a", completion = "b" } } end,
    "example 1: its label is nil, expected a boolean")
  expect_error(function() make({ pair }, { max_length = 8 }) end,
    "none of 1 records can be used: 1 are longer than max_length = 8")
  expect_error(function() make { { prompt = "a", chosen = "b", rejected = "b" } } end,
    "none of 1 records can be used: 1 have two equal answers, 0 are invalid")
  expect_error(function() make({ pair }, { truncation = "messages" }) end,
    'truncation: expected "drop" or "tokens"')
  expect_error(function() make {} end, "there are no records")
  local merged = redco.Tokenizer.from_pretrained "../cases/gpt2"
  merged.chat_template = "{% for m in messages %}{{ m.content }}{% if m.role == 'user' %} t"
    .. "{% endif %}{% endfor %}"
  local message = expect_error(function()
    make({ { prompt = "a", chosen = "he", rejected = "a" } }, { tokenizer = merged })
  end)
  assert(message:find("merge with those that follow", 1, true)
    and message:find("{% generation %} marks", 1, true)
    and not message:find('turns = "last"', 1, true), message)
end)

testing.finish()
