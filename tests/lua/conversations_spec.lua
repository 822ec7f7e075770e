-- redco.data.conversations: messages of several forms as tokens and labels, and batches of them.
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_error = testing.test, testing.expect_error
local expect_equal, write = testing.expect_equal, testing.write

local plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|endoftext|>{% endfor %}"
  .. "{% if add_generation_prompt %}<assistant>{% endif %}"
local marked = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
  .. "{% generation %}{{ m.content }}<|endoftext|>{% endgeneration %}"
  .. "{% else %}{{ m.content }}<|endoftext|>{% endif %}{% endfor %}"

-- A tokenizer with the template. Tokens of the case are letters and short words.
local function tokenizer_with(template)
  local tokenizer = redco.Tokenizer.from_pretrained "../cases/gpt2"
  tokenizer.chat_template = template
  return tokenizer
end

local function conversation(...)
  local messages = {}
  for i, turn in ipairs { ... } do
    local role, content = turn:match "^(%w+): (.*)$"
    messages[i] = { role = role, content = content }
  end
  return { messages = messages }
end

local function make(records, options, template)
  options = options or {}
  options.tokenizer = options.tokenizer or tokenizer_with(template or plain)
  return data.conversations(records, options), options.tokenizer
end

-- The texts of the tokens that an example trains, run by run, with "|" between.
local function trained(example, tokenizer)
  local runs, run = {}, nil
  for _, label in ipairs(example.labels:tolist()) do
    if label >= 0 then
      run = run or {}
      run[#run + 1] = label
    elseif run then
      runs[#runs + 1], run = tokenizer:decode(run), nil
    end
  end
  return table.concat(runs, "|")
end

local two_turns = conversation("system: be", "user: hello", "assistant: the sea", "user: and",
  "assistant: a heart")

test("answers are trained, by prefixes as by marks, in all turns or the last", function()
  for _, template in ipairs { plain, marked } do
    local set, tokenizer = make({ two_turns }, nil, template)
    expect_equal(#set, 1)
    local example = set[1]
    expect_equal(tokenizer:decode(example.input_ids), "<system>be<|endoftext|><user>hello"
      .. "<|endoftext|><assistant>the sea<|endoftext|><user>and<|endoftext|><assistant>a heart"
      .. "<|endoftext|>")
    expect_equal(example.input_ids.dtype, "int64")
    expect_equal(trained(example, tokenizer), "the sea<|endoftext|>|a heart<|endoftext|>")
    -- A label is the token that comes next.
    local ids, labels = example.input_ids:tolist(), example.labels:tolist()
    for t = 1, #ids do assert(labels[t] == -100 or labels[t] == ids[t + 1], t) end
    expect_equal(labels[#labels], -100)
    set = make({ two_turns }, { turns = "last" }, template)
    expect_equal(trained(set[1], tokenizer), "a heart<|endoftext|>")
  end
end)

test("apply_chat_template returns the mask of the template's marks", function()
  local messages = two_turns.messages
  local tokenizer = tokenizer_with(marked)
  local out = tokenizer:apply_chat_template(messages, { return_assistant_tokens_mask = true })
  local said = {}
  for i, id in ipairs(out.input_ids) do
    if out.assistant_masks[i] == 1 then said[#said + 1] = id end
  end
  expect_equal(#out.assistant_masks, #out.input_ids)
  expect_equal(tokenizer:decode(said), "the sea<|endoftext|>a heart<|endoftext|>")
  local both = tokenizer:apply_chat_template({ messages, messages },
    { return_assistant_tokens_mask = true })
  expect_equal(#both[2].assistant_masks, #out.input_ids)
  tokenizer.chat_template = plain
  out = tokenizer:apply_chat_template(messages, { return_assistant_tokens_mask = true })
  expect_equal(out.assistant_masks, nil)
  expect_error(function()
    tokenizer:apply_chat_template(messages, { return_assistant_tokens_mask = true,
      tokenize = false })
  end, "return_assistant_tokens_mask", "tokens")
end)

test("the forms of Hugging Face, ShareGPT and Alpaca give the same", function()
  local expected = make({ two_turns })[1].input_ids
  for _, record in ipairs {
    two_turns.messages,
    { conversations = { { from = "system", value = "be" }, { from = "human", value = "hello" },
      { from = "gpt", value = "the sea" }, { from = "user", value = "and" },
      { from = "assistant", value = "a heart" } } },
    { system = "be", conversations = { { from = "human", value = "hello" },
      { from = "gpt", value = "the sea" }, { role = "user", content = "and" },
      { from = "gpt", value = "a heart" } } },
    { system = "be", history = { { "hello", "the sea" } }, instruction = "and", input = "",
      output = "a heart" },
    { messages = { { role = "system", content = { { type = "text", text = "be" } } },
      { role = "human", content = "hello" }, { role = "ai", content = "the sea" },
      { role = "user", content = "and" }, { role = "model", content = "a heart" } } },
  } do
    assert(make({ record }, { roles = { ai = "assistant" } })[1].input_ids:equal(expected))
  end
  local set, tokenizer = make { { instruction = "say", input = "a", output = "b" } }
  expect_equal(tokenizer:decode(set[1].input_ids),
    "<user>say\na<|endoftext|><assistant>b<|endoftext|>")
end)

test("tools, their calls, thinking and variables reach the template", function()
  local template = "{{ tools | tojson if tools else '' }}{{ style }}{% for m in messages %}"
    .. "<{{ m.role }}>{{ m.reasoning_content or '' }}{{ m.content or '' }}"
    .. "{{ m.tool_calls | tojson if m.tool_calls else '' }};{% endfor %}"
    .. "{% if add_generation_prompt %}<assistant>{% endif %}"
  local call = '{"arguments": {"x": 1}, "name": "f"}'
  local record = {
    tools = '[{"name": "f"}]', chat_template_kwargs = { style = "!" },
    conversations = { { from = "human", value = "a" }, { from = "function_call", value = call },
      { from = "observation", value = "b" },
      { role = "assistant", content = "c", reasoning_content = "d" } },
  }
  local set, tokenizer = make({ record }, nil, template)
  expect_equal(tokenizer:decode(set[1].input_ids), '[{"name": "f"}]!<user>a;<assistant>'
    .. '[{"function": {"arguments": {"x": 1}, "name": "f"}, "type": "function"}];<tool>b;'
    .. "<assistant>dc;")
  set = make({ record.conversations }, { variables = { style = "?" } }, template)
  expect_equal(tokenizer:decode(set[1].input_ids):sub(1, 7), "?<user>")
end)

test("files: JSON lines, JSON and Parquet, whose places errors name", function()
  local lines = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", '
    .. '"content": "b"}]}\n\n'
  local good = write("good.jsonl", lines .. lines)
  local set, tokenizer = make(good)
  expect_equal(#set, 2)
  expect_equal(set:place(2), good .. ":3")
  expect_equal(trained(set[2], tokenizer), "b<|endoftext|>")
  local list = write("list.json", '[{"instruction": "a", "output": "b"}]')
  local all = make { good, list }
  expect_equal(#all, 3)
  expect_equal(all:place(3), list .. ": record 1")
  local bad = write("bad.jsonl", lines .. '{"messages": [{"role": "user", "content": "a"}]}\n')
  expect_error(function() make(bad) end, bad .. ":3", "no message of the assistant")
  -- Through other data sets, too.
  expect_error(function()
    make(data.concat { { two_turns }, data.jsonl(bad):slice(2):map(function(x) return x end) })
  end, bad .. ":3")
  set = make(bad, { skip_invalid = true })
  expect_equal(#set, 1)
  expect_equal(set.statistics.invalid, 1)
  expect_error(function() make(write("x.txt", "a")) end, ".jsonl, .json or .parquet")
  expect_error(function() make "lua/parquet_cases/plain.parquet" end, "plain.parquet")
end)

test("what is wrong with a record is said", function()
  local user, answer = { role = "user", content = "a" }, { role = "assistant", content = "b" }
  for _, case in ipairs {
    { {}, "example 2: has no messages" },
    { { messages = {} }, "has no messages" },
    { { messages = "a" }, "its messages are", "list" },
    { { text = "a", source = "b" }, "messages, conversations and instruction",
      "it has source, text" },
    { 7, "expected a record" },
    { { user }, "no message of the assistant" },
    { { answer, user, answer }, "message 1 is the assistant's" },
    { { user, user, answer }, "message 2 is the user's after the user's", "wrong order" },
    { { user, answer, answer }, "message 3 is the assistant's after the assistant's" },
    { { user, answer, { role = "system", content = "c" }, user, answer }, "message 3", "order" },
    { { user, { role = "tool", content = "c" }, answer },
      "message 2 is the tool's after the user's" },
    { { { role = "user" }, answer }, "message 1 has no content" },
    { { { role = "user", content = redco.null }, answer }, "message 1 has no content" },
    { { user, { role = "assistant" } }, "message 2 has no content" },
    { { { role = "user", content = 5 }, answer },
      "message 1 has as content number 5, expected text" },
    { { user, { role = "assistant", content = true } }, "message 2", "expected text" },
    { { { role = "user", content = { { type = "image" }, { text = "a" } } }, answer },
      "message 1 has a part of type 'image'", "models of text" },
    { { { role = "user", content = { { type = "text" } } }, answer }, "message 1 part 1" },
    { { messages = { user, answer }, images = { "a.png" } }, "has images", "models of text" },
    { { { role = "narrator", content = "a" }, answer }, "message 1", "narrator", "roles" },
    { { { content = "a" }, answer }, "message 1 has the role nil" },
    { { "hello", answer }, "message 1 is", "expected {role, content}" },
    { { instruction = "a" }, "message 2 has no content" },
    { { user, { from = "function_call", value = "f(x)" } }, "message 2", "no JSON: f(x)" },
  } do
    expect_error(function() make { two_turns, case[1] } end, unpack(case, 2))
  end
  local many = {}
  for i = 1, 7 do many[i] = { user } end
  expect_error(function() make(many) end, "example 5", "... and 2 more", "skip_invalid")
  expect_error(function() make(many, { skip_invalid = true }) end, "none of 7 records")
  expect_error(function() make {} end, "no records")
end)

test("templates that cannot be masked are refused with the reason", function()
  local numbered = "{{ messages | length }}" .. plain
  expect_error(function() make({ two_turns }, nil, numbered) end, "cannot be masked",
    "the prompt after 2 messages", '"2<system>', '"5<system>', "{% generation %}")
  -- Of the last turn alone the earlier ones may change.
  local only_last = "{% for m in messages %}<{{ m.role }}>"
    .. "{{ m.content if loop.last or m.role != 'assistant' else '...' }}{% endfor %}"
    .. "{% if add_generation_prompt %}<assistant>{% endif %}"
  expect_error(function() make({ two_turns }, nil, only_last) end, "the first 3 messages",
    "turns = \"last\"")
  local set, tokenizer = make({ two_turns }, { turns = "last" }, only_last)
  expect_equal(trained(set[1], tokenizer), "a heart")
  -- The tokens of prompt and answer merge: "t" and "he" are one.
  expect_error(function()
    make({ conversation("user: a", "assistant: he") }, nil,
      "{% for m in messages %}{{ m.content }}{% if m.role == 'user' %} t{% endif %}{% endfor %}")
  end, "merge")
  -- eos_token after the last message, whichever that is.
  set, tokenizer = make({ two_turns }, nil, "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    .. "{% endfor %}{{ '<assistant>' if add_generation_prompt else eos_token }}")
  expect_equal(trained(set[1], tokenizer), "the sea|a heart<|endoftext|>")
  expect_error(function()
    make({ two_turns }, nil, "{% macro f() %}{% generation %}a{% endgeneration %}{% endmacro %}"
      .. "{{ f() }}")
  end, "generation block in a macro")
  expect_error(function()
    make({ two_turns }, nil, "{% if false %}{% generation %}a{% endgeneration %}{% endif %}b")
  end, "marks no token")
  expect_error(function()
    make({ two_turns }, nil, "{{ raise_exception('no system here') }}")
  end, "example 1", "no system here")
end)

test("truncation leaves whole messages unless asked, and counts", function()
  local whole = make({ two_turns })[1].input_ids:size(0)
  for _, template in ipairs { plain, marked } do
    local set, tokenizer = make({ two_turns }, { max_length = whole - 1 }, template)
    expect_equal(tokenizer:decode(set[1].input_ids),
      "<system>be<|endoftext|><user>hello<|endoftext|><assistant>the sea<|endoftext|>")
    expect_equal(trained(set[1], tokenizer), "the sea<|endoftext|>")
    expect_equal(set.statistics.truncated, 1)
    set = make({ two_turns }, { max_length = whole }, template)
    expect_equal(set[1].input_ids:size(0), whole)
    expect_equal(set.statistics.truncated, 0)
    set = make({ two_turns }, { max_length = whole - 1, truncation = "tokens" }, template)
    expect_equal(set[1].input_ids:size(0), whole - 1)
    expect_equal(trained(set[1], tokenizer), "the sea<|endoftext|>|a heart")
  end
  local short = conversation("user: a", "assistant: b")
  for _, options in ipairs { { truncation = "drop" }, { turns = "last" } } do
    options.max_length = whole - 1
    local set = make({ two_turns, short }, options)
    expect_equal(#set, 1)
    expect_equal(set.statistics.too_long, 1)
    expect_equal(set:place(1), "example 2")
  end
  expect_error(function() make({ two_turns }, { max_length = 5 }) end,
    "none of 1 records", "1 are longer than max_length = 5")
end)

test("statistics are counted, and logged by the deployer", function()
  local set = make { two_turns, conversation("user: a", "assistant: b") }
  local s, n = set.statistics, 0
  for _, example in set:ipairs() do n = n + example.labels:ne(-100):sum():item() end
  expect_equal(s.count, 2)
  expect_equal(s.trained_tokens, n)
  expect_equal(s.tokens, set[1].input_ids:size(0) + set[2].input_ids:size(0))
  expect_equal(s.longest, set[1].input_ids:size(0))
  expect_equal(s.shortest, set[2].input_ids:size(0))
  local logged
  make({ two_turns }, { deployer = { log_info = function(_, text) logged = text end } })
  assert(logged:find "^1 conversations of %d+ to %d+ tokens", logged)
  assert(logged:find "%% are trained", logged)
end)

test("options are checked", function()
  local tokenizer = tokenizer_with(plain)
  for _, case in ipairs {
    { {}, "tokenizer: expected a Tokenizer, got nil" },
    { { tokenizer = redco.Tokenizer.from_pretrained "../cases/gpt2" }, "no chat_template" },
    { { tokenizer = tokenizer, turns = "first" }, "turns" },
    { { tokenizer = tokenizer, truncation = true }, "truncation" },
    { { tokenizer = tokenizer, max_length = 1.5 }, "max_length" },
    { { tokenizer = tokenizer, max_lenght = 5 }, "did you mean 'max_length'" },
    { { tokenizer = tokenizer, variables = 5 }, "variables" },
  } do
    expect_error(function() data.conversations({ two_turns }, case[1]) end, unpack(case, 2))
  end
  expect_error(function() data.conversations(7, { tokenizer = tokenizer }) end, "expected a path")
end)

test("padding_collate pads each field with its filler", function()
  local collate = data.padding_collate { pad_token_id = 9 }
  local batch = collate {
    { input_ids = { 1, 2, 3 }, labels = { -100, 3, -100 }, weight = 1 },
    { input_ids = torch.tensor { 4, 5 }, labels = torch.tensor { 5, -100 }, weight = 2 },
  }
  expect_equal(batch.input_ids:tolist()[2][3], 9)
  expect_equal(table.concat(batch.labels[1]:tolist(), " "), "5 -100 -100")
  expect_equal(table.concat(batch.attention_mask[1]:tolist(), " "), "1 1 0")
  expect_equal(batch.weight:sum():item(), 3)
  local set = make { two_turns, conversation("user: a", "assistant: b") }
  batch = data.padding_collate { pad_to_multiple_of = 64 } { set[1], set[2] }
  expect_equal(batch.input_ids:size(1) % 64, 0)
  expect_equal(batch.labels:ne(-100):sum():item(), set.statistics.trained_tokens)
  local rows = data.pack(set, { seq_len = set.statistics.longest })
  batch = data.padding_collate {} { rows[1] }
  expect_equal(batch.attention_mask, nil)
  expect_equal(batch.segment_ids.shape, rows[1].segment_ids:unsqueeze(0).shape)
  batch = data.padding_collate { return_attention_mask = false } { set[1] }
  expect_equal(batch.attention_mask, nil)
  expect_error(function() collate { { labels = { 1 } } } end, "example 1 has no input_ids")
  expect_error(function()
    collate { { input_ids = { 1, 2 }, labels = { 1, 2 } }, { input_ids = { 1 } } }
  end, "example 2 has no labels")
  expect_error(function() collate { { input_ids = { 1, 2 }, labels = { 1 } } } end,
    "2 input_ids and 1 labels")
  expect_error(function() collate { { input_ids = torch.zeros { 2, 2 } } } end, "one dimension")
  expect_error(function() collate { { input_ids = 5 } } end, "expected a list")
end)

test("packed and padded conversations give the loss of each alone", function()
  local model = redco.models.from_pretrained "../cases/llama3"
  local tokenizer = redco.Tokenizer.from_pretrained "../cases/llama3"
  tokenizer.chat_template = (plain:gsub("<|endoftext|>", ";"))
  local set = data.conversations({ two_turns, conversation("user: and", "assistant: b"),
    conversation("user: he", "assistant: so the sea") }, { tokenizer = tokenizer })
  local function mean_loss(batch) return model.loss(model.params, batch):item() end
  local sum, count = 0, 0
  for _, example in set:ipairs() do
    local n = example.labels:ne(-100):sum():item()
    sum = sum + n * mean_loss { input_ids = example.input_ids:unsqueeze(0),
      labels = example.labels:unsqueeze(0) }
    count = count + n
  end
  local padded = mean_loss(data.padding_collate {} { set[1], set[2], set[3] })
  local rows = data.pack(set, { seq_len = set.statistics.longest + 30 })
  local packed = mean_loss(data.default_collate(rows:tolist()))
  for _, loss in ipairs { padded, packed } do
    testing.expect_close(torch.tensor { loss }, torch.tensor { sum / count }, 1e-5)
  end
  assert(#rows < #set)
end)

test("a data set knows the places of its examples", function()
  local lines = data.lines(write("lines.txt", "a\nb\nc\nd\n"))
  local path = testing.folder() .. "/lines.txt"
  expect_equal(lines:place(3), path .. ":3")
  expect_equal(lines:select({ 4, 2 }):place(1), path .. ":4")
  local train, held_out = data.split(lines, { every = 2 })
  expect_equal(train:place(2), path .. ":3")
  expect_equal(held_out:place(2), path .. ":4")
  expect_equal(data.dataset(3, function(i) return i end):place(2), "example 2")
  expect_equal(data.concat({ lines, { 1, 2 } }):place(6), "example 2")
  expect_equal(data.parquet("parquet_cases/plain.parquet"):place(2),
    "parquet_cases/plain.parquet: row 2")
  expect_error(function() lines:place(5) end, "1 to 4")
end)

testing.finish()
