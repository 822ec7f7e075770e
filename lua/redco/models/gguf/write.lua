--- Writes a GGUF file, or nothing: an error leaves no part of it.
local fail = require "redco.fail"
local native = require "redco.native"
local torch = require "redco.torch"

--- `metadata` is a list of {key, type, value}, `tensors` one of {name, type, shape}; `add(writer)`
--- adds the tensors in this order. With a tokenizer, its keys for `n_tokens` tokens are added.
return function(path, metadata, tensors, add, tokenizer, n_tokens)
  if type(path) ~= "string" or not path:find "%.gguf$" then
    fail("save_gguf: expected the path of a file NAME.gguf, got %s", path)
  end
  local writer = native.gguf_writer(path, metadata, tensors, tokenizer, n_tokens)
  local ok, failure = pcall(torch.no_grad, function()
    add(writer)
    writer:commit()
  end)
  writer:close()
  if not ok then error(failure, 0) end
end
