--- redco.Tokenizer: reads tokenizers. Their class is in bindings/data/tokenizer.cpp.
local arguments = require "redco.arguments"
local hub = require "redco.hub"
local native = require "redco.native"
local registry = require "redco.registry"

local options = arguments("Tokenizer.from_pretrained", {}, { "revision", "download" })

return registry.define("redco.Tokenizer", [[
redco.Tokenizer
Creates `Tokenizer`s from files of Hugging Face models.]], {
  from_pretrained = registry.define("redco.Tokenizer.from_pretrained", [[
from_pretrained(path, {revision: string = nil, download: boolean = nil}) -> Tokenizer
Reads a tokenizer from a folder: tokenizer.json, else spiece.model or tokenizer.model, else
vocab.json with merges.txt, and the folder's tokenizer_config.json. `path` can also be one
tokenizer.json, .model or .gguf file, or a name of the Hugging Face Hub as in
`redco.models.from_pretrained`.]], function(path, given)
    return native.read_tokenizer(
      hub.path("Tokenizer.from_pretrained", path, "tokenizer", options(given)))
  end),
})
