-- Tokens that a folder's settings or a script add to a vocabulary, and the rows that a model then
-- needs. tokenizer_settings_peer.py compares random settings with transformers.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error, expect_close =
  testing.test, testing.expect_equal, testing.expect_error, testing.expect_close

local cases = "../cases/"
local function list(values) return table.concat(values, ",") end

local n_folders = 0
local function new_folder()
  n_folders = n_folders + 1
  local folder = testing.folder() .. "/tokens" .. n_folders
  assert(os.execute("mkdir -p " .. folder) == 0)
  return folder
end

-- GPT-2's tokenizer with the text of tokenizer_config.json.
local function with_settings(config, files)
  local folder = new_folder()
  assert(os.execute(("cp %sgpt2/tokenizer.json %s"):format(cases, folder)) == 0)
  testing.write(folder .. "/tokenizer_config.json", config)
  for name, text in pairs(files or {}) do testing.write(folder .. "/" .. name, text) end
  return redco.Tokenizer.from_pretrained(folder), folder
end

test("add_prefix_space of tokenizer_config.json", function()
  for _, class in ipairs { "GPT2TokenizerFast", "RobertaTokenizer", "PreTrainedTokenizerFast" } do
    local text = '{"tokenizer_class": "%s", "add_prefix_space": %s, "bos_token": "<|endoftext|>"}'
    expect_equal(list(with_settings(text:format(class, "true")):tokenize "a red heart"),
      "Ġa,Ġre,d,Ġhe,art")
    expect_equal(list(with_settings(text:format(class, "false")):tokenize "a red heart"),
      "a,Ġre,d,Ġhe,art")
  end
end)

test("special tokens that the vocabulary lacks get the next free ids", function()
  local tok = with_settings [[{"pad_token": "<|pad|>", "eos_token": "<|endoftext|>",
    "additional_special_tokens": ["<|im_start|>", {"__type": "AddedToken", "content": "<x>",
    "lstrip": true}]}]]
  expect_equal(tok.pad_token_id, 768)
  expect_equal(tok:convert_tokens_to_ids "<|im_start|>", 769)
  expect_equal(list(tok:encode "a<|im_start|>a  <x>a"), list { tok:encode("a")[1], 769,
    tok:encode("a")[1], 770, tok:encode("a")[1] })
  expect_equal(tok:decode({ 768, 769 }, { skip_special_tokens = true }), "")
  expect_equal(#tok, 771)
  expect_equal(tok.vocab_size, 768)
  expect_equal(list(tok.additional_special_tokens), "<|im_start|>,<x>")
  expect_equal(list(tok({ "a", "a a" }, { padding = true }).input_ids:select(1, 1):tolist()),
    list { 768, tok:encode("a a")[2] })
end)

test("ids of listed tokens leave no gap", function()
  local token = '{"content": "%s", "special": false, "normalized": false, "lstrip": false, '
    .. '"rstrip": false, "single_word": false}'
  local tok = with_settings(('{"added_tokens_decoder": {"900": %s, "800": %s}}'):format(
    token:format "<b>", token:format "<a>"))
  expect_equal(tok:convert_tokens_to_ids "<a>", 768)
  expect_equal(tok:convert_tokens_to_ids "<b>", 769)
  expect_equal(tok:decode { 768, 769 }, "<a><b>")
end)

test("split_special_tokens", function()
  local text = '{"eos_token": "<|endoftext|>", "split_special_tokens": %s}'
  expect_equal(#with_settings(text:format "false"):encode "<|endoftext|>", 1)
  local tok = with_settings(text:format "true")
  assert(#tok:encode "<|endoftext|>" > 1)
  expect_equal(tok:decode(tok:encode "<|endoftext|>"), "<|endoftext|>")
end)

test("the special tokens of a class, and those of special_tokens_map.json", function()
  local tok = with_settings '{"tokenizer_class": "GPT2Tokenizer"}'
  expect_equal(tok.eos_token_id, 767)
  expect_equal(tok.pad_token, nil)
  local map = { ["special_tokens_map.json"] = '{"eos_token": "a", "pad_token": "he"}' }
  tok = with_settings('{"tokenizer_class": "GPT2Tokenizer", "eos_token": "b"}', map)
  expect_equal(tok.eos_token, "a")
  expect_equal(tok.pad_token, "he")
  tok = with_settings('{"tokenizer_class": "GPT2Tokenizer", "eos_token": "b",'
    .. ' "added_tokens_decoder": {}}', map)
  expect_equal(tok.eos_token, "b")
  tok = with_settings '{"tokenizer_class": "GPT2Tokenizer", "eos_token": null}'
  expect_equal(tok.eos_token, nil)
end)

test("the class by the model's configuration where the tokenizer's names none", function()
  local model = { ["config.json"] = '{"model_type": "mistral"}' }
  local tok, folder = with_settings("{}", model)
  expect_equal(tok.padding_side, "left")
  expect_equal(tok.bos_token, "<s>")
  expect_equal(with_settings('{"tokenizer_class": "GPT2Tokenizer"}', model).padding_side, "right")
  -- A class that the model's configuration names comes before its type.
  expect_equal(with_settings("{}", { ["config.json"] =
    '{"model_type": "mistral", "tokenizer_class": "GPT2Tokenizer"}' }).bos_token, "<|endoftext|>")
  expect_equal(with_settings("{}", { ["config.json"] = '{"model_type": "other"}' }).bos_token, nil)
  -- A folder without the model has the same.
  assert(os.execute("rm " .. folder .. "/tokenizer_config.json") == 0)
  tok = redco.Tokenizer.from_pretrained(folder)
  expect_equal(tok.padding_side, "left")
  tok:save_pretrained(folder .. "/saved")
  expect_equal(redco.Tokenizer.from_pretrained(folder .. "/saved").padding_side, "left")
end)

test("tokens that T5's and Pegasus' classes have", function()
  local tok = with_settings '{"tokenizer_class": "T5TokenizerFast", "extra_ids": 3}'
  expect_equal(list(tok.additional_special_tokens), "<extra_id_0>,<extra_id_1>,<extra_id_2>")
  expect_equal(tok:decode(tok:encode "a<extra_id_1>a", { skip_special_tokens = true }), "aa")
  tok = with_settings '{"tokenizer_class": "T5Tokenizer"}'
  expect_equal(#tok.additional_special_tokens, 100)
  tok = with_settings('{"tokenizer_class": "T5Tokenizer",'
    .. ' "additional_special_tokens": ["<extra_id_0>"]}')
  expect_equal(list(tok.additional_special_tokens), "<extra_id_0>")
  tok = with_settings '{"tokenizer_class": "PegasusTokenizer", "offset": 5}'
  expect_equal(list(tok.additional_special_tokens), "<mask_1>,<unk_2>,<unk_3>,<unk_4>")
  expect_error(function() with_settings '{"tokenizer_class": "T5Tokenizer", "extra_ids": -1}' end,
    "extra_ids", "a count")
end)

test("how a token matches that several files describe", function()
  local function token(content, how)
    return ('{"content": "%s", "special": false, "normalized": false, "single_word": false, %s}')
      :format(content, how)
  end
  -- The class lists it as special; tokenizer.json does not.
  local tok, folder = with_settings("{}")
  tok:add_tokens { { content = "<a>", lstrip = true } }
  tok:save_pretrained(folder)
  testing.write(folder .. "/tokenizer_config.json", '{"additional_special_tokens": ["<a>"]}')
  tok = redco.Tokenizer.from_pretrained(folder)
  expect_equal(tok:decode(tok:encode "b  <a>b", { skip_special_tokens = true }), "bb")
  -- The configuration says otherwise than tokenizer.json.
  testing.write(folder .. "/tokenizer_config.json", ('{"added_tokens_decoder": {"768": %s}}')
    :format(token("<a>", '"lstrip": false, "rstrip": true')))
  tok = redco.Tokenizer.from_pretrained(folder)
  expect_equal(list(tok:encode "b <a>  b"), list(tok:encode "b <a>b"))
  assert(#tok:encode "b  <a>b" > 3)
  -- Qwen's class describes what is named by its text only.
  testing.write(folder .. "/tokenizer_config.json",
    '{"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<a>", "added_tokens_decoder": {}}')
  assert(#redco.Tokenizer.from_pretrained(folder):encode "b  <a>b" > 3)
  -- RoBERTa's mask is found in the text as it is given, BART's in the normalized text.
  for class, is_cut in pairs { RobertaTokenizer = true, BartTokenizer = false } do
    local file = testing.read(cases .. "gpt2/tokenizer.json"):gsub('"normalizer": null',
      '"normalizer": {"type": "Replace", "pattern": {"String": "<"}, "content": "("}')
    tok = with_settings(('{"tokenizer_class": "%s"}'):format(class), { ["tokenizer.json"] = file })
    expect_equal(#tok:encode("<mask>", { add_special_tokens = false }), 1)
    expect_equal(#tok:encode("(mask>", { add_special_tokens = false }) > 1, is_cut)
  end
end)

local chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
  .. "{% endfor %}"

test("a chat format on a base model: new tokens, rows, a template, a folder", function()
  local tok = redco.Tokenizer.from_pretrained(cases .. "gpt2")
  local plain = list(tok:encode "a red heart")
  expect_equal(tok:add_special_tokens { eos_token = "<|im_end|>", pad_token = "<|endoftext|>",
    additional_special_tokens = { "<|im_start|>" } }, 3)  -- one of them is no longer normalized
  expect_equal(tok:add_tokens { "zq", { content = "tool", single_word = true, lstrip = true } }, 2)
  expect_equal(tok:add_tokens "zq", 0)
  tok.chat_template = chatml
  local function check(t)
    expect_equal(#t, 772)
    expect_equal(t.vocab_size, 768)
    expect_equal(t.eos_token_id, 768)
    expect_equal(t.pad_token_id, 767)
    expect_equal(list(t:convert_tokens_to_ids { "<|im_start|>", "zq", "tool" }), "769,770,771")
    expect_equal(list(t:encode "a red heart"), plain)
    expect_equal(list(t:encode "zq  tool"), "770,771")
    expect_equal(t:encode("tools")[1] ~= 771, true)
    local chat = { { role = "user", content = "he" } }
    local ids = t:apply_chat_template(chat)
    expect_equal(ids[1], 769)
    expect_equal(ids[#ids - 1], 768)
    expect_equal(t:decode(ids, { skip_special_tokens = true }), "user\nhe\n")
  end
  check(tok)
  local folder = new_folder()
  tok:save_pretrained(folder)
  check(redco.Tokenizer.from_pretrained(folder))

  local model = redco.models.from_pretrained(cases .. "gpt2")
  local inputs = { input_ids = torch.tensor { tok:encode "a red heart" } }
  local before = model(model.params, inputs)
  expect_equal(model.resize_token_embeddings(#tok), model.params)
  expect_equal(model.config.vocab_size, 772)
  local after = model(model.params, inputs)
  expect_equal(list(after.shape), "1,5,772")
  expect_close(after:narrow(2, 0, 768), before, 0, 0)
  local row = model.params["transformer.wte.weight"]
  expect_close(row[770], row:narrow(0, 0, 768):mean(0), 0, 5e-4)
  model.save_pretrained(folder)
  local again = redco.models.from_pretrained(folder)
  expect_close(again(again.params, inputs), after, 0, 0)
end)

test("tokens are saved beside every kind of vocabulary", function()
  for name, file in pairs { llama = "tokenizer.model", bert = "vocab.txt",
    t5_relu_tied = "spiece.model", bart = "tokenizer.json" } do
    local folder, saved = new_folder(), new_folder()
    for _, each in ipairs { file, "tokenizer_config.json", "special_tokens_map.json" } do
      assert(os.execute(("cp %s%s/%s %s"):format(cases, name, each, folder)) == 0)
    end
    local tok = redco.Tokenizer.from_pretrained(folder)
    local size = #tok
    expect_equal(tok:add_tokens({ "<|new|>", "NEW" }, { special_tokens = true }), 2)
    tok:save_pretrained(saved)
    local again = redco.Tokenizer.from_pretrained(saved)
    expect_equal(#again, size + 2)
    expect_equal(again:convert_tokens_to_ids "NEW", size + 1)
    local text = "The heart<|new|> is NEW, or <unk> new."
    expect_equal(list(again:encode(text)), list(tok:encode(text)))
    for _, role in ipairs { "bos", "eos", "unk", "sep", "pad", "cls", "mask" } do
      expect_equal(again[role .. "_token_id"], tok[role .. "_token_id"])
    end
    expect_equal(again.padding_side, tok.padding_side)
  end
end)

test("a tokenizer that was not changed is saved byte for byte", function()
  local folder = new_folder()
  local tok = redco.Tokenizer.from_pretrained(cases .. "llama")
  tok.padding_side, tok.eos_token = "right", tok.eos_token
  tok:save_pretrained(folder)
  for _, name in ipairs { "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json" } do
    expect_equal(testing.read(folder .. "/" .. name), testing.read(cases .. "llama/" .. name))
  end
end)

test("rows of untied heads and their biases, padded to a multiple, and fewer", function()
  local bias = { gptj = "lm_head.bias", bart = "final_logits_bias" }
  for _, name in ipairs { "llama", "gptj", "bart", "bert", "t5_gated_untied" } do
    do
      local model = redco.models.from_pretrained(cases .. name)
      local n, old = model.config.vocab_size, {}
      for key, tensor in pairs(model.params) do old[key] = tensor end
      model.resize_token_embeddings(n + 3, { pad_to_multiple_of = 64,
        generator = redco.Rng(1) })
      local larger = math.ceil((n + 3) / 64) * 64
      expect_equal(model.config.vocab_size, larger)
      local n_changed = 0
      for key, tensor in pairs(model.params) do
        if old[key] ~= tensor then
          n_changed = n_changed + 1
          local dim = key == "final_logits_bias" and 1 or 0
          expect_equal(tensor:size(dim), larger)
          expect_close(tensor:narrow(dim, 0, n), old[key], 0, 0)
          local added = tensor:narrow(dim, n, larger - n)
          local mean = old[key]:mean(dim, true):expand(added.shape)
          local is_zero = name == "bart" or name == "bert"
          if tensor:dim() == 2 and dim == 0 or not is_zero then
            expect_close(added, mean, 0, 5e-4)
          else
            expect_equal(added:abs():max():item(), 0)
          end
        end
      end
      assert(n_changed >= (bias[name] and 2 or 1), name)
      if name ~= "bart" then
        model.resize_token_embeddings(n)
        for key, tensor in pairs(model.params) do expect_close(tensor, old[key], 0, 0) end
      end
    end
  end
end)

test("rows as in a new model", function()
  local function embeddings(seed)
    local model = redco.models.from_pretrained(cases .. "llama")
    model.resize_token_embeddings(1704, { mean_resizing = false, generator = redco.Rng(seed) })
    return model.params["model.embed_tokens.weight"]:narrow(0, 704, 1000)
  end
  local rows = embeddings(1)
  assert(math.abs(rows:std():item() - 0.02) < 1e-3)
  expect_close(embeddings(1), rows, 0, 0)
  assert(not torch.equal(embeddings(2), rows))
end)

test("errors", function()
  local tok = redco.Tokenizer.from_pretrained(cases .. "gpt2")
  expect_error(function() tok:add_tokens(3) end, "new_tokens: expected a string or a list")
  expect_error(function() tok:add_tokens { 3 } end, "entry 1: expected a string, or a table")
  expect_error(function() tok:add_tokens { { content = "a", strip = true } } end, "strip")
  expect_error(function() tok:add_tokens { "a\255" } end, "not UTF-8")
  expect_error(function() tok:add_special_tokens { padding = "a" } end, "padding", "pad_token")
  expect_error(function() tok.pad_token = "<|none|>" end, "add_special_tokens")
  local model = redco.models.from_pretrained(cases .. "gpt2")
  expect_error(function() model.resize_token_embeddings(0) end, "new_num_tokens is 0")
  expect_error(function() model.resize_token_embeddings "9" end, "whole number")
  expect_error(function() model.resize_token_embeddings(9, { pad = 8 }) end, "pad")
  expect_equal(model.resize_token_embeddings(), model.params)
  local lora = redco.models.from_pretrained(cases .. "llama")
  local vit = redco.models.from_pretrained(cases .. "vit")
  expect_error(function() vit.resize_token_embeddings(9) end, "no vocabulary")
  expect_error(function() lora.resize_token_embeddings(9, { params = {} }) end,
    "the parameters have no")
end)

testing.finish()
