--- Texts of models of sound that write a token or a blank for each frame (CTC): characters, as of
--- transformers' Wav2Vec2CTCTokenizer, or the tokens of a tokenizer.json.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local hub = require "redco.hub"
local native = require "redco.native"
local readers = require "redco.data.readers"
local registry = require "redco.registry"
local torch = require "redco.torch"

local defaults = { pad_token = "<pad>", unk_token = "<unk>", word_delimiter_token = "|",
  replace_word_delimiter_char = " ", do_lower_case = false }

-- A character of UTF-8.
local character = "[%z\1-\127\194-\244][\128-\191]*"

-- Returns the setting of a token, which files also write as { content = ... }.
local function token_of(value)
  return type(value) == "table" and value.content or value
end

local function read_settings(folder)
  local o = {}
  for _, name in ipairs { "special_tokens_map.json", "tokenizer_config.json" } do
    local path = folder .. "/" .. name
    if native.file_exists(path) then
      for key, value in pairs(readers.json(path)) do o[key] = token_of(value) end
    end
  end
  return o, readers.json(folder .. "/vocab.json"), folder .. "/vocab.json"
end

-- Some files have a vocabulary for each language: returns that of `language`.
local function of_language(where, vocab, language)
  local _, first = next(vocab)
  if type(first) ~= "table" then return vocab end
  return vocab[language] or fail("%s: it has no language '%s'", where, tostring(language))
end

local function inverse(where, vocab)
  local tokens = {}
  for token, id in pairs(vocab) do
    if type(id) ~= "number" or id < 0 or id % 1 ~= 0 then
      fail("%s: the number of '%s' is %s, expected a whole number", where, token, tostring(id))
    end
    tokens[id] = token
  end
  return tokens
end

local function trimmed(text) return (text:gsub("^%s+", ""):gsub("%s+$", "")) end

-- log(exp(a) + exp(b))
local function added(a, b)
  if a < b then a, b = b, a end
  return b == -math.huge and a or a + math.log(1 + math.exp(b - a))
end

local function score(beam) return added(beam.blank, beam.other) end

-- Returns the beam of these ids in `beams`, a new one if it is not there.
local function beam_of(beams, ids, key)
  if not beams[key] then
    beams[key] = { ids = ids, key = key, blank = -math.huge, other = -math.huge }
  end
  return beams[key]
end

local function longer(ids, id)
  local result = { unpack(ids) }
  result[#result + 1] = id
  return result
end

-- Extends a beam by one frame and adds the results to `after`. A repeated token counts as a new one
-- only after a blank.
local function extend(beam, logprobs, blank, after)
  local same = beam_of(after, beam.ids, beam.key)
  local total, last = score(beam), beam.ids[#beam.ids]
  for id = 0, #logprobs - 1 do
    local p = logprobs[id + 1]
    if id == blank then
      same.blank = added(same.blank, total + p)
    else
      if id == last then same.other = added(same.other, beam.other + p) end
      local before = id == last and beam.blank or total
      if before + p > -math.huge then
        local new = beam_of(after, longer(beam.ids, id), beam.key .. " " .. id)
        new.other = added(new.other, before + p)
      end
    end
  end
end

local function best(beams, n)
  local list = {}
  for _, beam in pairs(beams) do list[#list + 1] = beam end
  table.sort(list, function(a, b)
    local x, y = score(a), score(b)
    if x ~= y then return x > y end
    return a.key < b.key
  end)
  for i = #list, n + 1, -1 do list[i] = nil end
  return list
end

local beam_options = arguments("ctc_tokenizer.beam_search", { num_beams = 10 })

-- Returns encode(text), text_of(ids without blanks) and the blank for a vocabulary of characters.
local function of_characters(where, given, vocab)
  if type(vocab) ~= "table" or next(vocab) == nil then
    fail("%s: vocab is %s, expected ids by character", where, native.describe(vocab))
  end
  vocab = of_language(where, vocab, given.target_lang)
  local tokens, o = inverse(where, vocab), {}
  for key, default in pairs(defaults) do
    o[key] = given[key]
    if o[key] == nil then o[key] = default end
  end
  local blank = vocab[o.pad_token]
    or fail("%s: there is no '%s', the padding token", where, o.pad_token)

  local function encode(text)
    local ids = {}
    if o.do_lower_case then text = native.upper_case(text) end
    for letter in text:gmatch(character) do
      local id = vocab[letter == " " and o.word_delimiter_token or letter] or vocab[o.unk_token]
      ids[#ids + 1] = id or fail("ctc_tokenizer.encode: '%s' is not in the vocabulary, which has "
        .. "no '%s'", letter, o.unk_token)
    end
    return ids
  end

  local function text_of(ids)
    local words = {}
    for i, id in ipairs(ids) do
      local token = tokens[id] or o.unk_token
      words[i] = token == o.word_delimiter_token and o.replace_word_delimiter_char or token
    end
    local text = trimmed(table.concat(words))
    return o.do_lower_case and native.lower_case(text) or text
  end

  return encode, text_of, blank
end

-- The same for a folder with a tokenizer.json.
local function of_tokens(folder)
  local tokens = native.read_tokenizer(folder)
  local blank = tokens.pad_token_id
    or fail("%s: the tokenizer has no pad_token, which is the blank", folder)
  return function(text) return tokens:encode(text, { add_special_tokens = false }) end,
    function(ids) return tokens:decode(ids) end, blank
end

local function open(config)
  if type(config) == "table" then return of_characters("ctc_tokenizer", config, config.vocab) end
  if type(config) ~= "string" then
    fail("ctc_tokenizer: expected a folder or a table, got %s", native.describe(config))
  end
  local folder = hub.path("data.ctc_tokenizer", config, "tokenizer")
  if native.file_exists(folder .. "/tokenizer.json") then return of_tokens(folder) end
  local given, vocab, where = read_settings(folder)
  return of_characters(where, given, vocab)
end

return registry.define("redco.data.ctc_tokenizer", [[
ctc_tokenizer(config: string or table) -> table
Returns the texts of a model of sound that writes a token or a blank for each frame: characters, as
transformers' Wav2Vec2CTCTokenizer, or the tokens of ParakeetTokenizer. `config` is a folder with
`tokenizer.json`, else `vocab.json`, or a table {vocab, pad_token = "<pad>", unk_token = "<unk>",
word_delimiter_token = "|", do_lower_case = false}, where vocab has ids by character. The result has

`encode(text)`: the list of ids, for the labels;
`decode(ids)`: the text of a list or a tensor of ids [frames], such as `logits:argmax(-1)`: repeated
ids are one, and the padding token separates and is removed;
`beam_search(logits [frames, tokens], options)`: the `num_beams` (10) most probable texts, the best
first, and the logarithms of their probabilities: Hannun et al., 2014, arXiv 1408.2873;
`pad_token_id`, the model's blank.]],
function(config)
  local encode, text_of, blank = open(config)
  local tokenizer = { pad_token_id = blank }

  function tokenizer.encode(text)
    if type(text) ~= "string" then
      fail("ctc_tokenizer.encode: expected a text, got %s", native.describe(text))
    end
    return encode(text)
  end

  function tokenizer.decode(ids)
    if torch.is_tensor(ids) then ids = ids:tolist() end
    if type(ids) ~= "table" or type(ids[1]) == "table" then
      fail("ctc_tokenizer.decode: expected ids of one text [frames], got %s", native.describe(ids))
    end
    local kept, before = {}, nil
    for _, id in ipairs(ids) do
      if id ~= before and id ~= blank then kept[#kept + 1] = id end
      before = id
    end
    return text_of(kept)
  end

  function tokenizer.beam_search(logits, options)
    local n = beam_options(options).num_beams
    if not torch.is_tensor(logits) or logits:dim() ~= 2 then
      fail("ctc_tokenizer.beam_search: expected logits [frames, tokens], got %s",
        native.describe(logits))
    end
    local beams = { { ids = {}, key = "", blank = 0, other = -math.huge } }
    for _, logprobs in ipairs(logits:double():log_softmax(-1):tolist()) do
      local after = {}
      for _, beam in ipairs(beams) do extend(beam, logprobs, blank, after) end
      beams = best(after, n)
    end
    local texts, scores = {}, {}
    for i, beam in ipairs(beams) do texts[i], scores[i] = text_of(beam.ids), score(beam) end
    return texts, scores
  end

  return tokenizer
end)
