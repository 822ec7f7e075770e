-- redco.Tokenizer: what Lua adds. Ids, tokens and texts of all cases are tested in C++.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

local function read(name) return redco.Tokenizer.from_pretrained("../cases/" .. name) end

local function list(values) return table.concat(values, ",") end

test("a text goes to ids and back", function()
  local tok = read "llama"
  local ids = tok:encode "Hello world"
  expect_equal(list(ids), "1,429,291,635,495,334")
  expect_equal(list(tok:encode("Hello world", { add_special_tokens = false })),
    "429,291,635,495,334")
  expect_equal(list(tok:encode("Hello world", { truncation = true, max_length = 3 })), "1,429,291")
  expect_equal(tok:decode(ids), "<s> Hello world")
  expect_equal(tok:decode(ids, { skip_special_tokens = true }), "Hello world")
  expect_equal(tok:decode(torch.tensor(ids)), "<s> Hello world")
  expect_equal(list(tok:tokenize "Hello world"), "▁He,ll,o,▁wor,ld")
  expect_equal(list(tok:convert_ids_to_tokens { 429, 291 }), "▁He,ll")
  expect_equal(tok:convert_ids_to_tokens(429), "▁He")
  expect_equal(list(tok:convert_tokens_to_ids { "▁He", "ll" }), "429,291")
  expect_equal(tok:convert_tokens_to_ids "nowhere", tok.unk_token_id)
end)

test("bytes that are not UTF-8, and zeros, pass through", function()
  local tok = read "gpt2"
  expect_equal(tok:decode(tok:encode "a\0b"), "a\0b")
  expect_equal(tok:decode(tok:encode "a\255b"), "a\239\191\189b")
end)

test("a batch is two tensors of int64", function()
  local tok = read "llama"
  local batch = tok({ "Hello world", "Hi" }, { padding = "longest" })
  expect_equal(batch.input_ids.dtype, "int64")
  testing.expect_close(batch.input_ids,
    { { 1, 429, 291, 635, 495, 334 }, { 0, 0, 0, 1, 345, 638 } })
  testing.expect_close(batch.attention_mask, { { 1, 1, 1, 1, 1, 1 }, { 0, 0, 0, 1, 1, 1 } })
  expect_equal(batch.offset_mapping, nil)
  local right = tok({ "Hi", "Hi" }, { padding = "max_length", max_length = 5,
    padding_side = "right", return_offsets_mapping = true, return_special_tokens_mask = true })
  testing.expect_close(right.input_ids, { { 1, 345, 638, 0, 0 }, { 1, 345, 638, 0, 0 } })
  testing.expect_close(right.special_tokens_mask, { { 1, 0, 0, 1, 1 }, { 1, 0, 0, 1, 1 } })
  expect_equal(list(right.offset_mapping[0][2]:tolist()), "1,2")
  expect_equal(list(tok:batch_decode(batch.input_ids, { skip_special_tokens = true })),
    "Hello world,Hi")
  expect_equal(list(tok:batch_decode { { 429, 291 }, {} }), "Hell,")
  expect_equal(list(tok("Hi").input_ids.shape), "1,3")
end)

test("BERT: a pair has types, from tokenizer.json and from vocab.txt", function()
  local from_json, folder = read "bert", testing.folder() .. "/bert"
  assert(os.execute("mkdir " .. folder) == 0)
  for _, name in ipairs { "vocab.txt", "tokenizer_config.json", "special_tokens_map.json" } do
    assert(os.execute(("cp ../cases/bert/%s %s"):format(name, folder)) == 0)
  end
  local from_txt = redco.Tokenizer.from_pretrained(folder)
  for _, tok in ipairs { from_json, from_txt } do
    local batch = tok("The Café,", { text_pair = "東京 is here" })
    expect_equal(list(batch.token_type_ids[0]:tolist()),
      list(from_json("The Café,", { text_pair = "東京 is here" }).token_type_ids[0]:tolist()))
    local ids = batch.input_ids[0]:tolist()
    expect_equal(ids[1], tok.cls_token_id)
    expect_equal(ids[#ids], tok.sep_token_id)
    expect_equal(batch.token_type_ids[0]:max():item(), 1)
    expect_equal(tok("a", { return_token_type_ids = false }).token_type_ids, nil)
    expect_equal(tok:decode(tok:encode "The CAFÉ, here.", { skip_special_tokens = true }),
      "the cafe, here.")
  end
  expect_equal(read("gpt2")("a").token_type_ids, nil)
  assert(read("gpt2")("a", { return_token_type_ids = true }).token_type_ids)
end)

test("what truncation removes comes in further rows, which share tokens", function()
  local tok = read "bert"
  local question, text = "is it", "one two three four five six seven eight nine ten"
  local whole = tok(text, { add_special_tokens = false }).input_ids[0]:tolist()
  local batch = tok({ "a", question }, { text_pair = { "b", text }, truncation = "only_second",
    max_length = 16, stride = 3, return_overflowing_tokens = true, padding = true })
  local n = batch.input_ids:size(0)
  assert(n > 2)
  expect_equal(batch.overflow_to_sample_mapping[0]:item(), 0)
  expect_equal(batch.overflow_to_sample_mapping:sum():item(), n - 1)
  local found = {}
  for i = 1, n - 1 do
    local part = {}
    for j, id in ipairs(batch.input_ids[i]:tolist()) do
      if batch.token_type_ids[i][j - 1]:item() == 1 then part[#part + 1] = id end
    end
    for j = i == 1 and 1 or 4, #part - 1 do found[#found + 1] = part[j] end
  end
  expect_equal(list(found), list(whole))
  expect_error(function() tok("a b", { stride = 2 }) end, "stride", "return_overflowing_tokens")
  expect_error(function() tok("a b", { return_overflowing_tokens = true }) end, "truncation")
  expect_error(function()
    tok(text, { truncation = true, max_length = 5, stride = 3, return_overflowing_tokens = true })
  end, "stride is 3", "3 tokens")
  expect_error(function()
    tok(text, { text_pair = "a", truncation = "only_second", max_length = 8 })
  end, "second text", "longest_first")
  expect_error(function() tok(text, { truncation = "last" }) end, "only_first", "last")
end)

test("fields have Hugging Face's names", function()
  local tok = read "llama"
  expect_equal(tok.vocab_size, 700)
  expect_equal(#tok, 700)
  expect_equal(tok.bos_token, "<s>")
  expect_equal(tok.eos_token_id, 2)
  expect_equal(tok.mask_token_id, nil)
  expect_equal(tok.padding_side, "left")
  expect_equal(tok.model_max_length, 64)
  expect_equal(tok.chat_template, nil)
  tok.padding_side = "right"
  tok.pad_token = "</s>"
  expect_equal(tok.pad_token_id, 2)
  expect_error(function() tok.pad_token = "nowhere" end, "nowhere", "vocabulary")
  expect_error(function() tok.padding_side = "up" end, "left")
  expect_error(function() tok.vocab_size = 1 end, "cannot be set")
  expect_error(function() return tok.nothing end, "nothing")
end)

test("errors say what to do", function()
  local tok = read "gpt2"
  expect_error(function() return tok { "a", "a b c d" } end, "padding")
  expect_error(function() return tok({ "a", "a b c d" }, { padding = true }) end, "pad_token")
  expect_error(function() return tok("a", { paddin = true }) end, "padding")
  expect_error(function() return tok("a", { max_length = 3 }) end, "truncation")
  expect_error(function() return tok("a", { padding = "most" }) end, "longest")
  expect_error(function() return tok { 1 } end, "entry 1", "string")
  expect_error(function() return tok:decode { -100 } end, "-100")
  expect_error(function() return tok:decode { 1.5 } end, "entry 1")
  expect_error(function() return tok:decode(torch.zeros { 2 }) end, "integers")
  expect_error(function() return tok:convert_ids_to_tokens(100000) end, "100000")
  expect_error(function() redco.Tokenizer.from_pretrained "nowhere" end, "nowhere")
  expect_error(function() redco.Tokenizer.from_pretrained "../cases/metrics" end, "tokenizer.json")
end)

test("a stream shows whole characters", function()
  local tok = read "gpt2"
  local stream, shown = tok:decode_stream(), {}
  for _, id in ipairs(tok:encode "né 😀!") do shown[#shown + 1] = stream:step(id) end
  expect_equal(table.concat(shown) .. stream:finish(), "né 😀!")
  for _, part in ipairs(shown) do assert(not part:find "\239\191\189", part) end
end)

test("a stream gives what decode gives, whatever the text", function()
  local fffd = "\239\191\189"
  for _, name in ipairs { "gpt2", "llama", "t5_gated_untied" } do
    local tok = read(name)
    local random = 7
    local function pick(parts)
      random = (random * 16807) % 2147483647
      return parts[random % #parts + 1]
    end
    for _ = 1, 200 do
      local text = ""
      for _ = 1, 6 do
        text = text .. pick { fffd, "a", " ", "é", "日本", "😀", fffd .. "\212\147!", "x y",
          "\226\128" }
      end
      local ids = tok:encode(text, { add_special_tokens = false })
      local stream, shown = tok:decode_stream(), {}
      for i, id in ipairs(ids) do shown[i] = stream:step(id) end
      expect_equal(table.concat(shown) .. stream:finish(), tok:decode(ids))
    end
  end
end)

local function folder_with(config, tokenizer, of_processor)
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder) == 0)
  local text = redco.data.read "../cases/gpt2/tokenizer.json"
  for name, bytes in pairs {
    ["tokenizer_config.json"] = config, ["tokenizer.json"] = tokenizer and tokenizer(text) or text,
    ["chat_template.json"] = of_processor,
  } do
    local file = assert(io.open(folder .. "/" .. name, "wb"))
    file:write(bytes)
    file:close()
  end
  local tok = redco.Tokenizer.from_pretrained(folder)
  os.execute("rm -r " .. folder)
  return tok
end

test("texts are truncated at the side that the files name, or the call", function()
  local text, pair = "one two three four five six", "seven eight nine ten"
  local left, right = folder_with [[{"truncation_side": "left"}]], folder_with "{}"
  local all = left:encode(text)
  local function last(n) return list { unpack(all, #all - n + 1) } end
  local function first(n) return list { unpack(all, 1, n) } end
  local function ids(tok, options)
    options.truncation, options.max_length = true, 4
    return list(tok:encode(text, options))
  end
  expect_equal(left.truncation_side, "left")
  expect_equal(right.truncation_side, "right")
  expect_equal(ids(left, {}), last(4))
  expect_equal(ids(right, {}), first(4))
  expect_equal(ids(left, { truncation_side = "right" }), first(4))
  expect_equal(ids(right, { truncation_side = "left" }), last(4))
  -- Of a pair both texts lose their beginnings.
  local second = left:encode(pair)
  expect_equal(ids(left, { text_pair = pair }),
    list { all[#all - 1], all[#all], second[#second - 1], second[#second] })
  local batch = left({ text }, { truncation = true, max_length = 3 })
  expect_equal(list(batch.input_ids[0]:tolist()), last(3))
  right.truncation_side = "left"
  expect_equal(ids(right, {}), last(4))
  expect_error(function() right.truncation_side = "up" end, "left")
  expect_error(function() folder_with [[{"truncation_side": "up"}]] end, "truncation_side")
  -- Without a word in the configuration tokenizer.json says it.
  local function sides(json)
    return json:gsub('"truncation"%s*:%s*null', '"truncation": {"direction": "Left"}', 1)
      :gsub('"padding"%s*:%s*null', '"padding": {"direction": "Left", "pad_token": "a"}', 1)
  end
  local both = folder_with("{}", sides)
  expect_equal(both.truncation_side .. both.padding_side .. both.pad_token, "leftlefta")
  expect_equal(folder_with([[{"truncation_side": "right"}]], sides).truncation_side, "right")
end)

-- Normal forms and their offsets, classes of characters, unknown runs, added tokens that are alike,
-- ties: as `tokenizers` 0.22.2 has them. tests/peers compares random ones.
test("steps of tokenizers", function()
  local native = require "redco.native"
  for i, made in ipairs(redco.data.json "../cases/tokenizer_steps.json") do
    local tok = folder_with("{}", function()
      return native.json_encode("", made.tokenizer)
    end)
    for _, case in ipairs(made.cases) do
      local what = ("tokenizer %d, %q: "):format(i, case.text)
      expect_equal(what .. list(tok:encode(case.text)), what .. list(case.ids))
      expect_equal(what .. list(tok:tokenize(case.text)), what .. list(case.tokens))
      local offsets = tok(case.text, { return_offsets_mapping = true }).offset_mapping[0]:tolist()
      for j, pair in ipairs(case.offsets) do
        expect_equal(what .. j .. ": " .. list(offsets[j]), what .. j .. ": " .. list(pair))
      end
    end
  end
end)

test("pieces of a fixed length", function()
  local function with_length(length)
    return folder_with("{}", function(text)
      return (text:gsub('"pre_tokenizer": %b{}', ('"pre_tokenizer":{"type":"Sequence",'
        .. '"pretokenizers":[{"type":"FixedLength"%s},{"type":"ByteLevel","add_prefix_space":false,'
        .. '"use_regex":false}]}'):format(length)))
    end)
  end
  local plain = with_length ', "length": 70'
  for length, given in pairs { [2] = ', "length": 2', [5] = "" } do
    local tok, ids = with_length(given), {}
    local text = { "t", "h", "e", "é", " ", "\n", "t", "h", "e", "r", "e" }
    for i = 1, #text, length do
      local piece = table.concat(text, "", i, math.min(i + length - 1, #text))
      for _, id in ipairs(plain:encode(piece)) do ids[#ids + 1] = id end
    end
    expect_equal(list(tok:encode(table.concat(text))), list(ids))
  end
  expect_error(function() with_length ', "length": 0' end, "length", "a number to 65535")
end)

test("the chat template of a processor counts if the tokenizer has none", function()
  local of_processor = [[{"chat_template": "{{ messages[0].content }}!"}]]
  local conversation = { { role = "user", content = "hello" } }
  for config, expected in pairs { ["{}"] = "hello!", [ [[{"chat_template": "hi"}]] ] = "hi" } do
    local tok = folder_with(config, nil, of_processor)
    expect_equal(tok:apply_chat_template(conversation, { tokenize = false }), expected)
  end
  expect_error(function() folder_with("{}", nil, "{}") end, "chat_template.json", "chat_template")
end)

test("a batch of conversations is a list of texts, of ids, or tensors with padding", function()
  local tok = folder_with [[{"pad_token": "a",
    "chat_template": "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"}]]
  local first = { { role = "user", content = "hello" } }
  local second = { { role = "user", content = "bye" }, { role = "assistant", content = "so soon" } }
  local batch, texts, ids = { first, second }, {}, {}
  for i, conversation in ipairs(batch) do
    texts[i] = tok:apply_chat_template(conversation, { tokenize = false })
    ids[i] = tok:apply_chat_template(conversation)
  end
  assert(texts[1] == "user hello " and #ids[1] < #ids[2])
  expect_equal(list(tok:apply_chat_template(batch, { tokenize = false })), list(texts))
  local both = tok:apply_chat_template(batch)
  for i = 1, 2 do expect_equal(list(both[i]), list(ids[i])) end
  local padded = tok:apply_chat_template(batch, { padding = true, padding_side = "right" })
  expect_equal(list(padded.attention_mask:sum({ 1 }):tolist()), list { #ids[1], #ids[2] })
  expect_equal(list(padded.input_ids[0]:narrow(0, 0, #ids[1]):tolist()), list(ids[1]))
  expect_equal(list(padded.input_ids[1]:tolist()), list(ids[2]))
  expect_error(function() tok:apply_chat_template(first[1]) end, "one message")
  expect_error(function() tok:apply_chat_template { first, { "hi" } } end, "conversation 2",
    "message 1")
  expect_error(function() tok:apply_chat_template { first, first[1] } end, "conversation 2")
  expect_error(function() tok:apply_chat_template(first, { max_length = 3 }) end, "max_length")
end)

test("chat templates see the keys of tools in their order", function()
  local tok = folder_with [[{"chat_template": [
    {"name": "default", "template": "{{ tools is none }}"},
    {"name": "tool_use", "template": "{{ tools | tojson }}"}]}]]
  local function rendered(tools)
    return tok:apply_chat_template({ { role = "user" } },
      { tokenize = false, variables = { tools = tools } })
  end
  expect_equal(rendered(nil), "True")
  local read_from_json = redco.data.json "../cases/ordered.json"
  local text = redco.data.read("../cases/ordered.json"):gsub("\n$", "")
  expect_equal(rendered(read_from_json), text)
  local parameters = redco.ordered_table { { "type", "object" }, { "a", 1 }, { "none" } }
  parameters.Z, parameters.a = 2, nil
  parameters.a = 3
  expect_equal(rendered { redco.ordered_table { { "name", "f" }, { "args", parameters } } },
    '[{"name": "f", "args": {"type": "object", "none": null, "Z": 2, "a": 3}}]')
  expect_equal(rendered { { name = "f", args = 1 } }, '[{"args": 1, "name": "f"}]')
  local keys = {}
  for key in pairs(parameters) do keys[#keys + 1] = key end
  expect_equal(list(keys), "type,Z,a")
  expect_error(function() redco.ordered_table { { 1, 2 } } end, "entry 1", "string")
  expect_error(function() redco.ordered_table { { "a", 1 }, { "a", 2 } } end, "'a'", "twice")
  expect_error(function() rendered { print } end, "variables", "tools.1")
end)

test("a conversation goes through the chat template", function()
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder .. " && cp ../cases/gpt2/tokenizer.json " .. folder) == 0)
  local file = assert(io.open(folder .. "/tokenizer_config.json", "w"))
  file:write [[{"chat_template": "{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ sep }}]]
  file:write [[{% endfor %}{% if add_generation_prompt %}A:{% endif %}"}]]
  file:close()
  local tok = redco.Tokenizer.from_pretrained(folder)
  local messages = { { role = "user", content = "hi" } }
  expect_equal(tok:apply_chat_template(messages, { tokenize = false, variables = { sep = "|" } }),
    "user:hi|")
  expect_equal(list(tok:apply_chat_template(messages, { add_generation_prompt = true })),
    list(tok:encode "user:hiA:"))
  expect_error(function() read "gpt2":apply_chat_template(messages) end, "chat_template")
  expect_error(function() tok:apply_chat_template "hi" end, "messages")
  local copy = folder .. "/new/copy"
  redco.Tokenizer.from_pretrained "../../examples/zero_shot/data/processor":save_pretrained(copy)
  tok:save_pretrained(copy)
  -- Those of the other tokenizer would be read with this one.
  expect_error(function() redco.data.read(copy .. "/merges.txt") end, "No such file")
  for _, name in ipairs { "tokenizer.json", "tokenizer_config.json" } do
    expect_equal(redco.data.read(copy .. "/" .. name), redco.data.read(folder .. "/" .. name))
  end
  os.execute("rm -r " .. folder)
end)

-- The ids are those of transformers 4.57.6 without ftfy.
test("CLIP's tokenizer from vocab.json and merges.txt alone", function()
  local tok = redco.Tokenizer.from_pretrained "../../examples/zero_shot/data/processor"
  for _, case in ipairs {
    { "A Taxi, isn't it?", "898,320,612,87,328,267,548,333,6,339,794,286,899",
      "a taxi , isn 't it ?" },
    { "  two\twords ", "898,725,334,774,619,899", "two words" },
    { "日本語 e\204\129É", "898,162,245,354,162,250,361,164,103,508,127,102,127,358,899",
      "日 本 語 éé" },
    { "x<|endoftext|>Y 12", "898,343,899,344,272,273,899", "x y 1 2" },
    { "", "898,899", "" },
    { "a\0b\226\128\139c", "898,64,65,322,899", "abc" },
  } do
    local ids = tok:encode(case[1])
    expect_equal(list(ids), case[2])
    expect_equal(tok:decode(ids, { skip_special_tokens = true }), case[3])
  end
  local pair = tok({ "a taxi" }, { text_pair = { "two" }, padding = "max_length" })
  expect_equal(list(pair.input_ids[0]:tolist()),
    "898,320,612,87,328,899,899,725,334,899,899,899,899,899,899,899")
  expect_equal(pair.attention_mask:sum():item(), 10)
  local long = tok:encode(("goblin "):rep(20), { truncation = true })
  expect_equal(#long, 16)
  expect_equal(long[16], tok.eos_token_id)

  local folder = testing.folder() .. "/clip"
  tok:save_pretrained(folder)
  tok = redco.Tokenizer.from_pretrained(folder)
  expect_equal(list(tok:encode "a taxi"), "898,320,612,87,328,899")
  testing.write(folder .. "/vocab.json", '{"a": 0, "a</w>": 1}')
  testing.write(folder .. "/merges.txt", "#version: 0.2\n")
  expect_error(function() redco.Tokenizer.from_pretrained(folder) end, "vocab.json",
    "there is no token", "<|startoftext|>", "bos_token")
end)

test("SigLIP's tokenizer removes punctuation, pads with the end token and gives no mask", function()
  local folder = testing.folder() .. "/siglip"
  os.execute("mkdir -p " .. folder)
  testing.write(folder .. "/spiece.model", redco.data.read "../cases/t5_relu_tied/spiece.model")
  local function read_with(config)
    testing.write(folder .. "/tokenizer_config.json", config)
    return redco.Tokenizer.from_pretrained(folder)
  end
  local tok = read_with '{"tokenizer_class": "SiglipTokenizer", "model_input_names": ["input_ids"]}'
  for text, ids in pairs {
    ["Don't stop, (now)!"] = "273,9,140,15,28,398,1",
    ["  two\twords\226\128\168here "] = "465,366,4,33,46,1",
    ["▁under▁score"] = "97,215,53,239,46,1",
    ["and</s>the"] = "13,1,98,10,1",
    [""] = "1",
    ["<unk> a"] = "2,17,1",
    ["..."] = "1",
  } do
    expect_equal(list(tok:encode(text)), ids)
    local batch = tok({ text }, { return_offsets_mapping = true })
    expect_equal(list(batch.input_ids[0]:tolist()), ids)
  end
  local batch = tok({ "the end" }, { padding = "max_length", truncation = true })
  expect_equal(batch.attention_mask, nil)
  expect_equal(batch.input_ids:size(1), 64)
  expect_equal(list(batch.input_ids[0]:tolist()):sub(1, 13), "6,47,14,1,1,1")
  local masked = tok({ "the end" }, { return_attention_mask = true })
  expect_equal(masked.attention_mask:sum():item(), 4)
  tok = read_with '{"tokenizer_class": "SiglipTokenizer"}'
  assert(tok { "the end" }.attention_mask)
end)

testing.finish()
