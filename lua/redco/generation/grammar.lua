--- Logits processors that allow only tokens of a grammar.
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local known = setmetatable({}, { __mode = "k" })  -- by tokenizer

--- Returns the bytes of a tokenizer's tokens. They are read again if tokens were added.
local function texts_of(tokenizer)
  local found = known[tokenizer]
  if not found or found.size ~= #tokenizer then
    found = { size = #tokenizer, texts = native.token_texts(tokenizer) }
    known[tokenizer] = found
  end
  return found.texts
end

--- Returns a logits processor for a text that consists of `parts`, as token_grammar takes them.
--- Errors begin with `where`.
local function new_processor(where, tokenizer, parts)
  local grammar = native.token_grammar(where, texts_of(tokenizer), parts)
  return function(ids, scores, o)
    if #o.eos_token_id == 0 then
      fail("%s: a text that is complete needs a token that ends it: give eos_token_id", where)
    end
    local is_allowed, vocab_size = {}, scores:size(1)
    for i, row in ipairs(ids:narrow(1, o.prompt_length, ids:size(1) - o.prompt_length):tolist()) do
      local mask, has_any, is_complete = grammar:after(row, vocab_size)
      -- A row that has ended has other tokens.
      mask = mask or torch.ones({ vocab_size }, { dtype = "bool" })
      if is_complete or not has_any then
        for _, token in ipairs(o.eos_token_id) do
          if token < vocab_size then mask[token]:fill_(true) end
        end
      end
      is_allowed[i] = mask
    end
    local is_refused = torch.stack(is_allowed):logical_not():to(scores.device)
    return scores:masked_fill(is_refused, -math.huge)
  end
end

local json_logits_processor = registry.define("redco.models.json_logits_processor", [[
json_logits_processor(tokenizer: Tokenizer, schema: table or string = nil) -> function
Returns a `logits_processor` for `Model.generate` and `GenerationBatch:add` with which a model writes
JSON that fits a JSON schema; without one, any JSON object. The text is complete only if it ends
with an end token: leave room for it.
  schema: a JSON text or a table. Of a plain table, properties come sorted; in a JSON text and a
    `redco.ordered_table` they keep their order. Supported are type, enum, const, allOf, anyOf,
    oneOf whose options exclude each other, $ref within the schema, and the keywords of objects (but
    dependencies), lists (but uniqueItems and contains), texts (pattern, format, lengths) and
    numbers (bounds, multipleOf). Other keywords raise an error that names their place. Properties
    that the schema does not name are written only if it has additionalProperties or
    patternProperties]],
function(tokenizer, schema)
  local where = "models.json_logits_processor"
  if type(tokenizer) ~= "userdata" then
    fail("%s: expected a Tokenizer, got %s", where, native.describe(tokenizer))
  end
  if type(schema) == "string" then schema = native.json_decode(where .. ": schema", schema) end
  return new_processor(where .. ": schema", tokenizer,
    { schema == nil and { json = "object" } or { schema = schema } })
end)

return { json_logits_processor = json_logits_processor, new_processor = new_processor,
  texts_of = texts_of }
