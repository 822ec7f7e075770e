-- Writes a model of a GGUF file in some types, and prints the perplexity of a text by each.
-- Arguments: the file, the text, a folder. TYPE.gguf has the packed weights, TYPE.f32.gguf the same
-- weights as floats, and ids.txt the tokens, a line for each part of the text.
local redco = require "redco"
local torch = redco.torch

local source, text, folder = unpack(arg)
local n_parts, n_tokens = 2, 512

local file = assert(io.open(text))
local ids = redco.Tokenizer.from_pretrained(source):encode(file:read "*a")
file:close()
local parts = torch.tensor(ids, { dtype = "int64" }):narrow(0, 0, n_parts * n_tokens)
  :view { n_parts, n_tokens }
local lines = assert(io.open(folder .. "/ids.txt", "w"))
for part = 0, n_parts - 1 do lines:write(table.concat(parts[part]:tolist(), " "), "\n") end
lines:close()

local floats = redco.models.from_pretrained(source, { quantize = false })
for _, kind in ipairs { "q4_0", "q4_k_m", "q8_0" } do
  local path = ("%s/%s.gguf"):format(folder, kind)
  floats.save_gguf(path, { type = kind })
  local model = redco.models.from_pretrained(path)
  local logits = torch.no_grad(function()
    return model(model.params, { input_ids = parts })
  end)
  print(kind, redco.metrics.perplexity(logits:narrow(1, 0, n_tokens - 1):flatten(0, 1),
    parts:narrow(1, 1, n_tokens - 1):flatten()))
  redco.models.from_pretrained(path, { quantize = false })
    .save_gguf(("%s/%s.f32.gguf"):format(folder, kind), { type = "f32" })
end
