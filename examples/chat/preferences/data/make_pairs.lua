-- Writes pairs.jsonl: definitions of The Devil's Dictionary, and what the model says by itself.
local redco = require "redco"

local o = redco.options { model = "", n_pairs = 264, out = "pairs.jsonl", max_new_tokens = 48 }
local here = redco.script_folder()
local path = o.model ~= "" and o.model
  or assert(io.popen("'" .. here .. "../../fetch.sh'"):read "*l", "fetch.sh found no model")
local tokenizer, model = redco.Tokenizer.from_pretrained(path), redco.models.from_pretrained(path)

local entries = {}
for _, entry in redco.data.jsonl(here .. "../../finetune/data/devil.jsonl"):ipairs() do
  local n = #entry.definition
  if n >= 30 and n <= 150 then entries[#entries + 1] = entry end
end

local function quoted(text)
  return '"' .. text:gsub('["\\]', "\\%0"):gsub("\n", "\\n") .. '"'
end

-- Whole sentences, without the first words of a sentence that max_new_tokens has cut.
local function sentences(text)
  return text:match "^(.*[.!?])%s" or text:match "^(.*[.!?])$"
end

local file, n = assert(io.open(o.out, "w")), 0
for first = 1, #entries, 12 do
  if n >= o.n_pairs then break end
  local some, prompts = { unpack(entries, first, math.min(first + 11, #entries)) }, {}
  for i, entry in ipairs(some) do
    prompts[i] = { { role = "user", content = ("Define: %s, %s"):format(entry.word, entry.pos) } }
  end
  local inputs = tokenizer:apply_chat_template(prompts, { add_generation_prompt = true,
    padding = true, padding_side = "left" })
  local ids = model.generate(model.params, inputs, { max_new_tokens = o.max_new_tokens })
  local length = inputs.input_ids:size(1)
  local answers = tokenizer:batch_decode(ids:narrow(1, length, ids:size(1) - length),
    { skip_special_tokens = true })
  for i, entry in ipairs(some) do
    local own = sentences(answers[i])
    if own and n < o.n_pairs then
      n = n + 1
      file:write(("{\"prompt\": %s, \"chosen\": %s, \"rejected\": %s}\n"):format(
        quoted(prompts[i][1].content), quoted(entry.definition), quoted(own)))
    end
  end
  io.stderr:write(n, "\n")
end
file:close()
