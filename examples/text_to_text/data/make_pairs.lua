-- Writes the texts that the tokenizer is made from: the verses, and as many sentences.
local redco = require "redco"

local o = redco.options { out = "pairs.jsonl" }
local here = redco.script_folder()

local verses = redco.data.lines(here .. "verses.jsonl"):tolist()
local sentences = dofile(here .. "../sentences.lua")(#verses, 0, 42)
local out = assert(io.open(o.out, "w"))
out:write(table.concat(verses, "\n"), "\n")
for _, pair in ipairs(sentences) do
  out:write(('{"source": "%s", "target": "%s"}\n'):format(pair.source, pair.target))
end
out:close()
