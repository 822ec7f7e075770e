-- Text of a grammar: JSON of a schema, logits processors of the caller, and OpenAI's penalties.
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"
local texts_of = require "redco.generation.grammar".texts_of

local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local torch = redco.torch
local source = assert(os.getenv "REDCO_SOURCE")

local function open(name)
  local dir = source .. "/tests/cases/" .. name
  local model = redco.models.from_pretrained(dir)
  model.generation_config = {}
  return model, redco.Tokenizer.from_pretrained(dir)
end
local gpt2, gpt2_tokenizer = open "gpt2"
local llama, llama_tokenizer = open "llama"

-- Whether a text, complete or not, fits parts: "complete", "begun" or nil.
local function fit(parts, text, tokenizer)
  tokenizer = tokenizer or gpt2_tokenizer
  local grammar = native.token_grammar("test", texts_of(tokenizer), parts)
  local ids = tokenizer:encode(text, { add_special_tokens = false })
  local mask, _, is_complete = grammar:after(ids, #tokenizer)
  return is_complete and "complete" or mask and "begun" or nil
end

local function fit_json(schema, text)
  return fit({ { schema = native.json_decode("schema", schema) } }, text)
end

test("any JSON object", function()
  local function fits(text) return fit({ { json = "object" } }, text) end
  for _, text in ipairs { "{}", "{ }", ' {"a": 1}',
    '{"a":[1,-2.5e+3,{"b":null}],"c":"x\\n\\u00e9"}', '{\n  "a": [\n    true,\n    false\n  ]\n}',
    '{"é": "日本 \\ud83d\\ude00"}', '{"":""}', "{\n\n}" } do
    expect_equal(fits(text), "complete")
    for n = 1, #text - 1 do  -- each beginning, by bytes
      local piece = text:sub(1, n)
      if #piece:gsub("[\128-\255]", "") == #piece then expect_equal(fits(piece), "begun") end
    end
  end
  for _, text in ipairs { "[]", "1", "{} ", "{}{", '{"a"}', "{a", '{"a":01', '{"a":1.}', '{"a":+1',
    "{'a'", '{"a":1,}', '{"a":tru}', '{"a":"\n', '{"a":"\\x', '{"a":"\\ud83d"', "   {", "\n\n\n{",
    '{"a":[1,]', '{"a":nul}', '{"a":12345678901234567', "{,", '{"a":.5' } do
    expect_equal(fits(text), nil)
  end
end)

test("keywords of a schema", function()
  -- A schema, texts that fit, and texts that do not.
  local cases = {
    { '{"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, '
      .. '"required": ["b", "a"], "additionalProperties": false, "title": "T"}',
      { '{"b": 1, "a": ""}', '{"b":-1,"a":"x"}' },
      { "{}", '{"b":1}', '{"a":"","b":1}', '{"b":1.5', '{"b":1,"a":"","c"', '{"c"' } },
    { '{"properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"const": 3}}, '
      .. '"required": ["b"]}',
      { '{"b":true}', '{"a":null,"b":false}', '{"b":true,"c":3}', '{"a":null,"b":true,"c":3}' },
      { "{}", '{"a":null}', '{"c"', '{"b":true,"a"', '{,"b"', '{"b":true,}' } },
    { '{"properties": {"a": {}, "b": true}}', { "{}", '{"a":[{}]}', '{"b":"x"}', '{"a":1,"b":2}' },
      { '{"b":1,"a"' } },
    { '{"type": "object", "additionalProperties": {"type": "integer"}}',
      { "{}", '{"x":1,"y":2}' }, { '{"x":"' } },
    { '{"type": "object", "additionalProperties": false}', { "{}" }, { '{"' } },
    { '{"type": "object", "properties": {}}', { "{}" }, { '{"' } },
    { '{"type": "object", "properties": {}, "additionalProperties": true}', { '{"a":1}' }, {} },
    { '{"type": "object"}', { "{}", '{"a":[1]}' }, {} },
    { '{"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3}',
      { "[1]", "[1, 2.5]", "[1,2,3]" }, { "[]", "[1,2,3,", '["' } },
    { '{"items": {"enum": ["x", "xy", 2, null]}}', { "[]", '["x","xy",2,null]' }, { '["y' } },
    { '{"type": "array", "maxItems": 0}', { "[]", "[ ]" }, { "[1" } },
    { '{"type": "string", "minLength": 1, "maxLength": 2}', { '"a"', '"日b"', '"\\n\\u0041"' },
      { '""', '"abc' } },
    { '{"type": ["string", "null"], "maxLength": 1}', { '"a"', "null", '""' }, { '"ab', "1" } },
    { '{"enum": [1, "1", 1.5, true, [1, {"a": "b"}], {}]}',
      { "1", '"1"', "1.5", "true", '[1, {"a": "b"}]', "{}", "[ ]" and "[1,{\"a\":\"b\"}]" },
      { "2", "[1]", "11", "f" } },
    { '{"enum": ["a", 1], "type": "integer"}', { "1" }, { '"' } },
    { '{"const": "a\\"b"}', { '"a\\"b"' }, { '"a"' } },
    { '{"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}',
      { "3", "[3]" }, { '"', "[[" } },
    { '{"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"const": 1}}}', { "1" }, { "2" } },
    { '{"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": '
      .. '{"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}, '
      .. '"required": ["v", "next"]}}}',
      { '{"v":1,"next":null}', '{"v":1,"next":{"v":2,"next":{"v":3,"next":null}}}' },
      { '{"v":1}', '{"v":1,"next":2' } },
    { '{"type": "object", "properties": {"kids": {"items": {"$ref": "#"}}}}',
      { "{}", '{"kids":[{},{"kids":[]}]}' }, { '{"kids":[1' } },
    { '{"definitions": {"a/b~": {"const": 5}}, "$ref": "#/definitions/a~1b~0"}', { "5" }, { "6" } },
    { "{}", { "1", "[]", '"x"', "null", "{}" }, { "x" } },
    { "true", { "1" }, { "x" } },
    -- Numbers.
    { '{"type": "integer", "minimum": -12, "exclusiveMaximum": 130}',
      { "-12", "-1", "0", "7", "99", "129" }, { "-13", "130", "1290", "-120", "1.0", "01" } },
    { '{"type": "integer", "multipleOf": 7, "minimum": 10}', { "14", "7000000000000000" },
      { "7", "0", "15", "-14" } },
    { '{"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}',
      { "0", "12", "-24" }, { "4", "6", "18" } },
    { '{"type": "number", "minimum": 0.25, "exclusiveMaximum": 1.5}',
      { "0.25", "0.250", "1", "1.49999", "0.9" }, { "0.2", "0", "1.5", "1.50", "0.24999", "2" } },
    { '{"type": "number", "exclusiveMinimum": -1, "maximum": 0}', { "0", "-0.5", "0.0" },
      { "-1", "-1.0", "0.1" } },
    { '{"type": "number", "multipleOf": 0.05, "minimum": 0}', { "0.05", "3", "2.1" },
      { "0.01", "0.051" } },
    { '{"minimum": 3}', { "3", "4.5" }, { "2", '"' } },
    { '{"type": "integer", "format": "int32"}', { "2147483647", "-2147483648" },
      { "2147483648" } },
    -- Texts.
    { [[{"type": "string", "pattern": "^[a-c]{2,3}(-\\d+)?$"}]], { '"ab"', '"abc-07"' },
      { '"a"', '"abcd"', '"ab-"' } },
    { '{"type": "string", "pattern": "b"}', { '"abc"', '"b"' }, { '"ac"', '""' } },
    { '{"type": "string", "pattern": "^a|b$"}', { '"ac"', '"cb"' }, { '"ba"' } },
    { '{"type": "string", "pattern": "^(?=.*[0-9])(?!.*x).{3,}$", "maxLength": 4}',
      { '"ab1"', '"1日b😀"' }, { '"abc"', '"x12"', '"ab123"' } },
    { [[{"type": "string", "pattern": "^[\\p{Lu}\"\\\\é\\n]$"}]], { '"Ä"', [["\""]], [["\\"]],
      '"é"', [["\n"]] }, { '"a"', '"\\u00c4"' } },
    { '{"type": "string", "format": "date"}', { '"2024-02-29"' }, { '"2023-02-29"',
      '"2024-13-01"' } },
    { '{"type": "string", "format": "ipv6"}', { '"::1"', '"1:2:3:4:5:6:7::"' },
      { '"1:2"', '"1::2::3"' } },
    { '{"type": "string", "format": "hostname"}', { '"a"', '"ab"', '"a-b.x"', '"ab-c"', '"a--b"',
      '"abc-def"' }, { '"a-"', '"-a"', '"xn--a"', '"b.ab--cd"' } },
    { '{"enum": ["a1", "b", "c22", 5], "pattern": "[0-9]", "maxLength": 2}', { '"a1"', "5" },
      { '"b"', '"c' } },
    -- Lists.
    { '{"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "items": '
      .. '{"type": "boolean"}, "minItems": 1, "maxItems": 3}',
      { "[1]", "[1,null]", "[1, null, true]" },
      { "[]", "[null", "[1,true", "[1,null,true,true]" } },
    { '{"items": [{"const": 1}], "additionalItems": false}', { "[]", "[1]" }, { "[1,1]", "[2" } },
    -- Objects.
    { '{"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}}',
      { "{}", '{"a":null}', '{"a":null,"b":1,"aa":2}', '{"b":1}' }, { '{"a":1', '{"b":null' } },
    { '{"properties": {"a": {"type": "integer"}}, "patternProperties": {"^x": {"const": 1}, '
      .. '"y$": {"type": "integer"}}}', { '{"a":2,"x":1,"zy":5,"xy":1}' },
      { '{"x":2', '{"xy":2', '{"b"' } },
    { '{"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 1, '
      .. '"maxProperties": 2, "additionalProperties": {"type": "null"}}',
      { '{"a":null}', '{"b":null,"a":null}' }, { "{}", '{"c"', '{"a":null,"b":null,' } },
    { '{"properties": {"a": true, "b": true, "c": true}, "required": ["b"], '
      .. '"minProperties": 2, "maxProperties": 2}', { '{"a":1,"b":2}', '{"b":1,"c":2}' },
      { '{"b":1}', '{"a":1,"b":1,"c":1}' } },
    { '{"properties": {"a": false, "b": {"type": "null"}}}', { "{}", '{"b":null}' }, { '{"a"' } },
    { '{"type": "object", "required": ["n"]}', { '{"n":[]}' }, { "{}", '{"m"' } },
    -- Several schemas for one value.
    { '{"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"type": "string", '
      .. '"maxLength": 3}}}', { '"ab"', '"abc"' }, { '"a"', '"abcd"' } },
    { '{"allOf": [{"properties": {"a": {"minimum": 3}}}, {"properties": {"a": {"type": '
      .. '"integer"}, "b": {"type": "null"}}}], "type": "object"}',
      { '{"a":3}', '{"a":4,"b":null}' }, { '{"a":2', '{"a":3.5' } },
    { '{"anyOf": [{"type": "null"}, {"type": "number", "minimum": 5}, {"type": "string"}], '
      .. '"type": ["integer", "string"], "maxLength": 1}',
      { "5", '"a"' }, { "null", "4", '"ab"' } },
    { '{"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, '
      .. '"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}',
      { '{"a":null}', '{"b":null}', '{"a":null,"b":null}' }, { "{}" } },
    { '{"oneOf": [{"type": "object", "properties": {"k": {"const": 1}, "v": {"type": "null"}}, '
      .. '"required": ["k"]}, {"type": "object", "required": ["k"], "properties": '
      .. '{"k": {"const": 2}, "w": {"type": "null"}}}, '
      .. '{"type": "integer", "maximum": 0}, {"type": "integer", "minimum": 1}]}',
      { '{"k":1,"v":null}', '{"k":2,"w":null}', "0", "1" }, { '{"k":1,"w"', '{"k":3' } },
    { '{"oneOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}, '
      .. '{"properties": {"b": {"type": "null"}}, "required": ["b"]}]}',
      { '{"a":null}', '{"b":null}' }, { "{}", '{"a":null,"b"' } },
    { '{"const": {"a": [1, null]}, "required": ["a"]}', { '{"a":[1,null]}' }, { '{"a":[1]' } },
    { '{"$ref": "#/anyOf/1", "anyOf": [{"const": 1}, {"const": 2}]}', { "2" }, { "1" } },
    { '{"discriminator": {"propertyName": "k"}, "const": 1}', { "1" }, {} },
  }
  for _, case in ipairs(cases) do
    local schema, good, bad = unpack(case)
    for _, text in ipairs(good) do
      if fit_json(schema, text) ~= "complete" then error(schema .. " refuses " .. text) end
    end
    for _, text in ipairs(bad) do
      if fit_json(schema, text) == "complete" then error(schema .. " takes " .. text) end
      if not text:find "[%]}%dl\"]$" and fit_json(schema, text) then
        error(schema .. " lets begin " .. text)
      end
    end
  end
end)

test("what a schema cannot say is an error that names the place", function()
  local function expect(schema, ...)
    local parts = { { schema = native.json_decode("schema", schema) } }
    local all = { ... }
    expect_error(function()
      native.token_grammar("the schema", texts_of(gpt2_tokenizer), parts)
    end, unpack(all))
  end
  expect('{"type": "string", "contentSchema": {}}', "the schema: #: the keyword 'contentSchema'")
  expect('{"properties": {"a": {"not": {}}}}', "#/properties/a: the keyword 'not' is not supported")
  expect('{"type": "integer", "items": {}}', "'items' has no effect", "type array")
  expect('{"uniqueItems": true}', "'uniqueItems' is supported only with the value false")
  expect('{"oneOf": [{"type": "number"}, {"type": "integer"}]}', "#/oneOf: another option",
    "#/oneOf/1", "use anyOf")
  expect('{"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}', "another option")
  expect('{"pattern": "(a"}', "pattern '(a': a ) is missing")
  for pattern, message in pairs { ["\\\\b"] = "\\b is not supported", ["a**"] = "nothing to repeat",
    ["(a)\\\\1"] = "\\1 is not", ["a(?=b)"] = "only after the ^", ["(?<=a)b"] = "only after the ^",
    ["[b-a]"] = "ends before it begins", ["a{3,2}"] = "less than", ["\\\\p{Greek}"] = "category",
    ["^(?=a)b|c"] = "beside |", ["[^\\\\u00e9-"] = "too early" } do
    expect(('{"pattern": "%s"}'):format(pattern), "the schema: #: pattern", message)
  end
  expect('{"pattern": "^(?:[a-c]*b.{20})$"}', "pattern", "too large")
  expect('{"format": "colour"}', "the format 'colour' is not supported")
  expect('{"multipleOf": 0}', "greater than 0")
  expect('{"multipleOf": 123457}', "multipleOf: only numbers")
  expect('{"minimum": "3"}', "minimum: expected a number")
  expect('{"minimum": 3, "maximum": 2}', "maximum is less than minimum")
  expect('{"properties": {"a": {"exclusiveMinimum": 3, "exclusiveMaximum": 3}}, '
    .. '"required": ["a"]}', "#/properties/a: no finite text fits")
  expect('{"additionalProperties": {}, "minProperties": 3}', "list them in `required`")
  expect('{"$ref": "#/$defs/a"}', "'#/$defs/a' is not in this schema")
  expect('{"$ref": "http://x/y"}', "$ref: expected a place in this schema")
  expect('{"type": "text"}', "type: expected object, array")
  expect('{"type": []}', "empty list")
  expect('{"enum": []}', "enum: expected a list")
  expect('{"enum": ["a"], "type": "integer"}', "no finite text")
  expect('{"anyOf": []}', "#/anyOf")
  expect('{"anyOf": [3]}', "#/anyOf/0: expected a schema")
  expect('{"properties": 3}', "properties: expected an object")
  expect('{"properties": {"a": {}}, "required": ["b"]}', "'b' is not in properties")
  expect('{"minItems": 3, "maxItems": 2}', "maxItems is less")
  expect('{"type": "string", "maxLength": 1000000}', "from 0 to 10000")
  expect('{"properties": {"a": false}, "required": ["a"]}', "#/properties/a: no finite text fits")
  expect("3", "expected a schema")
  -- No finite text fits these.
  expect('{"$ref": "#"}', "refers to itself without end")
  expect('{"anyOf": [{"$ref": "#"}, {"type": "null"}]}', "refers to itself without end")
  expect('{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}', "no finite text")
  -- Large and deep ones.
  expect('{"items": ' .. ("{\"items\": "):rep(400) .. "{}" .. ("}"):rep(401), "nested")
  local chain = {}
  for i = 1, 2000 do chain[i] = ('"a%d": {"items": {"$ref": "#/$defs/a%d"}}'):format(i, i + 1) end
  expect('{"$ref": "#/$defs/a1", "$defs": {' .. table.concat(chain, ",") .. "}}", "levels")
  local long = {}
  for i = 1, 40 do long[i] = ('"p%d": {"type": "string", "maxLength": 10000}'):format(i) end
  expect('{"properties": {' .. table.concat(long, ",") .. "}}", "too large")
end)

test("choices that multiply with each level end in a limit, not in all memory", function()
  local options = {}
  for i = 1, 8 do
    options[i] = ('{"type": "array", "maxItems": %d, "items": {"$ref": "#"}}'):format(i)
  end
  local schema = '{"anyOf": [' .. table.concat(options, ",") .. ', {"type": "null"}]}'
  expect_equal(fit_json(schema, "[[null]]"), "complete")
  expect_equal(fit_json(schema, ("["):rep(60)), nil)
end)

test("an object with many properties that may be left out", function()
  local names = {}
  for i = 1, 1200 do names[i] = ('"p%d": {"type": "integer"}'):format(i) end
  local schema = '{"properties": {' .. table.concat(names, ",") .. "}}"
  expect_equal(fit_json(schema, '{ "p7": 1, "p12": 2, "p1200": 3}'), "complete")
  expect_equal(fit_json(schema, '{"p12": 1, "p7"'), nil)
end)

test("literals, special tokens and alternatives", function()
  local tokenizer = redco.Tokenizer.from_pretrained(source .. "/tests/cases/gpt2")
  tokenizer:add_special_tokens { additional_special_tokens = { "<|call|>" } }
  local parts = { "<|call|>", "f(", { any_of = { { "x" }, { { schema = { type = "integer" } } } } },
    ")" }
  expect_equal(fit(parts, "<|call|>f(x)", tokenizer), "complete")
  expect_equal(fit(parts, "<|call|>f(-12)", tokenizer), "complete")
  expect_equal(fit(parts, "<|call|>f(y", tokenizer), nil)
  expect_equal(fit(parts, "f(", tokenizer), nil)
end)

local function text_of(tokenizer, tokens)
  return tokenizer:decode(tokens, { skip_special_tokens = true })
end

local schema = '{"type": "object", "properties": {"n": {"type": "string", "maxLength": 2}, '
  .. '"k": {"enum": ["sea", "sky"]}, "t": {"type": "array", "items": {"type": "boolean"}, '
  .. '"maxItems": 1}}, "required": ["n", "k", "t"]}'

-- Forbids tokens with a line end: models without sense use all the blanks that JSON may have.
local function without_lines(tokenizer)
  local texts, tokens = texts_of(tokenizer), {}
  for token = 0, #tokenizer - 1 do
    if texts:bytes(token):find "\n" then tokens[#tokens + 1] = token end
  end
  tokens = torch.tensor(tokens)
  return function(_, scores) return scores:index_fill(1, tokens, -math.huge) end
end

-- Whether a text is JSON of the schema above.
local function fits(text)
  local value = native.json_decode("answer", text)
  local _, n = value.n:gsub("[^\128-\191]", "")
  assert(n <= 2 and (value.k == "sea" or value.k == "sky") and #value.t <= 1, text)
  for _, tag in ipairs(value.t) do assert(type(tag) == "boolean", text) end
  local names = 0
  for _ in pairs(value) do names = names + 1 end
  expect_equal(names, 3)
end

test("models write JSON of a schema: samples, greedy search, beams, and rows of a batch", function()
  for _, each in ipairs { { gpt2, gpt2_tokenizer, 767 }, { llama, llama_tokenizer, 2 } } do
    local model, tokenizer, eos = unpack(each)
    local processor = { redco.models.json_logits_processor(tokenizer, schema),
      without_lines(tokenizer) }
    local prompt = { 5, 6, 7 }
    local function written(options)
      options.logits_processor, options.max_new_tokens, options.eos_token_id = processor, 60, eos
      local ids = model.generate(model.params, { input_ids = torch.tensor { prompt, prompt } },
        options)
      for i, row in ipairs(ids:tolist()) do
        local tokens = {}
        for at = #prompt + 1, #row do
          if row[at] == eos then break end
          tokens[#tokens + 1] = row[at]
        end
        assert(#tokens < 60, i)
        fits(text_of(tokenizer, tokens))
      end
    end
    written {}
    written { num_beams = 3 }
    written { do_sample = true, temperature = 1.5, seed = 3, num_return_sequences = 10 }
    local batch = redco.models.new_batch(model, model.params, { max_rows = 4, max_length = 63 })
    local rows = {}
    batch:add(prompt, { seed = 1, max_new_tokens = 20 })
    for i = 1, 6 do
      rows[i] = batch:add({ 5, 6, 6 + i % 2 }, { seed = i, temperature = 1.2,
        logits_processor = processor, eos_token_id = eos })
    end
    batch:run()
    for _, row in ipairs(rows) do
      expect_equal(row.finish_reason, "stop")
      table.remove(row.tokens)
      fits(text_of(tokenizer, row.tokens))
    end
  end
end)

test("a text without a token that ends it is an error", function()
  expect_error(function()
    gpt2.generate(gpt2.params, { input_ids = torch.tensor { { 5 } } },
      { logits_processor = redco.models.json_logits_processor(gpt2_tokenizer) })
  end, "give eos_token_id")
  expect_error(function() redco.models.json_logits_processor(gpt2_tokenizer, "{") end,
    "json_logits_processor: schema", "JSON")
  expect_error(function() redco.models.json_logits_processor("gpt2") end, "expected a Tokenizer")
  expect_error(function()
    redco.models.json_logits_processor(gpt2_tokenizer, { type = "text" })
  end, "json_logits_processor: schema: #: type: expected")
end)

test("a logits processor sees the tokens, and its scores count", function()
  local prompt, seen = torch.tensor { { 5, 6, 7 } }, {}
  local function forbid(ids, scores, facts)
    seen[#seen + 1] = ids:size(1) - facts.prompt_length
    return scores:index_fill(1, torch.tensor { 9 }, 1e9)
  end
  local function double(_, scores) return scores * 2 end
  local ids = gpt2.generate(gpt2.params, { input_ids = prompt },
    { logits_processor = { double, forbid }, max_new_tokens = 3, pad_token_id = 0 })
  expect_equal(table.concat(ids[0]:tolist(), " "), "5 6 7 9 9 9")
  expect_equal(table.concat(seen, " "), "0 1 2")
  local batch = redco.models.new_batch(gpt2, gpt2.params, { max_length = 20 })
  local row = batch:add({ 5, 6 }, { logits_processor = forbid, max_new_tokens = 2 })
  batch:run()
  expect_equal(table.concat(row.tokens, " "), "9 9")
  local function wrong(value)
    return function()
      gpt2.generate(gpt2.params, { input_ids = prompt }, { logits_processor = value })
    end
  end
  expect_error(wrong(3), "logits_processor is 3, expected a function")
  expect_error(wrong(function() end), "logits_processor returned nil, expected scores [1, 768]")
  expect_error(wrong(function(_, scores) return scores[0] end), "expected scores [1, 768]")
end)

-- Scores that do not depend on the text: what a penalty does is seen by hand.
local function with_scores(list)
  local model = redco.models.from_pretrained(source .. "/tests/cases/gpt2")
  model.generation_config = {}
  local logits = model.logits
  model.logits = function(params, hidden)
    local scores = torch.full_like(logits(params, hidden), -50)
    for token, score in pairs(list) do scores:select(-1, token):fill_(score) end
    return scores
  end
  return model
end

test("penalties of the OpenAI API count the tokens after the prompt", function()
  local model = with_scores { [3] = 4, [4] = 3.2, [5] = 2.9 }
  local prompt = { 3, 3, 3 }
  local function written(options)
    options.max_new_tokens = 5
    local all = { pad_token_id = 0 }
    for name, value in pairs(options) do all[name] = value end
    local ids = model.generate(model.params, { input_ids = torch.tensor { prompt } }, all)[0]
    local batch = redco.models.new_batch(model, model.params, { max_length = 20 })
    options.temperature = 0
    local row = batch:add(prompt, options)
    local other = batch:add({ 5 }, { temperature = 0, max_new_tokens = 5 })
    batch:run()
    expect_equal(table.concat(other.tokens, " "), "3 3 3 3 3")
    local text = table.concat(row.tokens, " ")
    expect_equal(table.concat(ids:narrow(0, 3, 5):tolist(), " "), text)
    return text
  end
  expect_equal(written {}, "3 3 3 3 3")
  expect_equal(written { presence_penalty = 1 }, "3 4 3 3 3")
  expect_equal(written { presence_penalty = 2 }, "3 4 5 3 3")
  expect_equal(written { frequency_penalty = 0.5 }, "3 3 4 3 5")
  expect_equal(written { frequency_penalty = 0.5, presence_penalty = 0.5 }, "3 4 3 5 3")
  expect_equal(written { frequency_penalty = -1 }, "3 3 3 3 3")
  expect_equal(written { sequence_bias = { { { 5 }, 2 } } }, "5 5 5 5 5")
  expect_equal(written { sequence_bias = { { { 5 }, 1.3 }, { { 3 }, -9 } } }, "5 5 5 5 5")
  expect_equal(written { sequence_bias = { { { 3, 4 }, 2 }, { { 5 }, 0.5 } } }, "4 3 4 3 4")
end)

testing.finish()
