--- Reads model files of llama.cpp as Hugging Face's configurations and weights. Keys and names:
--- https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
local config = require "redco.models.gguf.config"
local fail = require "redco.fail"
local listed = require "redco.models.listed"
local native = require "redco.native"
local rows = require "redco.models.gguf.architectures"
local weights = require "redco.models.gguf.weights"

local gguf = {}

--- Returns whether a path names a GGUF file.
function gguf.is_named(path) return path:find "%.gguf$" ~= nil end

--- Returns the configuration of a file, and its weights: an object like that of
--- native.open_weights, with Hugging Face's names. It converts a tensor at each access.
function gguf.open(path)
  local file = native.open_gguf(path)
  local metadata = file.metadata
  local architecture = metadata["general.architecture"]
  local row = rows[architecture]
  if not row then
    local names = {}
    for name in pairs(rows) do names[#names + 1] = name end
    table.sort(names)
    fail("%s: general.architecture is %s, supported are %s", path,
      architecture == nil and "missing" or ("'%s'"):format(tostring(architecture)),
      listed(names, #names))
  end
  local tokens = metadata["tokenizer.ggml.tokens"]
  if tokens ~= nil and type(tokens) ~= "table" then
    fail("%s: tokenizer.ggml.tokens is a %s, expected a list", path, type(tokens))
  end
  local c, used = config.read(file, architecture, row)
  return c, weights.new(file, used, c)
end

return gguf
